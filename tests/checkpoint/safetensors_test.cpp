#include "penstock/checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "penstock/core/error.hpp"
#include "support/safetensors_oracle.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::PlainTensor;
using test::TempDir;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

constexpr std::array kEveryDType{DType::Bool,   DType::U8,         DType::U16,    DType::U32,
                                 DType::U64,    DType::I8,         DType::I16,    DType::I32,
                                 DType::I64,    DType::F16,        DType::BF16,   DType::F32,
                                 DType::F64,    DType::C64,        DType::F8E4M3, DType::F8E4M3FNUZ,
                                 DType::F8E5M2, DType::F8E5M2FNUZ, DType::F8E8M0, DType::F6E2M3,
                                 DType::F6E3M2, DType::F4};

/// A random set of tensors with their bytes: names with every kind of character, sizes down to 0.
struct RandomModel {
  std::vector<TensorInfo> infos;
  std::map<std::string, PlainTensor> plain;

  explicit RandomModel(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&random](std::uint64_t end) { return random() % end; };
    constexpr std::array kNames{"a", "w\"eight", "layers.1.\\x", "\xC3\xA9\n", "", "\x01z"};
    const std::size_t count = below(9);
    for (std::size_t i = 0; i < count; ++i) {
      TensorInfo info;
      info.name = std::string(kNames[below(kNames.size())]) + std::to_string(i);
      info.dtype = kEveryDType[below(kEveryDType.size())];
      const std::size_t dimensions = below(4);
      for (std::size_t d = 0; d < dimensions; ++d) {
        info.shape.push_back(static_cast<std::int64_t>(below(7)));
      }
      std::string bytes;
      // A last dimension that makes whole bytes of any type.
      if (element_bits(info.dtype) % 8 != 0) info.shape.push_back(4);
      const auto size =
          static_cast<std::size_t>(info.num_elements() * element_bits(info.dtype) / 8);
      for (std::size_t b = 0; b < size; ++b) bytes += static_cast<char>(random());
      plain[info.name] = {std::string(to_string(info.dtype)), info.shape, bytes};
      infos.push_back(std::move(info));
    }
  }
};

void write_in_pieces(SafetensorsWriter& writer, const RandomModel& model, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string all;
  for (const auto& info : model.infos) all += model.plain.at(info.name).bytes;
  for (std::size_t done = 0; done < all.size();) {
    const std::size_t piece = std::min<std::size_t>(all.size() - done, 1 + random() % 13);
    writer.append(bytes_of(std::string_view(all).substr(done, piece)));
    done += piece;
  }
}

TEST(Safetensors, ReadsWhatWasWritten) {
  const TempDir dir;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model(seed);
    const auto file = dir / "model.safetensors";
    const std::map<std::string, std::string> metadata{{"format", "pt"}, {"q\"", "\n"}};
    SafetensorsWriter writer(file, model.infos, metadata);
    write_in_pieces(writer, model, seed);
    writer.finish();

    EXPECT_EQ(test::read_plain_safetensors(test::read_bytes(file)), model.plain);

    const auto read = SafetensorsFile::open(file);
    EXPECT_EQ(read.metadata(), metadata);
    ASSERT_EQ(read.tensors().size(), model.infos.size());
    std::map<std::string, PlainTensor> seen;
    for (const auto& info : read.tensors()) {
      seen[info.name] = {std::string(to_string(info.dtype)), info.shape, text_of(read.bytes(info))};
      EXPECT_EQ(read.find(info.name), &info);
    }
    EXPECT_EQ(seen, model.plain);
  }
}

TEST(Safetensors, ReadsWhatTheOracleWrote) {
  const TempDir dir;
  for (std::uint64_t seed = 100; seed < 140; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model(seed);
    const auto file = dir.write("m", test::write_plain_safetensors(model.plain));
    const auto read = SafetensorsFile::open(file);
    for (const auto& [name, tensor] : model.plain) {
      const TensorInfo* info = read.find(name);
      ASSERT_NE(info, nullptr);
      EXPECT_EQ(text_of(read.bytes(*info)), tensor.bytes);
    }
    EXPECT_EQ(read.find("no such tensor"), nullptr);
  }
}

std::string three_tensors() {
  return test::write_plain_safetensors({{"a", {"I32", {2, 2}, std::string(16, 'a')}},
                                        {"empty", {"F32", {0, 7}, ""}},
                                        {"scalar", {"BF16", {}, "xy"}},
                                        {"z", {"U8", {1, 5}, "12345"}}});
}

TEST(Safetensors, RefusesEveryShorterAndOneLongerFile) {
  const TempDir dir;
  const std::string whole = three_tensors();
  ASSERT_GT(whole.size(), 200U);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto file = dir.write("cut", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile::open(file), Error) << size;
  }
  EXPECT_THROW(SafetensorsFile::open(dir.write("long", whole + '\0')), Error);
}

TEST(Safetensors, SurvivesEveryOneByteChange) {
  const TempDir dir;
  const std::string whole = three_tensors();
  std::mt19937_64 random(11);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ static_cast<char>(1 + random() % 255));
    const auto file = dir.write("changed", changed);
    try {
      const auto read = SafetensorsFile::open(file);
      for (const auto& info : read.tensors()) EXPECT_EQ(read.bytes(info).size(), info.bytes);
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ErrorCode::CorruptFile);
      EXPECT_THAT(error.what(), testing::StartsWith(file.string()));
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(SafetensorsWriter, LeavesHolesThatReadAsZeros) {
  const TempDir dir;
  const auto file = dir / "sparse.safetensors";
  constexpr std::int64_t kRows = std::int64_t{1} << 28;
  SafetensorsWriter writer(file, {{"big", DType::U8, {kRows, 256}}, {"end", DType::U8, {3}}});
  writer.append_hole(static_cast<std::uint64_t>(kRows) * 256);
  writer.append(bytes_of("abc"));
  writer.finish();

  const auto read = SafetensorsFile::open(file);
  EXPECT_EQ(text_of(read.bytes(*read.find("end"))), "abc");
  EXPECT_EQ(read.bytes(*read.find("big"))[std::size_t{1} << 35], std::byte{0});
}

TEST(SafetensorsWriter, KeepsAHoleAtTheEnd) {
  const TempDir dir;
  const auto file = dir / "m";
  SafetensorsWriter writer(file, {{"a", DType::I32, {5}}});
  writer.append_hole(20);
  writer.finish();
  EXPECT_EQ(text_of(SafetensorsFile::open(file).bytes({"a", DType::I32, {5}, 0, 20})),
            std::string(20, '\0'));
}

TEST(SafetensorsWriter, LeavesNothingBehindUnlessFinished) {
  const TempDir dir;
  {
    SafetensorsWriter writer(dir / "m", {{"a", DType::U8, {4}}});
    writer.append(bytes_of("abc"));
    EXPECT_THROW(writer.finish(), Error);
    EXPECT_THROW(writer.append(bytes_of("de")), Error);
    EXPECT_FALSE(std::filesystem::exists(dir / "m"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsWriter, RefusesBadTensorsBeforeWriting) {
  const TempDir dir;
  const std::vector<std::vector<TensorInfo>> bad{
      {{"a", DType::U8, {1}}, {"a", DType::U8, {1}}},
      {{"__metadata__", DType::U8, {1}}},
      {{"a", DType::U8, {-1}}},
      {{"a", DType::I64, {std::int64_t{1} << 40, std::int64_t{1} << 40}}},
      {{"a", DType::U8, {std::int64_t{1} << 62}}, {"b", DType::U8, {std::int64_t{1} << 62}}},
  };
  for (const auto& tensors : bad) {
    try {
      const SafetensorsWriter writer(dir / "m", tensors);
      ADD_FAILURE() << tensors.front().name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsFile, StaysValidWhenMoved) {
  const TempDir dir;
  const auto file = dir.write("m", test::write_plain_safetensors({{"a", {"U8", {2}, "xy"}}}));
  auto first = SafetensorsFile::open(file);
  const auto second = std::move(first);
  EXPECT_EQ(text_of(second.bytes(*second.find("a"))), "xy");
  EXPECT_EQ(second.path(), file);
}

}  // namespace
}  // namespace penstock
