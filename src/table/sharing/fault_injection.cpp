#include "table/sharing/fault_injection.hpp"

#include <memory>
#include <mutex>
#include <utility>

namespace penstock::detail {
namespace {

std::mutex hook_mutex;                         // NOLINT: one hook per process, by contract
std::shared_ptr<const FaultHook> hook_in_use;  // NOLINT: likewise

}  // namespace

void set_fault_hook(FaultHook hook) {
  auto next = hook ? std::make_shared<const FaultHook>(std::move(hook)) : nullptr;
  const std::lock_guard lock(hook_mutex);
  hook_in_use = std::move(next);
}

void call_fault_hook(int rank, Stage stage) {
  std::shared_ptr<const FaultHook> hook;
  {
    const std::lock_guard lock(hook_mutex);
    hook = hook_in_use;
  }
  if (hook) (*hook)(rank, stage);
}

}  // namespace penstock::detail
