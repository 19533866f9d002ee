#pragma once

#include <optional>
#include <string_view>

namespace penstock {

/// Where the rows of a shard live. One word each in C++, Python, the command line and JSON.
enum class Placement {
  Auto,        ///< CUDA: device if it fits, else host_shared. CPU: host_shared.
  Device,      ///< This GPU's memory.
  Peer,        ///< Spread over the GPUs of a node; each reads the others' rows over NVLink.
  Host,        ///< This process's memory, pinned when a GPU reads it.
  HostShared,  ///< One copy per node, read-only after loading.
  File,        ///< The checkpoint's own pages.
};

/// "auto", "device", "peer", "host", "host_shared" or "file".
std::string_view to_string(Placement placement);

/// The inverse; nothing for another word.
std::optional<Placement> parse_placement(std::string_view word);

}  // namespace penstock
