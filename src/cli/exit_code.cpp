#include "cli/exit_code.hpp"

namespace penstock::cli {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
    case ErrorCode::NotFound:
    case ErrorCode::CorruptFile: return kExitBadInput;
    case ErrorCode::Unsupported:
    case ErrorCode::OutOfMemory:
    case ErrorCode::Timeout:
    case ErrorCode::PeerFailed:
    case ErrorCode::System: return kExitEnvironment;
    case ErrorCode::Internal: return kExitInternal;
  }
  return kExitInternal;
}

}  // namespace penstock::cli
