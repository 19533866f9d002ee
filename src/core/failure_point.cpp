#include "core/failure_point.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"

namespace penstock::detail {
namespace {

constexpr const char* kVariable = "PENSTOCK_FAIL_AT";

struct NamedPoint {
  FailurePoint point;
  std::string_view name;
};

constexpr std::array kPoints = {
    NamedPoint{FailurePoint::StartLaunched, "start.launched"},
    NamedPoint{FailurePoint::StartJoined, "start.joined"},
    NamedPoint{FailurePoint::StartGroups, "start.groups"},
    NamedPoint{FailurePoint::LoadCreate, "load.create"},
    NamedPoint{FailurePoint::LoadReserve, "load.reserve"},
    NamedPoint{FailurePoint::LoadMap, "load.map"},
    NamedPoint{FailurePoint::LoadRows, "load.rows"},
    NamedPoint{FailurePoint::LoadSeal, "load.seal"},
    NamedPoint{FailurePoint::StepIds, "step.ids"},
    NamedPoint{FailurePoint::StepReads, "step.reads"},
    NamedPoint{FailurePoint::StepRows, "step.rows"},
    NamedPoint{FailurePoint::StepInject, "step.inject"},
};

[[noreturn]] void refuse(std::string_view text, const std::string& needed) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: found \"{}\", needed: {}", kVariable, text, needed));
}

std::vector<std::string_view> split_at_colons(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || rest != end || number < 0) return std::nullopt;
  return number;
}

std::string all_names() {
  std::string names;
  for (const NamedPoint& point : kPoints) names += fmt::format(" {}", point.name);
  return names;
}

/// Which rank a thread is, and whether it is alone in its process.
struct ThisRank {
  int rank = -1;
  RankKind kind = RankKind::Process;
};

thread_local ThisRank this_rank;       // NOLINT: a property of the thread
std::atomic<int> passings_so_far = 0;  // NOLINT: of the one planned failure, by one rank

}  // namespace

std::string_view to_string(FailurePoint point) {
  for (const NamedPoint& named : kPoints) {
    if (named.point == point) return named.name;
  }
  throw Error(ErrorCode::Internal, "to_string: not a FailurePoint");
}

PlannedFailure parse_planned_failure(std::string_view text) {
  const auto parts = split_at_colons(text);
  if (parts.size() != 3 && parts.size() != 4) refuse(text, "point:rank:kill or point:rank:leave");
  PlannedFailure failure;
  bool is_known = false;
  for (const NamedPoint& named : kPoints) {
    if (named.name != parts[0]) continue;
    failure.point = named.point;
    is_known = true;
  }
  if (!is_known) refuse(text, "one of the points" + all_names());
  const auto rank = parse_number(parts[1]);
  if (!rank) refuse(text, "a rank in the second place");
  failure.rank = *rank;
  if (parts[2] != "kill" && parts[2] != "leave") refuse(text, "kill or leave in the third place");
  failure.how = parts[2] == "kill" ? PlannedFailure::How::Kill : PlannedFailure::How::Leave;
  if (parts.size() == 4) {
    const auto passing = parse_number(parts[3]);
    if (!passing || *passing == 0) refuse(text, "1 or more in the fourth place");
    failure.passing = *passing;
  }
  return failure;
}

std::optional<PlannedFailure> planned_failure() {
  const auto text = environment_variable(kVariable);
  if (!text) return std::nullopt;
  return parse_planned_failure(*text);
}

void set_failure_rank(int rank, RankKind kind) noexcept {
  this_rank = {rank, kind};
}

void failure_point(FailurePoint point) {
  static const auto planned = planned_failure();
  if (!planned || planned->point != point || planned->rank != this_rank.rank) return;
  if (++passings_so_far != planned->passing) return;
  const bool is_killed = planned->how == PlannedFailure::How::Kill;
  log(LogLevel::Warning, fmt::format("{}: rank {} {} at {}", kVariable, this_rank.rank,
                                     is_killed ? "is killed" : "leaves", to_string(point)));
  if (is_killed) std::raise(SIGKILL);
  if (this_rank.kind == RankKind::Thread) throw Departure{};
  std::_Exit(0);
}

}  // namespace penstock::detail
