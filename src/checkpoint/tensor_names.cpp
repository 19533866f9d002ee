#include <fmt/format.h>

#include <array>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

struct PartNames {
  std::string_view part;                   ///< As in the checkpoint.
  std::array<std::string_view, 2> mapped;  ///< As engines rename it; may be empty.
};

constexpr std::array kEngramParts{
    PartNames{"embed.weight", {"embed_tokens.weight", ""}},
    PartNames{"embed.scale", {"embed_tokens.weight_scale_inv", ""}},
    PartNames{"wkv.weight", {"", ""}},
    PartNames{"wkv.scale", {"wkv.weight_scale", "wkv.weight_scale_inv"}},
    PartNames{"q_weight", {"", ""}},
    PartNames{"k_weight", {"", ""}},
};

}  // namespace

std::vector<std::string> engram_tensor_names(int layer_id, std::string_view part) {
  for (const auto& row : kEngramParts) {
    if (row.part != part) continue;
    std::vector<std::string> names;
    for (const std::string_view spelling : {row.part, row.mapped[0], row.mapped[1]}) {
      if (spelling.empty()) continue;
      names.push_back(fmt::format("layers.{}.engram.{}", layer_id, spelling));
      names.push_back(fmt::format("model.layers.{}.engram.{}", layer_id, spelling));
    }
    return names;
  }
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("engram_tensor_names: found part \"{}\", needed: one of the six parts", part));
}

std::vector<std::string> gate_tensor_names(int layer_id) {
  return {fmt::format("model.layers.{}.self_attn.linear_gate.weight", layer_id),
          fmt::format("layers.{}.self_attn.linear_gate.weight", layer_id)};
}

}  // namespace penstock
