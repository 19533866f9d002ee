#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace penstock {

/// What kind of thing went wrong. Stable: part of the Python and command-line faces.
enum class ErrorCode {
  InvalidArgument,  ///< The caller broke a documented precondition; nothing has been changed.
  Unsupported,      ///< This build or machine cannot do it; the message says what would work.
  NotFound,         ///< A file, tensor or layer that was named does not exist.
  CorruptFile,      ///< A file contradicts its format or another file.
  OutOfMemory,      ///< Memory of some kind is short; the message has the bytes asked for.
  Timeout,          ///< A deadline passed.
  PeerFailed,       ///< Another rank failed or left; the message names it and its first cause.
  System,           ///< The operating system, CUDA, MPI or NCCL refused a call.
  Internal,         ///< A bug of Penstock.
};

/// The enumerator's own name, for example "CorruptFile".
std::string_view to_string(ErrorCode code);

/// A place in the sources. Stands in for `std::source_location`, which clang 14 lacks.
struct CodeLocation {
  const char* file = "";
  int line = 0;

  static constexpr CodeLocation current(const char* file = __builtin_FILE(),
                                        int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// The only exception type that Penstock throws on purpose.
///
/// `what()` has three parts: the function, what was found, what was needed.
/// Example: "gather_rows: out has 3 rows, row_ids has 4".
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, CodeLocation location = CodeLocation::current())
      : std::runtime_error(message),
        code_(code),
        location_(location) {}

  ErrorCode code() const noexcept { return code_; }
  CodeLocation location() const noexcept { return location_; }

 private:
  ErrorCode code_;
  CodeLocation location_;
};

/// Checks a precondition of a public function.
///
/// Errors: InvalidArgument with `message` if `condition` does not hold. Call it before any effect.
inline void expects(bool condition, std::string_view message,
                    CodeLocation location = CodeLocation::current()) {
  if (!condition) throw Error(ErrorCode::InvalidArgument, std::string(message), location);
}

}  // namespace penstock
