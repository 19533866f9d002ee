#include "table/sharing/stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <new>
#include <span>
#include <system_error>
#include <utility>

#include "core/failure_point.hpp"
#include "penstock/core/parallel.hpp"
#include "table/sharing/fault_injection.hpp"

namespace penstock::detail {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{250};

/// Called on the rank's own thread, which is the one that can leave.
void pass_failure_point(Stage stage) {
  switch (stage) {
    case Stage::Create: return failure_point(FailurePoint::LoadCreate);
    case Stage::Reserve: return failure_point(FailurePoint::LoadReserve);
    case Stage::Map: return failure_point(FailurePoint::LoadMap);
    case Stage::Load: return failure_point(FailurePoint::LoadRows);
    case Stage::Seal: return failure_point(FailurePoint::LoadSeal);
    case Stage::Agree:
    case Stage::Pin: return;
  }
}

std::string stage_text(const std::string& operation, Stage stage, std::string_view what) {
  return fmt::format("{}: stage {}: {}", operation, to_string(stage), what);
}

}  // namespace

/// How a rank's step stands. Encoded as two letters, the kind and the code, and the text.
struct StageRunner::StepState {
  enum class Kind : char { Working = 'w', Done = 'd', Failed = 'f' };
  Kind kind = Kind::Working;
  ErrorCode code = ErrorCode::Internal;
  std::string text;  ///< The step's result, or why it failed.

  bool is_done() const { return kind == Kind::Done; }
  bool is_failed() const { return kind == Kind::Failed; }

  std::string encode() const {
    return std::string{static_cast<char>(kind), static_cast<char>('A' + static_cast<int>(code))} +
           text;
  }

  static StepState decode(std::span<const std::byte> bytes) {
    const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (all.size() < 2) throw Error(ErrorCode::Internal, "stage: found a state without its header");
    return {.kind = static_cast<Kind>(all[0]),
            .code = static_cast<ErrorCode>(all[1] - 'A'),
            .text = std::string(all.substr(2))};
  }
};

/// A step on a thread of its own. Its destructor stops it and waits for its end.
class StageRunner::RunningStep {
 public:
  RunningStep(int rank, Stage stage, const Step& step) {
    try {
      pending_ = std::async(std::launch::async, [=, this, threads = parallel_threads()] {
        set_parallel_threads(threads);
        return run_step(rank, stage, step, stop_);
      });
    } catch (const std::system_error& error) {  // the others must hear of it
      state_ = {.kind = StepState::Kind::Failed,
                .code = ErrorCode::System,
                .text = fmt::format("cannot start a thread: {}", error.what())};
    }
  }
  ~RunningStep() { stop_.stop(); }  // the future's own destructor waits
  RunningStep(const RunningStep&) = delete;
  RunningStep& operator=(const RunningStep&) = delete;

  /// Waits for the step, but no longer than a heartbeat.
  const StepState& state() {
    if (pending_.valid() && pending_.wait_for(kHeartbeat) == std::future_status::ready) {
      state_ = pending_.get();
    }
    return state_;
  }

 private:
  StopFlag stop_;
  StepState state_;
  std::future<StepState> pending_;
};

/// Runs the step and turns whatever it throws into a state.
StageRunner::StepState StageRunner::run_step(int rank, Stage stage, const Step& step,
                                             const StopFlag& stop) {
  const auto failed = [](ErrorCode code, const char* why) {
    return StepState{.kind = StepState::Kind::Failed, .code = code, .text = why};
  };
  try {
    call_fault_hook(rank, stage);
    return {.kind = StepState::Kind::Done, .text = step(stop)};
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::OutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return failed(ErrorCode::Internal, error.what());
  }
}

std::string_view to_string(Stage stage) {
  switch (stage) {
    case Stage::Agree: return "agree";
    case Stage::Create: return "create";
    case Stage::Reserve: return "reserve";
    case Stage::Map: return "map";
    case Stage::Load: return "load";
    case Stage::Seal: return "seal";
    case Stage::Pin: return "pin";
  }
  throw Error(ErrorCode::Internal, "to_string: not a Stage");
}

StageRunner::StageRunner(Communicator* group, std::string operation)
    : group_(group),
      operation_(std::move(operation)),
      rank_(group == nullptr ? 0 : group->rank()),
      size_(group == nullptr ? 1 : group->size()) {}

std::vector<std::string> StageRunner::run_alone(Stage stage, const Step& step) const {
  StepState state = run_step(rank_, stage, step, StopFlag{});
  if (state.kind == StepState::Kind::Done) return {std::move(state.text)};
  throw StageError(state.code, state.code, stage_text(operation_, stage, "rank 0: " + state.text));
}

std::vector<std::string> StageRunner::run(Stage stage, const Step& step) {
  pass_failure_point(stage);
  if (size_ == 1) return run_alone(stage, step);
  RunningStep running(rank_, stage, step);
  for (;;) {
    const std::string mine = running.state().encode();
    const auto states = gather_states(stage, mine);
    if (std::ranges::any_of(states, &StepState::is_failed)) throw failure(stage, states);
    if (std::ranges::all_of(states, &StepState::is_done)) {
      std::vector<std::string> results;
      for (const auto& state : states) results.push_back(state.text);
      return results;
    }
  }
}

auto StageRunner::gather_states(Stage stage, const std::string& mine) -> std::vector<StepState> {
  try {
    std::vector<StepState> states;
    for (const auto& bytes : group_->all_gather_object(std::as_bytes(std::span(mine)))) {
      states.push_back(StepState::decode(bytes));
    }
    return states;
  } catch (const Error& error) {
    throw StageError(error.code(), error.code(), stage_text(operation_, stage, error.what()));
  }
}

StageError StageRunner::failure(Stage stage, const std::vector<StepState>& states) const {
  std::string text;
  const StepState* first = nullptr;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    if (!states[rank].is_failed()) continue;
    if (first == nullptr) first = &states[rank];
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, states[rank].text);
  }
  const StepState& mine = states[static_cast<std::size_t>(rank_)];
  const ErrorCode code = mine.is_failed() ? mine.code : ErrorCode::PeerFailed;
  return {code, first->code, stage_text(operation_, stage, text)};
}

}  // namespace penstock::detail
