#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock {

/// The dense weights of an Engram layer, as bf16 in host memory.
struct EngramWeights {
  int hc_mult = 1;
  int dim = 0;                 ///< Hidden size.
  std::int64_t row_width = 0;  ///< Columns times head_dim: the width of what is projected.
  float eps = 0;
  std::vector<BF16> wkv;       ///< [(hc + 1) * dim, row_width]
  std::vector<BF16> q_weight;  ///< [hc, dim]
  std::vector<BF16> k_weight;  ///< [hc, dim]
};

/// Reads the weights of a layer. A block-fp8 `wkv` (e4m3 codes with one scale per block, ue8m0 or
/// float) is dequantised once to bf16; q and k may be bf16 or float.
///
/// Errors: NotFound if the layer has no Engram or a tensor is missing; CorruptFile if a dtype or
///         shape is not what config.json says; Unsupported for a dtype that it cannot read.
EngramWeights load_engram_weights(const ModelDir& model, int layer_id);

}  // namespace penstock
