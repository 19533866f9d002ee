#include "penstock/engram/token_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock {

TokenMap::TokenMap(std::vector<std::int32_t> ids) : ids_(std::move(ids)) {
  expects(!ids_.empty(), "TokenMap: found no ids, needed: at least one");
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] < 0 || ids_[i] == std::numeric_limits<std::int32_t>::max()) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("TokenMap: ids[{}] is {}, needed: 0 to 2^31 - 2", i, ids_[i]));
    }
    size_ = std::max(size_, ids_[i] + 1);
  }
}

TokenMap TokenMap::identity(std::int32_t size) {
  expects(size >= 1, fmt::format("TokenMap::identity: found size {}, needed: at least 1", size));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  TokenMap map(std::move(ids));
  map.provenance_ = "identity";
  return map;
}

}  // namespace penstock
