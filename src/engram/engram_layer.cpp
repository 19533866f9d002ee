#include "penstock/engram/engram_layer.hpp"

#include <fmt/format.h>

#include <utility>

#include "penstock/checkpoint/bucket_primes.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/engram_weights.hpp"

namespace penstock {

TableSpec engram_table_spec(const ModelConfig& config, int layer_id) {
  const auto index = config.engram ? config.engram->hash_layer_index(layer_id) : std::nullopt;
  if (!index) {
    throw Error(ErrorCode::NotFound,
                fmt::format("engram_table_spec: config.json gives layer {} no Engram", layer_id));
  }
  const auto layer = static_cast<std::size_t>(*index);
  TableSpec spec;
  spec.layer_id = layer_id;
  spec.head_sizes = bucket_primes(*config.engram)[layer];
  spec.num_rows = config.engram->num_embeddings[layer];
  spec.head_dim = config.engram->head_dim;
  return spec;
}

EngramLayer EngramLayer::open(const ModelDir& model, int layer_id,
                              const EngramLayerOptions& options) {
  const EngramWeights weights = load_engram_weights(model, layer_id);
  TableOptions table_options;
  table_options.placement = options.placement;
  table_options.device = options.device;
  table_options.group = options.group;
  table_options.may_fall_back = options.may_fall_back;
  table_options.backing = options.backing;
  Table table = Table::open(engram_table_spec(model.config(), layer_id),
                            open_checkpoint_rows(model, layer_id), table_options);
  return {std::move(table), weights, options};
}

EngramLayer::EngramLayer(Table table, const EngramWeights& weights,
                         const EngramLayerOptions& options)
    : prefetcher_(std::move(table), {.max_tokens = options.max_tokens, .slots = options.slots}),
      injection_(weights, options.device, options.max_tokens) {
  const TableView& view = prefetcher_.table().view();
  expects(std::int64_t{view.local_columns} * view.head_dim == injection_.row_width(),
          "EngramLayer: the table holds only a shard of the columns");
}

Ticket EngramLayer::prefetch(const RowIds& ids, StreamRef producer) {
  return prefetcher_.start(ids, producer);
}

void EngramLayer::forward(std::span<const BF16> hidden, Ticket& ticket,
                          std::span<const std::uint8_t> mask, std::span<BF16> out,
                          StreamRef stream) {
  ticket.wait(stream);
  const auto rows = ticket.rows();
  injection_.project({reinterpret_cast<const BF16*>(rows.data()), rows.size() / sizeof(BF16)},
                     stream);
  ticket.release(stream);
  injection_.inject(hidden, mask, out, stream);
}

}  // namespace penstock
