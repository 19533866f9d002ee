#include "penstock/core/log.hpp"

#include <memory>
#include <mutex>
#include <utility>

namespace penstock {
namespace {

std::mutex sink_mutex;                       // NOLINT: one sink per process, by contract
std::shared_ptr<const LogSink> sink_in_use;  // NOLINT: likewise

}  // namespace

void set_log_sink(LogSink sink) {
  auto next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  const std::lock_guard lock(sink_mutex);
  sink_in_use = std::move(next);
}

void log(LogLevel level, std::string_view message) noexcept {
  std::shared_ptr<const LogSink> sink;
  {
    const std::lock_guard lock(sink_mutex);
    sink = sink_in_use;
  }
  if (sink) (*sink)(level, message);
}

}  // namespace penstock
