#pragma once
// What is known of a tensor before its bytes are touched: name, element type, shape.

#include <cstdint>
#include <string>
#include <vector>

namespace moe::io {

enum class DType { kF32, kF16, kBF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // "F32", "BF16", ... as safetensors spells it
DType parse_dtype(const std::string& name, const std::string& where);
bool is_floating(DType dtype);  // F32, F16, BF16: what weights may be

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // [] is a scalar, one element
  int64_t elements() const;    // checked against overflow when the header is read
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

std::string shape_text(const std::vector<int64_t>& shape);  // "[4096, 11008]"

}  // namespace moe::io
