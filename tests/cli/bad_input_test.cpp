#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/run_penstock.hpp"

// What the command does with bad files: exit code 3, nothing on stdout, and as the last line on
// stderr an error that names the file.
namespace penstock::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// A small consistent model; spoiled by each case in its own way.
class Workspace {
 public:
  Workspace() {
    const auto made = run_penstock("make-model " + model() +
                                   " --engram-vocab-size 101 --hidden 64 --heads 2 --max-ngram 3"
                                   " --head-dim 64 --layers 1 --vocab-size 200"
                                   " --compressed-vocab-size 200 --single-file");
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }

  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }
  std::string model() const { return path("m"); }
  void write(const std::string& name, const std::string& text) const { dir_.write(name, text); }

  void cut(const std::string& name, std::uintmax_t bytes) const {
    std::filesystem::resize_file(path(name), bytes);
  }

 private:
  ScratchDirectory dir_;
};

struct BadInput {
  std::string name;
  std::string words;    ///< Command line; `@` stands for the workspace.
  std::string message;  ///< A piece of the last line of stderr.
  std::function<void(const Workspace&)> spoil;
};

void PrintTo(const BadInput& item, std::ostream* out) {
  *out << item.name;
}

std::string with_workspace(std::string words, const Workspace& workspace) {
  for (std::size_t at = 0; (at = words.find('@')) != std::string::npos;) {
    words.replace(at, 1, workspace.path("."));
  }
  return words;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::vector<BadInput> bad_inputs() {
  const auto write = [](std::string name, std::string text) {
    return [=](const Workspace& workspace) { workspace.write(name, text); };
  };
  const std::string run = "run @/m --device cpu --token-map identity --tokens @/";
  return {
      {"inspect_nowhere", "inspect @/gone", "gone: ", write("x", "")},
      {"inspect_without_config", "inspect @", "config.json: ", write("x", "")},
      {"inspect_cut_config", "inspect @/m", "config.json: not valid JSON",
       write("m/config.json", "{")},
      {"inspect_absurd_config", "inspect @/m --json", "hidden_size is -1",
       write("m/config.json", R"({"hidden_size": -1})")},
      {"inspect_bad_index", "inspect @/m", "without \"..\"",
       write("m/model.safetensors.index.json", R"({"weight_map": {"a": "../b"}})")},
      {"run_cut_model", run + "t.json", "model.safetensors: ",
       [](const Workspace& workspace) {
         workspace.write("t.json", "[1, 2, 3]");
         workspace.cut("m/model.safetensors", 4096);
       }},
      {"run_lying_length", run + "t.json", "model.safetensors: the header's length is",
       [](const Workspace& workspace) {
         workspace.write("t.json", "[1, 2, 3]");
         workspace.write("m/model.safetensors", std::string(8, '\xff') + "{}");
       }},
      {"run_no_tokens", run + "gone.json", "gone.json: ", write("x", "")},
      {"run_negative_token", run + "t.json", "t.json: the token id at [1] is -2",
       write("t.json", "[1, -2]")},
      {"run_cut_raw_tokens", run + "t.bin", "t.bin: 3 bytes", write("t.bin", "abc")},
      {"run_token_past_vocabulary", run + "t.json", "100000", write("t.json", "[1, 100000]")},
      {"hash_cut_config", "hash @/c.json --batch @/b.json", "c.json: not valid JSON",
       [](const Workspace& workspace) {
         workspace.write("c.json", "{");
         workspace.write("b.json", "{}");
       }},
      {"hash_cut_batch", "hash @/m/config.json --batch @/b.json", "b.json", write("b.json", "{")},
      {"make_model_bad_tokenizer", "make-model @/new --tokenizer @/t.json",
       "t.json: not valid JSON", write("t.json", "{")},
      {"make_model_tokenizer_of_another_kind", "make-model @/new --tokenizer @/t.json",
       "model.type is \"Unigram\"", write("t.json", R"({"model": {"type": "Unigram"}})")},
      {"make_model_in_a_full_directory", "make-model @/m", "m", write("x", "")},
      {"check_cut_document", "check @/d.json", "d.json", write("d.json", "{")},
  };
}

class BadInputTest : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadInputTest, IsOneErrorAndNoOutput) {
  const Workspace workspace;
  GetParam().spoil(workspace);
  const auto result = run_penstock(with_workspace(GetParam().words, workspace));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(last_line(result.err), StartsWith("penstock: error: "));
  EXPECT_THAT(last_line(result.err), HasSubstr(GetParam().message));
  EXPECT_FALSE(std::filesystem::exists(workspace.path("new"))) << "a model in spite of the error";
}

INSTANTIATE_TEST_SUITE_P(Commands, BadInputTest, ::testing::ValuesIn(bad_inputs()),
                         [](const auto& item) { return item.param.name; });

}  // namespace
}  // namespace penstock::test
