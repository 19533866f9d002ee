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

/// A safetensors file of the model with this header and eight bytes of data.
BadInput header(std::string name, std::string json, std::string message) {
  return {"header_" + std::move(name),
          "run @/m --device cpu --token-map identity --tokens @/t.json",
          "model.safetensors: " + std::move(message),
          [json = std::move(json)](const Workspace& workspace) {
            std::string length(8, '\0');
            length[0] = static_cast<char>(json.size());
            workspace.write("t.json", "[1, 2, 3]");
            workspace.write("m/model.safetensors", length + json + "01234567");
          }};
}

BadInput file(std::string name, std::string words, std::string file_name, std::string text,
              std::string message) {
  return {std::move(name), std::move(words), std::move(message),
          [file_name = std::move(file_name), text = std::move(text)](const Workspace& workspace) {
            workspace.write(file_name, text);
          }};
}

BadInput config(std::string name, std::string json, std::string message) {
  return file("config_" + std::move(name), "inspect @/m", "m/config.json", std::move(json),
              "config.json: " + std::move(message));
}

BadInput index(std::string name, std::string json, std::string message) {
  return file("index_" + std::move(name), "inspect @/m", "m/model.safetensors.index.json",
              std::move(json), "model.safetensors.index.json: " + std::move(message));
}

BadInput tokenizer(std::string name, std::string json, std::string message) {
  return file("tokenizer_" + std::move(name), "make-model @/new --tokenizer @/t.json", "t.json",
              std::move(json), "t.json: " + std::move(message));
}

BadInput tokens(std::string name, std::string file_name, std::string text, std::string message) {
  return file("tokens_" + std::move(name),
              "run @/m --device cpu --token-map identity --tokens @/" + file_name, file_name,
              std::move(text), file_name + ": " + std::move(message));
}

std::vector<BadInput> malformed_files() {
  const std::string bpe = R"({"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)";
  return {
      header("list", "[]", "the header does not begin with '{'"),
      header("not_json", "{oops}", "not valid JSON at byte 2 of 6"),
      header("tensor_without_dtype", R"({"a":{"shape":[8],"data_offsets":[0,8]}})", "tensor \"a\""),
      header("unknown_dtype", R"({"a":{"dtype":"U9","shape":[8],"data_offsets":[0,8]}})",
             "tensor \"a\": dtype is \"U9\""),
      header("negative_size", R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})",
             "tensor \"a\": shape holds -8"),
      header("offsets_backwards", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})",
             "tensor \"a\": data_offsets [8, 0] run backwards"),
      header("wrong_span", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}})",
             "tensor \"a\": data_offsets span 8 bytes"),
      header("hole", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})",
             "tensor \"a\" begins at byte 1"),
      header("past_the_end", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})",
             "tensor \"a\" ends at byte 9"),
      header("unclaimed_bytes", "{}", "8 bytes of data follow the header"),
      config("list", "[]", ""),
      config("hidden_size_is_text", R"({"hidden_size": "64"})", "hidden_size is"),
      config("hidden_size_is_zero", R"({"hidden_size": 0})", "hidden_size is 0"),
      config("hidden_size_is_huge", R"({"hidden_size": 1e300})", "hidden_size is"),
      config("key_twice", R"({"hidden_size": 64, "hidden_size": 64})",
             "key \"hidden_size\" stands twice"),
      index("cut", "{", "not valid JSON"),
      index("without_map", "{}", "no weight_map"),
      index("absolute_path", R"({"weight_map":{"t":"/etc/passwd"}})", "tensor \"t\" lies in"),
      index("file_is_a_number", R"({"weight_map":{"t":1}})", "tensor \"t\" lies in 1"),
      tokenizer("list", "[]", "the file is a list"),
      tokenizer("without_model", "{}", "model.type is \"\""),
      tokenizer("id_twice", bpe + R"({"a":0,"b":0}}})", "id 0 has two tokens"),
      tokenizer("id_missing", bpe + R"({"a":0,"b":2}}})", "id 1 has no token"),
      tokenizer("negative_id", bpe + R"({"a":-1}}})", "\"a\" is another value"),
      tokenizer("empty", bpe + "{}}}", "model.vocab has no tokens"),
      tokens("object", "t.json", R"({"ids":[1]})", ""),
      tokens("empty_list", "t.json", "[]", "[], needed"),
      tokens("fraction", "t.json", "[1.5]", "the token id at [0] is 1.5"),
      tokens("past_int32", "t.json", "[[1],[2,2147483648]]",
             "the token id at [1][1] is 2147483648"),
      tokens("empty_raw", "t.bin", "", "0 bytes"),
      tokens("cut_safetensors", "t.safetensors", "1234567", "7 bytes"),
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

INSTANTIATE_TEST_SUITE_P(Files, BadInputTest, ::testing::ValuesIn(malformed_files()),
                         [](const auto& item) { return item.param.name; });
INSTANTIATE_TEST_SUITE_P(Commands, BadInputTest, ::testing::ValuesIn(bad_inputs()),
                         [](const auto& item) { return item.param.name; });

}  // namespace
}  // namespace penstock::test
