#include "penstock/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace penstock {
namespace {

TEST(DequantizeElement, GivesTheWorkedValuesOfTheFormat) {
  EXPECT_EQ(dequantize_element(0x3B, 127).bits, 0x3FB0);
  EXPECT_EQ(dequantize_element(0x3B, 120).bits, 0x3C30);
  EXPECT_EQ(dequantize_element(0xBE, 133).bits, 0xC2E0);
  EXPECT_EQ(dequantize_element(0x7E, 130).bits, 0x4560);
  EXPECT_EQ(dequantize_element(0x01, 118).bits, 0x3680);
  EXPECT_EQ(dequantize_element(0x80, 0).bits, 0x8000);
  EXPECT_EQ(dequantize_element(0x00, 255).bits, 0x7FC0);
  EXPECT_EQ(dequantize_element(0x7E, 247).bits, 0x7F80);
  EXPECT_EQ(dequantize_element(0x7F, 127).bits, 0x7FC0);
}

TEST(ToBf16, RoundsTiesToEvenAndKeepsSubnormals) {
  EXPECT_EQ(to_bf16(1.00390625F).bits, 0x3F80);  // half a unit above 1: down to even
  EXPECT_EQ(to_bf16(1.01171875F).bits, 0x3F82);  // half a unit above 0x3F81: up to even
  EXPECT_EQ(to_bf16(std::ldexp(1.0F, -133)).bits, 0x0001);
  EXPECT_EQ(to_bf16(3.4e38F).bits, 0x7F80);
  EXPECT_EQ(to_bf16(std::nanf("")).bits, 0x7FC0);
}

TEST(DType, NamesAreInvertible) {
  for (const DType dtype : {DType::Bool, DType::U8, DType::BF16, DType::F8E4M3, DType::F8E8M0}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("F4"), std::nullopt);
}

}  // namespace
}  // namespace penstock
