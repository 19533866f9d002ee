#include "cli/run/run_arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

[[noreturn]] void refuse_arguments(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "run: " + message);
}

std::uint64_t parse_seed(const std::string& text) {
  constexpr std::string_view kPrefix = "random:";
  constexpr std::size_t kMostDigits = 18;  // all of which fit 64 bits
  const std::string_view digits =
      text.starts_with(kPrefix) ? std::string_view(text).substr(kPrefix.size()) : "";
  const bool is_number = digits.find_first_not_of("0123456789") == std::string_view::npos;
  if (digits.empty() || !is_number || digits.size() > kMostDigits) {
    refuse_arguments(fmt::format("--rows is '{}', random:SEED is needed", text));
  }
  return std::stoull(std::string(digits));
}

void check_cuts(const std::vector<int>& cuts, int stages) {
  if (cuts.empty()) return;
  if (static_cast<int>(cuts.size()) != stages - 1) {
    refuse_arguments(fmt::format("--pp-cuts names {} layers, --pp {} needs {}", cuts.size(), stages,
                                 stages - 1));
  }
  if (cuts.front() < 1 || !std::ranges::is_sorted(cuts, std::ranges::less_equal{})) {
    refuse_arguments(
        fmt::format("--pp-cuts is {}, each layer must be past the one before and past 0",
                    fmt::join(cuts, ",")));
  }
}

std::chrono::milliseconds parse_deadline(double seconds) {
  constexpr double kLeast = 0.1;
  constexpr double kMost = 86'400;
  constexpr double kMillisecondsPerSecond = 1000;
  if (!(seconds >= kLeast && seconds <= kMost)) {  // negated: also what is not a number
    refuse_arguments(
        fmt::format("--deadline is {}, {} to {} seconds are needed", seconds, kLeast, kMost));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * kMillisecondsPerSecond));
}

}  // namespace

RunOptions check_arguments(const RunArguments& arguments) {
  RunOptions options = arguments.options;
  options.placement = parse_placement(arguments.placement).value();
  options.backing = parse_host_backing(arguments.backing).value();
  options.device = arguments.device == "cuda" ? DeviceKind::Cuda : DeviceKind::Cpu;
  if (!arguments.rows.empty()) options.random_rows_seed = parse_seed(arguments.rows);
  options.deadline = parse_deadline(arguments.deadline_seconds);
  validate(options.parallel);
  check_cuts(options.pp_cuts, options.parallel.pp);
  return options;
}

}  // namespace penstock::cli
