#include "penstock/table/host_backing.hpp"

#include <array>

#include "penstock/core/error.hpp"

namespace penstock {

std::string_view to_string(HostBacking backing) {
  switch (backing) {
    case HostBacking::Auto: return "auto";
    case HostBacking::CuMem: return "cumem";
    case HostBacking::Hugetlb: return "hugetlb";
    case HostBacking::Memfd: return "memfd";
  }
  throw Error(ErrorCode::Internal, "to_string: not a HostBacking");
}

std::optional<HostBacking> parse_host_backing(std::string_view word) {
  constexpr std::array kBackings{HostBacking::Auto, HostBacking::CuMem, HostBacking::Hugetlb,
                                 HostBacking::Memfd};
  for (const HostBacking backing : kBackings) {
    if (to_string(backing) == word) return backing;
  }
  return std::nullopt;
}

}  // namespace penstock
