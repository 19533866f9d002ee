#include "penstock/checkpoint/token_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "support/safetensors_oracle.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::TempDir;
using testing::ElementsAre;

template <typename Integer>
std::string bytes_of(const std::vector<Integer>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Integer)};
}

TEST(LoadTokenFile, ReadsOneRequestFromAOneDimensionalTensor) {
  const TempDir dir;
  const auto bytes = bytes_of<std::int32_t>({0, 5, std::numeric_limits<std::int32_t>::max()});
  const auto file =
      dir.write("t.safetensors", test::write_plain_safetensors({{"en", {"I32", {3}, bytes}}}));
  const auto tokens = load_token_file(file);
  EXPECT_THAT(tokens.requests, ElementsAre(ElementsAre(0, 5, 2147483647)));
  EXPECT_EQ(tokens.tensor, "en");
  EXPECT_EQ(tokens.num_tokens(), 3);
}

TEST(LoadTokenFile, ReadsOneRequestPerRowOfInt64) {
  const TempDir dir;
  const auto bytes = bytes_of<std::int64_t>({1, 2, 3, 4, 5, 6});
  const auto file =
      dir.write("t.safetensors", test::write_plain_safetensors({{"x", {"I64", {3, 2}, bytes}}}));
  EXPECT_THAT(load_token_file(file).requests,
              ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4), ElementsAre(5, 6)));
}

TEST(LoadTokenFile, ReadsTheTensorThatWasChosen) {
  const TempDir dir;
  // The odd tensor before it leaves "zh" unaligned.
  const auto file = dir.write(
      "t.safetensors", test::write_plain_safetensors(
                           {{"a", {"U8", {1}, "."}}, {"zh", {"I32", {2}, bytes_of<int>({7, 8})}}}));
  EXPECT_THAT(load_token_file(file, "zh").requests, ElementsAre(ElementsAre(7, 8)));
}

TEST(LoadTokenFile, ReadsJsonLists) {
  const TempDir dir;
  EXPECT_THAT(load_token_file(dir.write("a.json", "[1, 2, 3]")).requests,
              ElementsAre(ElementsAre(1, 2, 3)));
  EXPECT_THAT(load_token_file(dir.write("b.json", " [[1], [2, 3]]\n")).requests,
              ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
}

TEST(LoadTokenFile, ReadsRawInt32) {
  const TempDir dir;
  EXPECT_THAT(load_token_file(dir.write("t.bin", bytes_of<int>({1, 70'000}))).requests,
              ElementsAre(ElementsAre(1, 70'000)));
}

TEST(LoadTokenFile, KnowsFormatsByContentWhereTheNameSaysNothing) {
  const TempDir dir;
  // 91 is '[', which JSON lists begin with too.
  EXPECT_THAT(load_token_file(dir.write("raw", bytes_of<int>({91, 2}))).requests,
              ElementsAre(ElementsAre(91, 2)));
  EXPECT_THAT(load_token_file(dir.write("json.txt", "\n[4]")).requests,
              ElementsAre(ElementsAre(4)));
  const auto file =
      dir.write("blob", test::write_plain_safetensors({{"x", {"I32", {1}, bytes_of<int>({6})}}}));
  EXPECT_THAT(load_token_file(file).requests, ElementsAre(ElementsAre(6)));
}

}  // namespace
}  // namespace penstock
