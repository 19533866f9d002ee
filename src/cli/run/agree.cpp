#include "cli/run/agree.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <map>
#include <span>

#include "penstock/core/error.hpp"
#include "penstock/plan/deployment.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "run: " + message);
}

std::vector<Settings> gather_settings(Communicator& world, const Settings& mine) {
  const std::string text = json({{"values", mine.values}, {"error", mine.error}}).dump();
  std::vector<Settings> all;
  for (const auto& bytes : world.all_gather_object(std::as_bytes(std::span(text)))) {
    const auto* begin = reinterpret_cast<const char*>(bytes.data());
    const json parsed = json::parse(begin, begin + bytes.size());
    Settings& settings = all.emplace_back();
    parsed["values"].get_to(settings.values);
    parsed["error"].get_to(settings.error);
  }
  return all;
}

/// "--tp is 2 on ranks 0, 1 and 4 on ranks 2, 3"; empty if all agree.
std::string difference(const std::vector<Settings>& all, std::size_t index) {
  std::map<std::string, std::vector<std::size_t>> ranks_with;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ranks_with[all[rank].values.at(index).second].push_back(rank);
  }
  if (ranks_with.size() == 1) return {};
  std::string text = all[0].values[index].first + " is";
  const char* before = " ";
  for (const auto& [value, ranks] : ranks_with) {
    text += fmt::format("{}{} on rank{} {}", before, value, ranks.size() > 1 ? "s" : "",
                        fmt::join(ranks, ", "));
    before = " and ";
  }
  return text;
}

std::string describe_switch() {
  const auto is_on = gate_pcp_shard_switch();
  if (!is_on) return "unset";
  return *is_on ? "on" : "off";
}

}  // namespace

void agree(Communicator& world, const Settings& mine) {
  const auto all = gather_settings(world, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].error.empty()) refuse(fmt::format("rank {}: {}", rank, all[rank].error));
  }
  std::string differences;
  for (std::size_t i = 0; i < mine.values.size(); ++i) {
    const std::string text = difference(all, i);
    if (!text.empty()) differences += (differences.empty() ? "" : "; ") + text;
  }
  if (!differences.empty()) refuse(differences + "; needed: the same on all ranks");
}

Settings settings_of(const RunOptions& options) {
  const auto flag = [](bool is_set) { return std::string(is_set ? "given" : "absent"); };
  Settings settings;
  settings.values = {
      {"the parallel sizes", fmt::format("\"{}\"", to_string(options.parallel))},
      {"--pp-cuts", fmt::format("[{}]", fmt::join(options.pp_cuts, ", "))},
      {"--sp", flag(options.is_sequence_parallel)},
      {"--dp-shard", flag(options.shards_over_dp)},
      {"--placement", std::string(to_string(options.placement))},
      {"--backing", std::string(to_string(options.backing))},
      {"--allow-fallback", flag(options.may_fall_back)},
      {"--strategy", options.strategy.empty() ? "absent" : options.strategy},
      {"--device", options.device == DeviceKind::Cpu ? "cpu" : "cuda"},
      {"--engine", options.engine},
      {"--requests", std::to_string(options.requests)},
      {"--chunk", std::to_string(options.chunk)},
      {"--decode", std::to_string(options.decode)},
      {"--layers", fmt::format("[{}]", fmt::join(options.layers, ", "))},
      {"--rows",
       options.random_rows_seed ? fmt::format("random:{}", *options.random_rows_seed) : "absent"},
      {"--out", flag(!options.out.empty())},
  };
  try {
    settings.values.emplace_back("PENSTOCK_GATE_PCP_SHARD", describe_switch());
  } catch (const Error& error) {
    settings.values.emplace_back("PENSTOCK_GATE_PCP_SHARD", "");
    settings.error = error.what();
  }
  return settings;
}

}  // namespace penstock::cli
