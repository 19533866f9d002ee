#include "penstock/table/placement.hpp"

#include <array>

#include "penstock/core/error.hpp"

namespace penstock {

std::string_view to_string(Placement placement) {
  switch (placement) {
    case Placement::Auto: return "auto";
    case Placement::Device: return "device";
    case Placement::Peer: return "peer";
    case Placement::Host: return "host";
    case Placement::HostShared: return "host_shared";
    case Placement::File: return "file";
  }
  throw Error(ErrorCode::Internal, "to_string: not a Placement");
}

std::optional<Placement> parse_placement(std::string_view word) {
  constexpr std::array kPlacements{Placement::Auto, Placement::Device,     Placement::Peer,
                                   Placement::Host, Placement::HostShared, Placement::File};
  for (const Placement placement : kPlacements) {
    if (to_string(placement) == word) return placement;
  }
  return std::nullopt;
}

}  // namespace penstock
