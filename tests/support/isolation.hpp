#pragma once

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

// A corner of the machine for one test: what is found in it afterwards was left by what ran in it.
namespace penstock::test {

/// Turns on the loopback device of a new network, which mpirun needs.
inline bool raise_loopback() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool is_up = ::ioctl(socket, SIOCSIFFLAGS, &request) == 0;
  ::close(socket);
  return is_up;
}

/// Gives the calling process a network and a /dev/shm of its own, and the orphans of its children.
/// False without the right to do so; then others are seen too, and only names that nobody else uses
/// can be told apart.
inline bool isolate_process() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) return false;
  return raise_loopback() && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", "/dev/shm", "tmpfs", 0, "size=512m") == 0;
}

/// Files in /dev/shm and in `folder`, and AF_UNIX sockets with a name, that are Penstock's.
inline std::vector<std::string> leftovers(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().string();
    if (name.find("penstock") != std::string::npos) found.push_back(name);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    found.push_back(entry.path().string());
  }
  std::ifstream sockets("/proc/self/net/unix");
  std::string line;
  while (std::getline(sockets, line)) {
    if (line.find("penstock") != std::string::npos) found.push_back(line);
  }
  return found;
}

/// Whether every process that came from this one is gone, at the latest after `patience`.
inline bool has_no_children(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid < 0 && errno == ECHILD) return true;
    if (pid == 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace penstock::test
