#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "reader/direct/dequantize_row.hpp"
#include "support/table_oracle.hpp"

namespace penstock {
namespace {

constexpr int kHeadDim = 256;
constexpr int kScales = kHeadDim / 32;

/// Row r has every code in order, under the scale byte r.
struct AllPairs {
  std::vector<std::byte> values, scales;

  AllPairs() {
    for (int row = 0; row < 256; ++row) {
      for (int code = 0; code < 256; ++code) values.push_back(static_cast<std::byte>(code));
      scales.insert(scales.end(), kScales, static_cast<std::byte>(row));
    }
  }
};

std::vector<std::uint16_t> dequantize(const std::vector<std::byte>& values,
                                      const std::vector<std::byte>& scales, int head_dim) {
  std::vector<std::uint16_t> out(values.size());
  dequantize_rows(values, scales, head_dim, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(DequantizeRows, AgreesWithTheDefinitionForAllPairsOfCodeAndScale) {
  const AllPairs pairs;
  const auto out = dequantize(pairs.values, pairs.scales, kHeadDim);
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 256; ++code) {
      ASSERT_EQ(
          out[static_cast<std::size_t>(scale * 256 + code)],
          oracle::dequantize(static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(scale)))
          << "code " << code << ", scale " << scale;
    }
  }
}

TEST(DequantizeRows, EveryProcessorsCodeGivesTheSameBits) {
  const AllPairs pairs;
  const auto expected = dequantize(pairs.values, pairs.scales, kHeadDim);
  for (const auto& kernel : detail::dequantize_kernels()) {
    std::vector<std::uint16_t> out(expected.size());
    kernel.run(pairs.values.data(), pairs.scales.data(), 256 * kScales,
               std::as_writable_bytes(std::span(out)).data());
    EXPECT_EQ(out, expected) << kernel.name;
  }
}

TEST(DequantizeRows, AgreesWithGoldenCases) {
  std::ifstream file(PENSTOCK_TEST_DATA "/golden/dequant.json");
  const auto golden = nlohmann::json::parse(file);
  const AllPairs pairs;
  const auto out = dequantize(pairs.values, pairs.scales, kHeadDim);
  ASSERT_EQ(golden["scale_bytes"].size(), golden["bits"].size());
  for (std::size_t i = 0; i < golden["scale_bytes"].size(); ++i) {
    const int scale = golden["scale_bytes"][i];
    for (std::size_t code = 0; code < 256; ++code) {
      ASSERT_EQ(out[static_cast<std::size_t>(scale) * 256 + code], golden["bits"][i][code])
          << "code " << code << ", scale " << scale;
    }
  }
}

TEST(DequantizeRows, UsesTheScaleOfEachBlockOf32) {
  const int head_dim = 96;
  const std::vector<std::byte> values(96, std::byte{0x38});  // 1.0
  const std::vector<std::byte> scales{std::byte{127}, std::byte{128}, std::byte{0}};
  const auto out = dequantize(values, scales, head_dim);
  EXPECT_EQ(out[31], 0x3F80);
  EXPECT_EQ(out[32], 0x4000);
  EXPECT_EQ(out[63], 0x4000);
  EXPECT_EQ(out[64], 0);
}

TEST(DequantizeRows, WritesToAnyAddress) {
  const AllPairs pairs;
  const auto expected = dequantize(pairs.values, pairs.scales, kHeadDim);
  std::vector<std::byte> out(2 * expected.size() + 1);
  dequantize_rows(pairs.values, pairs.scales, kHeadDim, std::span(out).subspan(1));
  EXPECT_EQ(std::memcmp(out.data() + 1, expected.data(), 2 * expected.size()), 0);
}

TEST(DequantizeRows, RefusesSizesThatDoNotFit) {
  std::vector<std::byte> values(512), scales(16), out(1024);
  EXPECT_NO_THROW(dequantize_rows(values, scales, kHeadDim, out));
  EXPECT_THROW(dequantize_rows(std::span(values).first(511), scales, kHeadDim, out), Error);
  EXPECT_THROW(dequantize_rows(values, std::span(scales).first(8), kHeadDim, out), Error);
  EXPECT_THROW(dequantize_rows(values, scales, kHeadDim, std::span(out).first(512)), Error);
  EXPECT_THROW(dequantize_rows(values, scales, 0, out), Error);
  EXPECT_THROW(dequantize_rows(values, scales, -32, out), Error);
  EXPECT_THROW(dequantize_rows(values, scales, 40, out), Error);
}

TEST(UnpackRows, TurnsRecordsIntoTheSameNumbers) {
  for (const int head_dim : {32, 64, 96, 256}) {
    const std::int64_t record_bytes = row_record_bytes(head_dim);
    const auto dim = static_cast<std::size_t>(head_dim);
    std::vector<std::byte> records, values, scales;
    for (int row = 0; row < 5; ++row) {
      std::vector<std::byte> record(static_cast<std::size_t>(record_bytes));
      for (std::size_t i = 0; i < dim + dim / 32; ++i) {
        record[i] = static_cast<std::byte>(static_cast<std::size_t>(row) * 37 + i * 11 + 5);
      }
      records.insert(records.end(), record.begin(), record.end());
      values.insert(values.end(), record.begin(), record.begin() + head_dim);
      scales.insert(scales.end(), record.begin() + head_dim,
                    record.begin() + head_dim + head_dim / 32);
    }
    std::vector<std::uint16_t> out(5 * dim);
    unpack_rows(records, head_dim, std::as_writable_bytes(std::span(out)));
    EXPECT_EQ(out, dequantize(values, scales, head_dim)) << head_dim;
  }
}

TEST(UnpackRows, RefusesSizesThatDoNotFit) {
  std::vector<std::byte> records(264 * 2), out(1024);
  EXPECT_NO_THROW(unpack_rows(records, kHeadDim, out));
  EXPECT_THROW(unpack_rows(std::span(records).first(263), kHeadDim, out), Error);
  EXPECT_THROW(unpack_rows(records, kHeadDim, std::span(out).first(512)), Error);
}

}  // namespace
}  // namespace penstock
