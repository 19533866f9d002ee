#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock::cli {

/// What a rank has computed of one layer, token by token. Widths are elements of one token.
struct LayerOutput {
  std::vector<std::int64_t> tokens;  ///< Their numbers in the run.
  std::vector<std::int32_t> row_ids;
  std::vector<BF16> rows;
  std::vector<BF16> hidden;
};

struct LayerOutputShape {
  int layer_id = 0;
  std::int64_t num_tokens = 0;  ///< Of the whole run.
  std::int64_t columns = 0;
  std::int64_t head_dim = 0;
  std::int64_t hc_mult = 0;
  std::int64_t dim = 0;
};

/// Writes `directory/layer<ID>.safetensors` with row_ids [T, C], rows [T, C, D] and hidden
/// [T, hc, dim] in the order of the run's tokens.
///
/// Collective: over `world`; ranks without a part pass an empty one; rank 0 writes.
/// Errors:     Internal if a token is missing or there twice.
void write_layer_output(Communicator& world, const LayerOutputShape& shape, const LayerOutput& mine,
                        const std::filesystem::path& directory);

}  // namespace penstock::cli
