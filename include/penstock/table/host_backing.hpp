#pragma once

#include <optional>
#include <string_view>

namespace penstock {

/// What the memory of placement `host_shared` is made of. One word each in C++, Python, the command
/// line and JSON. `docs/operations.md` tells how to choose.
enum class HostBacking {
  Auto,     ///< The best that all ranks can have. From 256 MiB on a GPU, the creator measures.
  CuMem,    ///< Pinned by the CUDA driver on the GPU's NUMA node, handed over by descriptor.
  Hugetlb,  ///< A memfd of 2 MiB pages, out of the pool that the machine has reserved.
  Memfd,    ///< A memfd of ordinary pages; huge ones where the kernel gives them to shared memory.
};

/// "auto", "cumem", "hugetlb" or "memfd".
std::string_view to_string(HostBacking backing);

/// The inverse; nothing for another word.
std::optional<HostBacking> parse_host_backing(std::string_view word);

}  // namespace penstock
