#include "penstock/core/error.hpp"

namespace penstock {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument: return "InvalidArgument";
    case ErrorCode::Unsupported: return "Unsupported";
    case ErrorCode::NotFound: return "NotFound";
    case ErrorCode::CorruptFile: return "CorruptFile";
    case ErrorCode::OutOfMemory: return "OutOfMemory";
    case ErrorCode::Timeout: return "Timeout";
    case ErrorCode::PeerFailed: return "PeerFailed";
    case ErrorCode::System: return "System";
    case ErrorCode::Internal: return "Internal";
  }
  throw Error(ErrorCode::Internal, "to_string: not an ErrorCode");
}

}  // namespace penstock
