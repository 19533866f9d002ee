#pragma once

#include <functional>
#include <string_view>

namespace penstock {

/// How much a message matters: a Warning says that something is not as it was asked for.
enum class LogLevel { Debug, Info, Warning };

/// Receives every message of the library. Must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

/// Replaces the sink for the whole process; an empty one drops every message, which is the default.
/// The library itself never prints.
///
/// Threads: safe at any time; a call that is under way may still reach the old sink.
void set_log_sink(LogSink sink);

/// Hands `message` to the sink.
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace penstock
