#include "penstock/core/dtype.hpp"

#include <array>
#include <string>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kDTypes{
    DTypeRow{DType::Bool, "BOOL", 8},      DTypeRow{DType::U8, "U8", 8},
    DTypeRow{DType::U16, "U16", 16},       DTypeRow{DType::U32, "U32", 32},
    DTypeRow{DType::U64, "U64", 64},       DTypeRow{DType::I8, "I8", 8},
    DTypeRow{DType::I16, "I16", 16},       DTypeRow{DType::I32, "I32", 32},
    DTypeRow{DType::I64, "I64", 64},       DTypeRow{DType::F16, "F16", 16},
    DTypeRow{DType::BF16, "BF16", 16},     DTypeRow{DType::F32, "F32", 32},
    DTypeRow{DType::F64, "F64", 64},       DTypeRow{DType::C64, "C64", 64},
    DTypeRow{DType::F8E4M3, "F8_E4M3", 8}, DTypeRow{DType::F8E4M3FNUZ, "F8_E4M3FNUZ", 8},
    DTypeRow{DType::F8E5M2, "F8_E5M2", 8}, DTypeRow{DType::F8E5M2FNUZ, "F8_E5M2FNUZ", 8},
    DTypeRow{DType::F8E8M0, "F8_E8M0", 8}, DTypeRow{DType::F6E2M3, "F6_E2M3", 6},
    DTypeRow{DType::F6E3M2, "F6_E3M2", 6}, DTypeRow{DType::F4, "F4", 4},
};

const DTypeRow& row_of(DType dtype) {
  for (const auto& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  throw Error(ErrorCode::Internal, "dtype: not a DType");
}

}  // namespace

int element_bits(DType dtype) {
  return row_of(dtype).bits;
}

int element_bytes(DType dtype) {
  const DTypeRow& row = row_of(dtype);
  if (row.bits % 8 != 0) {
    throw Error(ErrorCode::Unsupported,
                "element_bytes: found " + std::string(row.name) + ", needed: whole bytes");
  }
  return row.bits / 8;
}

std::string_view to_string(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const auto& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace penstock
