#pragma once

#include <fmt/core.h>

#include <system_error>
#include <thread>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock::detail {

/// A thread that runs `body`.
///
/// Errors: System if the system does not start one.
template <typename Body>
std::thread start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::System, fmt::format("cannot start a thread: {}", error.what()));
  }
}

}  // namespace penstock::detail
