#pragma once

#include "penstock/core/error.hpp"

namespace penstock::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitBadInput = 3;
inline constexpr int kExitEnvironment = 4;
inline constexpr int kExitVerificationFailed = 5;
inline constexpr int kExitInternal = 70;

/// The exit status that an error ends the command with.
int exit_code(ErrorCode code);

}  // namespace penstock::cli
