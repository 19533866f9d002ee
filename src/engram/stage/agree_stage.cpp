#include "engram/stage/agree_stage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <string>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  std::vector<std::string> all;
  for (const auto& bytes : world.all_gather_object(std::as_bytes(std::span(mine)))) {
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

void expect_equal(const std::vector<std::string>& texts, std::size_t first, std::size_t second) {
  if (texts[first] == texts[second]) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("EngramStage: rank {} opens {}; rank {} opens {}; needed: the same",
                          first, texts[first], second, texts[second]));
}

}  // namespace

void agree_on_stage(Communicator& world, const ParallelConfig& parallel,
                    const std::vector<int>& layers, const EngramStageOptions& options) {
  const auto flag = [](bool is_set) { return is_set ? "yes" : "no"; };
  const auto common = gather_texts(
      world,
      fmt::format(
          "{}, placement {}, backing {}, shards over dp {}, sequence parallel {}, {} tokens, "
          "fallback {}, nccl {}, {}",
          to_string(parallel), to_string(options.placement), to_string(options.backing),
          flag(options.shards_over_dp), flag(options.is_sequence_parallel), options.max_tokens,
          flag(options.may_fall_back), flag(options.uses_nccl),
          options.device.kind == DeviceKind::Cpu ? "cpu" : "cuda"));
  for (std::size_t rank = 1; rank < common.size(); ++rank) expect_equal(common, 0, rank);

  const auto of_stage = gather_texts(world, fmt::format("layers [{}]", fmt::join(layers, ", ")));
  std::vector<std::size_t> first_of_stage(static_cast<std::size_t>(parallel.pp), of_stage.size());
  for (std::size_t rank = 0; rank < of_stage.size(); ++rank) {
    const auto stage = static_cast<std::size_t>(place_of(parallel, static_cast<int>(rank)).pp);
    if (first_of_stage[stage] == of_stage.size()) first_of_stage[stage] = rank;
    expect_equal(of_stage, first_of_stage[stage], rank);
  }
}

}  // namespace penstock::detail
