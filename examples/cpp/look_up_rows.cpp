// From tokens to the embedding rows of one Engram layer, and a proof that they are exact.
//
//   look_up_rows demo

#include <penstock/penstock.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <vector>

using namespace penstock;

namespace {

// One e4m3 code times its scale, by the definition of the formats.
float by_hand(unsigned code, unsigned scale) {
  const int exponent = static_cast<int>(code >> 3) & 15;
  const auto fraction = static_cast<float>(code & 7) / 8;
  const float magnitude =
      exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
  return std::ldexp((code & 0x80) != 0 ? -magnitude : magnitude, static_cast<int>(scale) - 127);
}

// How many numbers of the rows are not those of the checkpoint.
std::size_t count_differences(const ModelDir& model, int layer,
                              const std::vector<std::int32_t>& ids, const std::vector<BF16>& rows,
                              std::size_t head_dim) {
  const TensorRef codes = model.require(engram_tensor_names(layer, "embed.weight"));
  const TensorRef scales = model.require(engram_tensor_names(layer, "embed.scale"));
  std::size_t differences = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(ids[i / head_dim]) * head_dim + i % head_dim;
    const float value = by_hand(std::to_integer<unsigned>(codes.bytes[at]),
                                std::to_integer<unsigned>(scales.bytes[at / 32]));
    if (rows[i] != to_bf16(value)) ++differences;
  }
  return differences;
}

int look_up(const char* directory) {
  const ModelDir model = ModelDir::open(directory);
  const EngramConfig& engram = model.config().engram.value();
  const int layer = engram.layer_ids.front();

  // Tokens become row ids: for every token, one row in each column of each layer's table.
  const NgramHasher hasher(
      HashLayout(engram),
      TokenMap::from_tokenizer(model.path() / "tokenizer.json", model.config().vocab_size));
  const std::vector<std::int32_t> token_ids{671, 6102, 294, 8760, 344, 11111};
  const std::vector<std::int32_t> query_start{0, static_cast<std::int32_t>(token_ids.size())};
  std::vector<std::int64_t> positions(token_ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<std::int32_t> lookback(static_cast<std::size_t>(engram.lookback_depth()), -1);
  const std::vector<std::int32_t> row_ids =
      hasher({token_ids, query_start, positions, lookback});  // [tokens, layers, columns]

  // Row ids become rows, in bf16. The ids of the first layer lie first in each token's.
  const Table table =
      Table::open(engram_table_spec(model.config(), layer), open_checkpoint_rows(model, layer));
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  const int columns = engram.num_columns();
  const std::int64_t ids_per_token = static_cast<std::int64_t>(row_ids.size()) / tokens;
  const auto head_dim = static_cast<std::size_t>(engram.head_dim);
  std::vector<BF16> rows(static_cast<std::size_t>(tokens * columns) * head_dim);
  gather_rows(table.view(), {row_ids.data(), tokens, columns, ids_per_token}, RowFormat::Bf16,
              std::as_writable_bytes(std::span(rows)), table.device());

  std::vector<std::int32_t> layer_ids;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto first = row_ids.begin() + token * ids_per_token;
    layer_ids.insert(layer_ids.end(), first, first + columns);
  }
  const std::size_t differences = count_differences(model, layer, layer_ids, rows, head_dim);
  std::printf("%zu numbers, %zu differ from the checkpoint\n", rows.size(), differences);
  return differences == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return look_up(argc > 1 ? argv[1] : "demo");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
