#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// The steps of opening a table over a group, in order.
enum class Stage {
  Agree,    ///< All ranks compare their arguments.
  Create,   ///< Rank 0 makes the memory.
  Reserve,  ///< Rank 0 takes every page of it.
  Map,      ///< All ranks map it.
  Load,     ///< Rank 0 fills it.
  Seal,     ///< Rank 0 gives up writing; then all may read.
  Pin,      ///< All ranks register it where a GPU reads it: a seal is refused to pinned pages.
};

std::string_view to_string(Stage stage);

/// What a stage of several ranks failed with.
class StageError : public Error {
 public:
  StageError(ErrorCode code, ErrorCode cause, const std::string& message)
      : Error(code, message),
        cause_(cause) {}

  /// The code of the first failing rank: equal on all ranks, unlike code().
  ErrorCode cause() const noexcept { return cause_; }

 private:
  ErrorCode cause_;
};

/// Runs the stages of one operation on every rank of a group and gathers how they went.
///
/// Every rank's step runs on a thread of its own while the ranks exchange their state every quarter
/// of a second. So a step may last longer than the group's deadline, and when a rank fails or dies
/// the others stop within that time.
class StageRunner {
 public:
  using Step = std::function<std::string(const StopFlag& stop)>;

  /// Null stands for a group of one. `operation` starts every message.
  StageRunner(Communicator* group, std::string operation);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool is_creator() const noexcept { return rank_ == 0; }

  /// Collective: over the group. Returns what every rank's step returned, in rank order, once all
  ///             have ended.
  /// Errors:     StageError on every rank if a step throws: with the step's own code on that rank,
  ///             PeerFailed on the others; the message names the first failing rank, the stage and
  ///             the cause. PeerFailed if a rank dies. All steps of this rank have ended by then.
  std::vector<std::string> run(Stage stage, const Step& step);

 private:
  struct StepState;
  class RunningStep;

  static StepState run_step(int rank, Stage stage, const Step& step, const StopFlag& stop);
  std::vector<StepState> gather_states(Stage stage, const std::string& mine);
  StageError failure(Stage stage, const std::vector<StepState>& states) const;
  std::vector<std::string> run_alone(Stage stage, const Step& step) const;

  Communicator* group_;
  std::string operation_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace penstock::detail
