#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/checkpoint/token_file.hpp"
#include "penstock/checkpoint/tokenizer.hpp"
#include "penstock/core/error.hpp"
#include "support/safetensors_oracle.hpp"
#include "support/temp_dir.hpp"

// Every kind of bad file that a checkpoint can hold. Each is one error that names the file, says
// what is wrong and fits on one line. Bad values of config.json are in model_config_test.cpp.
namespace penstock {
namespace {

using test::safetensors_text;
using test::TempDir;

struct Malformed {
  std::string name;
  std::string file;   ///< Name of the file that is to blame.
  std::string bytes;  ///< What it holds.
  ErrorCode code = ErrorCode::CorruptFile;
  std::string message;  ///< A piece of it.
  std::function<void(const std::filesystem::path&)> read;
};

void PrintTo(const Malformed& item, std::ostream* out) {
  *out << item.name;
}

void read_safetensors(const std::filesystem::path& file) {
  SafetensorsFile::open(file);
}

/// A file with this header and eight bytes of data.
Malformed header(std::string name, std::string_view json, std::string message) {
  return {std::move(name),        "m.safetensors",    safetensors_text(json, "01234567"),
          ErrorCode::CorruptFile, std::move(message), read_safetensors};
}

Malformed safetensors(std::string name, std::string bytes, std::string message) {
  return {std::move(name),        "m.safetensors",    std::move(bytes),
          ErrorCode::CorruptFile, std::move(message), read_safetensors};
}

std::string length_only(std::uint64_t length, std::string_view rest = "{}") {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
  return bytes.append(rest);
}

std::vector<Malformed> malformed_safetensors() {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  return {
      safetensors("empty_file", "", "0 bytes, needed: at least 8"),
      safetensors("cut_in_length", "1234567", "7 bytes, needed: at least 8"),
      safetensors("length_past_file", length_only(100), "length is 100 bytes, but only 2 follow"),
      safetensors("length_over_limit", length_only(100'000'001), "needed: at most 100000000"),
      safetensors("length_all_ones", length_only(kMax), "length is 18446744073709551615 bytes"),
      safetensors("empty_header", length_only(0), "does not begin with '{'"),
      header("not_an_object", "[]", "does not begin with '{'"),
      header("leading_space", " {}", "does not begin with '{'"),
      header("not_json", "{oops}", "not valid JSON at byte 2 of 6"),
      header("cut_json", R"({"a":{"dtype":"U8")", "not valid JSON"),
      header("text_after_json", R"({} {})", "not valid JSON"),
      header("bad_utf8", "{\"\xff\":1}", "not valid JSON"),
      header("equal_names", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                               "a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
             "key \"a\" stands twice"),
      header("equal_keys", R"({"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})",
             "key \"dtype\" stands twice"),
      header("nested_too_deep", R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}",
             "nested deeper than 64"),
      header("entry_is_a_list", R"({"a":[]})", "tensor \"a\": is [], needed: an object"),
      header("no_dtype", R"({"a":{"shape":[8],"data_offsets":[0,8]}})", "no \"dtype\""),
      header("no_shape", R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", "no \"shape\""),
      header("no_offsets", R"({"a":{"dtype":"U8","shape":[8]}})", "no \"data_offsets\""),
      header("unknown_dtype", R"({"a":{"dtype":"U9","shape":[8],"data_offsets":[0,8]}})",
             "dtype is \"U9\", needed"),
      header("dtype_is_a_number", R"({"a":{"dtype":8,"shape":[8],"data_offsets":[0,8]}})",
             "dtype is 8, needed"),
      header("shape_is_a_number", R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})",
             "shape is 8, needed: a list"),
      header("negative_size", R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})",
             "shape holds -8"),
      header("fractional_size", R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})",
             "shape holds 8.0"),
      header("size_past_int64",
             R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})",
             "shape holds 9223372036854775808"),
      header("product_past_64_bits",
             R"({"a":{"dtype":"I64","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
             "needed: whole bytes below 2^61"),
      header("product_wraps_to_fit",  // 8 * 2^61 * 8 + 8 would be 8 modulo 2^64
             R"({"a":{"dtype":"I64","shape":[2305843009213693953,8],"data_offsets":[0,64]}})",
             "needed: whole bytes below 2^61"),
      header("half_a_byte", R"({"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}})",
             "needed: whole bytes below 2^61"),
      header("three_offsets", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})",
             "data_offsets is [0,8,8], needed: [begin, end]"),
      header("offsets_backwards", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})",
             "data_offsets [8, 0] run backwards"),
      header("negative_offset", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}})",
             "data_offsets holds -8"),
      header("number_out_of_range", R"({"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,8]}})",
             "a JSON number is out of range"),
      header("too_many_bytes_for_shape", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}})",
             "data_offsets span 8 bytes, needed: 7 for U8 [7]"),
      header("too_few_bytes_for_shape",
             R"({"a":{"dtype":"I32","shape":[2,2],"data_offsets":[0,8]}})",
             "data_offsets span 8 bytes, needed: 16 for I32 [2, 2]"),
      header("hole_at_start", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})",
             "tensor \"a\" begins at byte 1, needed: 0"),
      header("hole_between", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
                                "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
             "tensor \"b\" begins at byte 4, needed: 3"),
      header("overlap", R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},
                           "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
             "tensor \"b\" begins at byte 4, needed: 5"),
      header("past_the_end", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})",
             "ends at byte 9, but only 8 bytes"),
      header("bytes_after_the_last", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})",
             "8 bytes of data follow the header, but the tensors cover only 7"),
      header("no_tensors_but_data", "{}", "cover only 0"),
      header("metadata_is_a_list", R"({"__metadata__":[]})", "__metadata__ is not an object"),
      header("metadata_holds_a_number", R"({"__metadata__":{"format":1}})",
             "__metadata__ \"format\" is 1, needed: a string"),
      header("control_characters_in_a_name", R"({"a\nb\u0000":{}})", "tensor \"a\\nb\\u0000\": no"),
  };
}

/// A model directory whose index is `json`, asked for tensor "t".
Malformed index(std::string name, std::string_view json, std::string message,
                std::string file = "model.safetensors.index.json",
                ErrorCode code = ErrorCode::CorruptFile) {
  const auto read = [json = std::string(json)](const std::filesystem::path& blamed) {
    const auto dir = blamed.parent_path();
    std::ofstream(dir / "config.json") << "{}";
    std::ofstream(dir / "model.safetensors.index.json") << json;
    (void)ModelDir::open(dir).find("t");
  };
  return {std::move(name), std::move(file), {}, code, std::move(message), read};
}

std::vector<Malformed> malformed_indexes() {
  return {
      index("index_not_json", "{", "not valid JSON at byte 2 of 1"),
      index("index_is_a_list", "[]", "no weight_map"),
      index("index_without_map", "{}", "no weight_map"),
      index("index_map_is_a_list", R"({"weight_map":[]})", "no weight_map"),
      index("index_tensor_twice", R"({"weight_map":{"t":"a","t":"b"}})", "key \"t\" stands twice"),
      index("index_file_is_a_number", R"({"weight_map":{"t":1}})",
            "tensor \"t\" lies in 1, needed"),
      index("index_file_is_empty", R"({"weight_map":{"t":""}})", "lies in \"\", needed"),
      index("index_file_is_absolute", R"({"weight_map":{"t":"/etc/passwd"}})", "\"/etc/passwd\""),
      index("index_file_climbs", R"({"weight_map":{"t":"a/../../b"}})",
            "a plain relative file name"),
      index("index_file_is_a_folder", R"({"weight_map":{"t":"a/"}})", "a plain relative file name"),
      index("index_file_has_a_zero", R"({"weight_map":{"t":"a\u0000b"}})", "a plain relative"),
      index("index_names_missing_file", R"({"weight_map":{"t":"gone"}})", "needed for tensor \"t\"",
            "gone", ErrorCode::NotFound),
      index("index_names_itself", R"({"weight_map":{"t":"model.safetensors.index.json"}})",
            "length is"),
  };
}

Malformed tokenizer(std::string name, std::string bytes, std::string message,
                    ErrorCode code = ErrorCode::CorruptFile, std::string file = "tokenizer.json") {
  return {std::move(name),    std::move(file),
          std::move(bytes),   code,
          std::move(message), [](const auto& path) { load_tokenizer(path); }};
}

/// A tokenizer with this vocabulary and these added tokens.
Malformed vocabulary(std::string name, std::string_view vocab, std::string_view added,
                     std::string message) {
  return tokenizer(std::move(name),
                   R"({"added_tokens":)" + std::string(added) +
                       R"(,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)" +
                       std::string(vocab) + "}}",
                   std::move(message));
}

std::vector<Malformed> malformed_tokenizers() {
  return {
      tokenizer("tokenizer_empty", "", "not valid JSON"),
      tokenizer("tokenizer_cut", R"({"model":{"type":"BPE","vocab":{"a":0)", "not valid JSON"),
      tokenizer("tokenizer_is_a_list", "[]", "the file is a list, needed: an object"),
      tokenizer("tokenizer_without_model", "{}", "model.type is \"\""),
      tokenizer("tokenizer_unigram", R"({"model":{"type":"Unigram","vocab":{"a":0}}})",
                "model.type is \"Unigram\""),
      tokenizer("tokenizer_not_byte_level", R"({"model":{"type":"BPE","vocab":{"a":0}}})",
                "without a ByteLevel decoder"),
      tokenizer("tokenizer_byte_fallback",
                R"({"decoder":{"type":"ByteLevel"},
                    "model":{"type":"BPE","byte_fallback":true,"vocab":{"a":0}}})",
                "with byte_fallback"),
      tokenizer("tokenizer_model_twice", R"({"model":{},"model":{}})",
                "key \"model\" stands twice"),
      tokenizer("tokenizer_too_deep", R"({"x":)" + std::string(100'000, '['),
                "nested deeper than 64"),
      tokenizer("tokenizer_not_xz", "{}", "not a whole xz file", ErrorCode::CorruptFile,
                "tokenizer.json.xz"),
      vocabulary("vocab_is_a_list", R"([["a",0]])", "[]", "\"vocab\" is a list, needed: an object"),
      vocabulary("vocab_is_empty", "{}", "[]", "no tokens"),
      vocabulary("vocab_id_is_text", R"({"a":"0"})", "[]", "\"a\" is a string, needed"),
      vocabulary("vocab_id_is_negative", R"({"a":-1})", "[]", "\"a\" is another value, needed"),
      vocabulary("vocab_id_is_fractional", R"({"a":0.5})", "[]", "\"a\" is another value, needed"),
      vocabulary("vocab_id_is_huge", R"({"a":0,"b":18446744073709551615})", "[]",
                 "id 1 has no token"),
      vocabulary("vocab_id_missing", R"({"a":0,"b":2,"c":3})", "[]", "id 1 has no token"),
      vocabulary("vocab_id_twice", R"({"a":0,"b":0})", "[]", "id 0 has two tokens"),
      vocabulary("vocab_token_twice", R"({"a":0,"a":1})", "[]", "token \"a\" has two entries"),
      vocabulary("vocab_token_twice_with_one_id", R"({"a":0,"a":0})", "[]",
                 "token \"a\" has two entries"),
      vocabulary("added_token_twice", R"({"a":0})",
                 R"([{"id":1,"content":"b"},{"id":1,"content":"b"}])",
                 "token \"b\" has two entries"),
      vocabulary("added_is_an_object", R"({"a":0})", "{}", "\"added_tokens\" is an object"),
      vocabulary("added_holds_text", R"({"a":0})", R"(["b"])",
                 "an element of added_tokens is a string"),
      vocabulary("added_without_id", R"({"a":0})", R"([{"content":"b"}])",
                 "has no id or no content"),
      vocabulary("added_without_content", R"({"a":0})", R"([{"id":1}])", "has no id or no content"),
      vocabulary("added_content_is_null", R"({"a":0})", R"([{"id":1,"content":null}])",
                 "\"content\" is another value, needed: a string"),
      vocabulary("added_id_is_text", R"({"a":0})", R"([{"id":"1","content":"b"}])",
                 "\"id\" is a string"),
      vocabulary("added_takes_an_id", R"({"a":0})", R"([{"id":0,"content":"b"}])",
                 "id 0 has two tokens"),
      vocabulary("added_moves_a_token", R"({"a":0})", R"([{"id":1,"content":"a"}])",
                 "token \"a\" has two entries, with ids 1 and 0"),
      vocabulary("added_leaves_a_hole", R"({"a":0})", R"([{"id":2,"content":"b"}])",
                 "id 1 has no token"),
  };
}

Malformed tokens(std::string name, std::string file, std::string bytes, std::string message,
                 ErrorCode code = ErrorCode::CorruptFile,
                 std::optional<std::string> tensor = std::nullopt) {
  return {std::move(name),    std::move(file),
          std::move(bytes),   code,
          std::move(message), [tensor](const auto& path) { load_token_file(path, tensor); }};
}

std::vector<Malformed> malformed_token_files() {
  const std::string two(8, '\0');
  const std::string negative("\x01\0\0\0\xff\xff\xff\xff", 8);
  const auto file = [](std::map<std::string, test::PlainTensor> tensors) {
    return test::write_plain_safetensors(tensors);
  };
  const std::string several = file({{"en", {"I32", {2}, two}}, {"zh", {"I32", {2}, two}}});
  return {
      tokens("raw_empty", "t.bin", "", "0 bytes, needed: a positive multiple of 4"),
      tokens("raw_cut", "t.bin", "1234567", "7 bytes, needed: a positive multiple of 4"),
      tokens("raw_negative", "t.bin", negative, "the token id at [1] is -1, needed"),
      tokens("json_object", "t.json", R"({"ids":[1]})", "needed: a list of token ids"),
      tokens("json_empty_list", "t.json", "[]", "[], needed: a list of token ids"),
      tokens("json_empty_request", "t.json", "[[1],[]]", "a request without token ids"),
      tokens("json_negative", "t.json", "[1,-2]", "the token id at [1] is -2, needed"),
      tokens("json_past_int32", "t.json", "[[1],[2,2147483648]]",
             "the token id at [1][1] is 2147483648"),
      tokens("json_fraction", "t.json", "[1.5]", "the token id at [0] is 1.5"),
      tokens("json_text", "t.json", R"(["a"])", "the token id at [0] is \"a\""),
      tokens("json_mixed", "t.json", "[[1],2]", "[1] is 2, needed: a list, as [0] is one"),
      tokens("json_mixed_other_way", "t.json", "[2,[1]]", "the token id at [1] is [1]"),
      tokens("json_cut", "t.json", "[1,", "not valid JSON"),
      tokens("json_with_tensor", "t.json", "[1]", "no tensor \"en\" can be chosen",
             ErrorCode::InvalidArgument, "en"),
      tokens("tensor_not_chosen", "t.safetensors", several,
             "needed: the name of one of \"en\", \"zh\"", ErrorCode::InvalidArgument),
      tokens("tensor_unknown", "t.safetensors", several, "no tensor \"de\", needed: one of \"en\"",
             ErrorCode::NotFound, "de"),
      tokens("tensor_missing", "t.safetensors", file({}), "no tensors, needed"),
      tokens("tensor_of_floats", "t.safetensors", file({{"x", {"F32", {2}, two}}}),
             "F32 [2], needed: I32 or I64"),
      tokens("tensor_of_three_dimensions", "t.safetensors", file({{"x", {"I32", {1, 1, 2}, two}}}),
             "I32 [1, 1, 2], needed"),
      tokens("tensor_scalar", "t.safetensors", file({{"x", {"I64", {}, two}}}), "I64 [], needed"),
      tokens("tensor_empty", "t.safetensors", file({{"x", {"I32", {3, 0}, ""}}}), "no token ids"),
      tokens("tensor_negative", "t.safetensors", file({{"x", {"I32", {1, 2}, negative}}}),
             "the token id at [1] is -1"),
      tokens("tensor_past_int32", "t.safetensors",
             file({{"x", {"I64", {1}, std::string("\0\0\0\x80\0\0\0\0", 8)}}}),
             "the token id at [0] is 2147483648"),
  };
}

class MalformedFile : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedFile, IsOneErrorThatNamesIt) {
  const Malformed& item = GetParam();
  const TempDir dir;
  if (!item.bytes.empty() || item.code != ErrorCode::NotFound) dir.write(item.file, item.bytes);
  try {
    item.read(dir / item.file);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(item.code)) << error.what();
    EXPECT_THAT(error.what(), testing::StartsWith((dir / item.file).string()));
    EXPECT_THAT(error.what(), testing::HasSubstr(item.message));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
}

std::string name_of(const testing::TestParamInfo<Malformed>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Safetensors, MalformedFile, testing::ValuesIn(malformed_safetensors()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Index, MalformedFile, testing::ValuesIn(malformed_indexes()), name_of);
INSTANTIATE_TEST_SUITE_P(Tokenizer, MalformedFile, testing::ValuesIn(malformed_tokenizers()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Tokens, MalformedFile, testing::ValuesIn(malformed_token_files()),
                         name_of);

TEST(MissingFile, IsNotFound) {
  const TempDir dir;
  const std::vector<std::function<void()>> reads{
      [&dir] { SafetensorsFile::open(dir / "gone"); }, [&dir] { load_tokenizer(dir / "gone"); },
      [&dir] { load_token_file(dir / "gone"); }, [&dir] { load_model_config(dir / "gone"); }};
  for (const auto& read : reads) {
    try {
      read();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::NotFound);
      EXPECT_THAT(error.what(), testing::StartsWith((dir / "gone").string()));
    }
  }
}

TEST(FolderInPlaceOfAFile, IsRefused) {
  const TempDir dir;
  EXPECT_THROW(SafetensorsFile::open(dir.path()), Error);
  EXPECT_THROW(load_token_file(dir.path()), Error);
}

}  // namespace
}  // namespace penstock
