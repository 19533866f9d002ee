#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace penstock {

/// Element types of tensors: all that the safetensors format knows, with its names and widths.
enum class DType {
  Bool,
  U8,
  U16,
  U32,
  U64,
  I8,
  I16,
  I32,
  I64,
  F16,
  BF16,
  F32,
  F64,
  C64,
  F8E4M3,
  F8E4M3FNUZ,
  F8E5M2,
  F8E5M2FNUZ,
  F8E8M0,
  F6E2M3,
  F6E3M2,
  F4
};

/// Bits of one element.
int element_bits(DType dtype);

/// Bytes of one element. Errors: Unsupported for a type whose elements share bytes.
int element_bytes(DType dtype);

/// The safetensors spelling, for example "F8_E4M3".
std::string_view to_string(DType dtype);

/// The inverse of to_string; nothing for a name that the format does not know.
std::optional<DType> parse_dtype(std::string_view name);

/// A bfloat16 number, as its 16 bits. Arithmetic happens in float.
struct BF16 {
  std::uint16_t bits = 0;

  friend constexpr bool operator==(BF16, BF16) = default;  ///< Compares bits.
};

/// The NaN that Penstock writes wherever a bf16 result is not a number.
inline constexpr BF16 kBF16NaN{0x7FC0};

/// The same number, exactly.
constexpr float to_float(BF16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even; overflow gives infinity; subnormals are kept; NaN gives 0x7FC0.
constexpr BF16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return kBF16NaN;
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  return BF16{static_cast<std::uint16_t>(rounded >> 16)};
}

/// The value of an OCP e4m3fn code: bias 7, no infinity, NaN at 0x7F and 0xFF.
constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == 0x7FU) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude >= 8U) return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
  // Subnormal: magnitude * 2^-9, exact in float.
  const float value = static_cast<float>(magnitude) * 0.001953125F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

/// The factor of a scale byte: the byte is the exponent field of a float, so that 0 is +0 and 255
/// is +infinity (unlike OCP's ue8m0, where they are 2^-127 and NaN).
/// Source: `docs/formats/row_record.md`.
constexpr float scale_to_float(std::uint8_t byte) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(byte) << 23);
}

/// One element of a table row: bf16(e4m3(code) * scale), exact but for the final rounding.
constexpr BF16 dequantize_element(std::uint8_t code, std::uint8_t scale_byte) {
  return to_bf16(e4m3_to_float(code) * scale_to_float(scale_byte));
}

}  // namespace penstock
