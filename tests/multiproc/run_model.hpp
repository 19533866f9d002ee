#pragma once

#include <string>
#include <vector>

#include "support/temp_dir.hpp"
#include "support/timed_command.hpp"

namespace penstock::test {

/// The options that make a model of a few megabytes.
inline const std::vector<std::string>& small_model_words() {
  static const std::vector<std::string> words{
      "--engram-vocab-size",     "499", "--hidden", "64", "--vocab-size", "500", "--bf16",
      "--compressed-vocab-size", "500"};
  return words;
}

/// A model of a few megabytes and some tokens, for tests of `penstock run`.
class RunModel {
 public:
  explicit RunModel(const std::vector<std::string>& model_words = small_model_words()) {
    std::vector<std::string> words{PENSTOCK_BINARY, "make-model", model()};
    words.insert(words.end(), model_words.begin(), model_words.end());
    const TimedResult made = run_timed({.argv = words});
    if (made.exit_code != 0) throw std::runtime_error("make-model: " + made.text());
    std::string ids = "[[";
    for (int i = 0; i < 14; ++i) ids += std::to_string(i * 37 % 500) + ",";
    scratch_.write("tokens.json", ids + "1],[5],[7,7,7,7],[9,8]]");
    std::filesystem::create_directory(temporary());
  }

  std::string model() const { return (scratch_.path() / "model").string(); }
  std::string tokens() const { return (scratch_.path() / "tokens.json").string(); }
  /// Another token file; gives its path.
  std::string write(const std::string& ids) const {
    return scratch_.write("other.json", ids).string();
  }
  /// Where the command may put temporary files.
  std::filesystem::path temporary() const { return scratch_.path() / "tmp"; }

  /// The command line, and a folder for temporary files.
  TimedCommand command(const std::vector<std::string>& words) const {
    TimedCommand command;
    command.argv = {PENSTOCK_BINARY, "run",      model(),    "--tokens", tokens(),
                    "--token-map",   "identity", "--decode", "2"};
    command.argv.insert(command.argv.end(), words.begin(), words.end());
    command.environment = {{"TMPDIR", temporary().string()}, {"OMP_NUM_THREADS", "1"}};
    return command;
  }

 private:
  TempDir scratch_;
};

}  // namespace penstock::test
