#include "cli/run/model_options.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

/// The options that were given of those that mean something to tables only.
std::string options_for_tables(const RunOptions& options) {
  std::string given;
  const auto add = [&](bool is_given, std::string_view option) {
    if (is_given) given += fmt::format("{}{}", given.empty() ? "" : ", ", option);
  };
  add(options.placement != Placement::Auto,
      fmt::format("--placement {}", to_string(options.placement)));
  add(options.backing != HostBacking::Auto,
      fmt::format("--backing {}", to_string(options.backing)));
  add(options.may_fall_back, "--allow-fallback");
  add(options.shards_over_dp, "--dp-shard");
  add(options.is_sequence_parallel, "--sp");
  add(options.random_rows_seed.has_value(), "--rows");
  add(options.stand_in != RunOptions().stand_in, "--stand-in");
  return given;
}

[[noreturn]] void refuse(std::string_view given, std::string_view purpose, std::string_view found,
                         const ModelDir& model) {
  const char* verb = given.find(", ") == std::string_view::npos ? "is" : "are";
  throw Error(ErrorCode::InvalidArgument, fmt::format("run: {} {} for {}, {} has {} alone", given,
                                                      verb, purpose, model.path().string(), found));
}

}  // namespace

void check_model_options(const RunOptions& options, const ModelDir& model) {
  if (model.config().engram) {
    if (options.strategy.empty()) return;
    refuse("--strategy " + options.strategy, "gates", "tables", model);
  }
  if (!model.config().gate) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: config.json has neither engram_* keys nor a gated attention",
                            model.path().string()));
  }
  const std::string given = options_for_tables(options);
  if (!given.empty()) refuse(given, "tables", "gates", model);
}

}  // namespace penstock::cli
