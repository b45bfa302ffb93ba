#include "core/io/tensor_info.h"

#include <fmt/ranges.h>

#include <array>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace moe::io {

namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t bytes;
  bool is_floating;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::kF32, "F32", 4, true},   DTypeRow{DType::kF16, "F16", 2, true},
    DTypeRow{DType::kBF16, "BF16", 2, true}, DTypeRow{DType::kF64, "F64", 8, false},
    DTypeRow{DType::kI64, "I64", 8, false},  DTypeRow{DType::kI32, "I32", 4, false},
    DTypeRow{DType::kI16, "I16", 2, false},  DTypeRow{DType::kI8, "I8", 1, false},
    DTypeRow{DType::kU8, "U8", 1, false},    DTypeRow{DType::kBool, "BOOL", 1, false},
};

const DTypeRow& row_of(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  MOE_CHECK(index < kDTypes.size() && kDTypes.at(index).dtype == dtype);
  return kDTypes.at(index);
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return row_of(dtype).bytes; }

const char* dtype_name(DType dtype) { return row_of(dtype).name; }

bool is_floating(DType dtype) { return row_of(dtype).is_floating; }

DType parse_dtype(const std::string& name, const std::string& where) {
  std::string supported;
  for (const auto& row : kDTypes) {
    if (name == row.name) {
      return row.dtype;
    }
    supported += supported.empty() ? row.name : std::string(", ") + row.name;
  }
  throw UserError("{}: unknown dtype '{}' (known: {})", where, printable(name, 40), supported);
}

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace moe::io
