#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock::detail {

/// The places at which a rank can be made to fail, in the order in which a job passes them.
enum class FailurePoint : std::uint8_t {
  StartLaunched,  ///< It knows its rank and has met nobody.
  StartJoined,    ///< It has met the others.
  StartGroups,    ///< It looks for its node and its groups.
  LoadCreate,     ///< The stages of opening a table; see table/sharing/stage.hpp.
  LoadReserve,
  LoadMap,
  LoadRows,
  LoadSeal,
  StepIds,     ///< It has row ids that nobody else has heard of.
  StepReads,   ///< The ids are where the rows are.
  StepRows,    ///< Reads are under way.
  StepInject,  ///< It has a layer's rows.
};

/// "start.launched", "load.rows" and so on.
std::string_view to_string(FailurePoint point);

/// A failure that the environment asks for.
struct PlannedFailure {
  enum class How : std::uint8_t {
    Kill,   ///< SIGKILL for the process.
    Leave,  ///< A process exits with 0, a thread unwinds; neither tells the others why.
  };
  FailurePoint point = FailurePoint::StartLaunched;
  int rank = 0;
  How how = How::Kill;
  int passing = 1;  ///< It happens when the rank passes the point for this time.
};

/// Reads "point:rank:kill" or "point:rank:leave", with ":n" behind it for the n-th passing.
///
/// Errors: InvalidArgument, naming what is wrong, for anything else.
PlannedFailure parse_planned_failure(std::string_view text);

/// What PENSTOCK_FAIL_AT says; nothing if it is not set.
std::optional<PlannedFailure> planned_failure();

/// What a thread that leaves is unwound with. No std::exception, so that nobody takes it for an
/// error and reports it.
struct Departure {};

enum class RankKind : std::uint8_t { Process, Thread };

/// Says which rank of the job the calling thread is, for failure_point().
void set_failure_rank(int rank, RankKind kind) noexcept;

/// Ends the calling rank here if that is what PENSTOCK_FAIL_AT asks for, after a line on the log.
///
/// Errors: InvalidArgument if the variable makes no sense; Departure for a thread that leaves.
void failure_point(FailurePoint point);

}  // namespace penstock::detail
