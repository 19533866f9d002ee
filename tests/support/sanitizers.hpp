#pragma once

#include <string_view>

namespace penstock::test {

/// The sanitizers of this build, "address,undefined" for example. Their shadow memory and their own
/// use of descriptors make some measurements meaningless.
inline constexpr std::string_view kSanitizers = PENSTOCK_TEST_SANITIZERS;

}  // namespace penstock::test
