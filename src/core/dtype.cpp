#include "penstock/core/dtype.hpp"

#include <array>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bytes;
};

constexpr std::array kDTypes{
    DTypeRow{DType::Bool, "BOOL", 1},      DTypeRow{DType::U8, "U8", 1},
    DTypeRow{DType::I8, "I8", 1},          DTypeRow{DType::I16, "I16", 2},
    DTypeRow{DType::I32, "I32", 4},        DTypeRow{DType::I64, "I64", 8},
    DTypeRow{DType::F16, "F16", 2},        DTypeRow{DType::BF16, "BF16", 2},
    DTypeRow{DType::F32, "F32", 4},        DTypeRow{DType::F64, "F64", 8},
    DTypeRow{DType::F8E4M3, "F8_E4M3", 1}, DTypeRow{DType::F8E5M2, "F8_E5M2", 1},
    DTypeRow{DType::F8E8M0, "F8_E8M0", 1},
};

const DTypeRow& row_of(DType dtype) {
  for (const auto& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  throw Error(ErrorCode::Internal, "dtype: not a DType");
}

}  // namespace

int element_bytes(DType dtype) {
  return row_of(dtype).bytes;
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
