#include "gate/process_token.hpp"

#include <random>

namespace penstock::detail {

std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return token;
}

}  // namespace penstock::detail
