#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace penstock::test {

/// A directory that lives for one test.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstock_cli_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }

  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path_ / name, std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path_;
};

inline std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// Runs the command as a shell would: `words` follow the program's name, `environment` precedes it.
inline CommandResult run_penstock(const std::string& words, const std::string& environment = {}) {
  const ScratchDirectory scratch;
  const std::string out = (scratch.path() / "out").string();
  const std::string err = (scratch.path() / "err").string();
  const std::string line =
      environment + " '" PENSTOCK_BINARY "' " + words + " >'" + out + "' 2>'" + err + "'";
  const int status = std::system(line.c_str());  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, scratch.read("out"), scratch.read("err")};
}

}  // namespace penstock::test
