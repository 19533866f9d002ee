#pragma once

#include <cerrno>
#include <string>
#include <system_error>

#include "penstock/core/error.hpp"

namespace penstock::detail {

/// "ftruncate: File too large" for the errno that is set now.
inline std::string errno_text(const std::string& call, int number = errno) {
  return call + ": " + std::generic_category().message(number);
}

/// The Error for a system call that failed with the errno that is set now: OutOfMemory where memory
/// or a limit on it is short, System otherwise.
inline Error system_error(const std::string& call,
                          CodeLocation location = CodeLocation::current()) {
  const int number = errno;
  const bool is_memory =
      number == ENOMEM || number == ENOSPC || number == EFBIG || number == EDQUOT;
  return {is_memory ? ErrorCode::OutOfMemory : ErrorCode::System, errno_text(call, number),
          location};
}

}  // namespace penstock::detail
