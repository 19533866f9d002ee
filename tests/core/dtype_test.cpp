#include "penstock/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "penstock/core/error.hpp"

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

TEST(DType, NamesAndWidthsAreThoseOfSafetensors) {
  const std::map<std::string, int> bits_of_name{
      {"BOOL", 8},        {"U8", 8},      {"U16", 16},        {"U32", 32},    {"U64", 64},
      {"I8", 8},          {"I16", 16},    {"I32", 32},        {"I64", 64},    {"F16", 16},
      {"BF16", 16},       {"F32", 32},    {"F64", 64},        {"C64", 64},    {"F8_E4M3", 8},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6},     {"F4", 4}};
  for (const auto& [name, bits] : bits_of_name) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_string(*dtype), name);
    EXPECT_EQ(element_bits(*dtype), bits) << name;
    if (bits % 8 == 0) {
      EXPECT_EQ(element_bytes(*dtype), bits / 8) << name;
    }
  }
  EXPECT_EQ(parse_dtype("u8"), std::nullopt);
  EXPECT_THROW(element_bytes(DType::F4), Error);
}

}  // namespace
}  // namespace penstock
