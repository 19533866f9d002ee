#pragma once

#include <memory>
#include <string>
#include <vector>

namespace penstock::detail {

/// Finds out whose memory this process can open, by the hand-over that sharing a table needs: a
/// descriptor sent over an abstract AF_UNIX socket. Other namespaces and other users stay out of
/// reach.
///
/// Every rank makes one, all learn each other's name(), then all take the three steps in turn, with
/// a barrier after each. No step waits for anybody.
class SharedMemoryProbe {
 public:
  /// A machine that refuses gives an empty name, and reaches nobody.
  ///
  /// Errors: System for want of descriptors, memory or file size.
  SharedMemoryProbe();
  ~SharedMemoryProbe();
  SharedMemoryProbe(const SharedMemoryProbe&) = delete;
  SharedMemoryProbe& operator=(const SharedMemoryProbe&) = delete;

  /// Where the others find this rank: random, so that no two probes meet by accident.
  const std::string& name() const;

  void connect_to(const std::vector<std::string>& names);  ///< Step 1.
  void serve();                                            ///< Step 2: hands out the descriptor.
  std::vector<bool> collect();                             ///< Step 3: whose content arrived.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::detail
