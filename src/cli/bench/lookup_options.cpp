#include "cli/bench/lookup_options.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "penstock/core/error.hpp"

namespace penstock::cli {

void add_lookup_options(CLI::App& command, LookupBenchOptions& options) {
  command.add_option("--device", options.device, "cpu or cuda")->capture_default_str();
  command.add_option("--placement", options.placement, "device, host, host_shared or peer")
      ->capture_default_str();
  command
      .add_option("--backing", options.backing,
                  "Memory of host_shared: auto, cumem, hugetlb or memfd")
      ->capture_default_str();
  command.add_option("--gib", options.gib, "Size of the table, in GiB")->capture_default_str();
  command.add_option("--tokens", options.tokens, "Tokens of a read, several allowed")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--ranks", options.ranks, "Threads, on cuda each with its own GPU")
      ->capture_default_str();
  command.add_option("--repeat", options.repeat, "Measurements of each way")->capture_default_str();
}

void check_lookup_options(const std::string& command, const LookupBenchOptions& options) {
  const auto needs = [&](bool holds, const std::string& what) {
    expects(holds, command + ": " + what);
  };
  needs(options.device == "cpu" || options.device == "cuda", "--device needs cpu or cuda");
  const double rows = options.gib * 1073741824.0 / kLookupRowBytes;
  needs(rows >= kLookupColumns && rows < std::numeric_limits<std::int32_t>::max(),
        fmt::format("--gib is {}, needs at least a row a column and fewer than 2^31 rows",
                    options.gib));
  needs(!options.tokens.empty() && std::ranges::min(options.tokens) >= 1,
        "--tokens needs numbers from 1");
  needs(options.ranks >= 1 && options.repeat >= 1, "--ranks and --repeat need at least 1");
  if (options.device == "cuda" && cuda_device_count() < options.ranks) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{}: --ranks {} needs as many GPUs, {} are here", command,
                            options.ranks, cuda_device_count()));
  }
}

}  // namespace penstock::cli
