#pragma once
// Reading of safetensors files: an 8-byte little-endian header length, a JSON header, the tensors'
// bytes (core/io/formats.md). The file is mapped; nothing is copied. safetensors_writer.h writes
// them.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace moe::io {

enum class DType { kF32, kF16, kBF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // "F32", "BF16", ... as safetensors spells it
bool is_floating(DType dtype);        // F32, F16 or BF16, the types of weights

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // [] is a scalar, one element
  int64_t elements() const;    // does not overflow: checked when the header is read
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

std::string shape_text(const std::vector<int64_t>& shape);  // "[4096, 11008]"

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit

// A mapped file. The constructors check all of it: the header lies within the file, dtypes are
// known, offsets follow from the shapes and cover the data without gaps or overlaps. They throw
// UserError naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  // Reads a file that is open for reading; `path` names it in errors.
  SafetensorsFile(Descriptor file, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  bool has(const std::string& name) const { return ranges_.count(name) > 0; }
  // Returns the mapped data, little endian, row-major. The format promises no alignment: copy
  // elements out, do not cast. Throws UserError if there is no such tensor.
  std::span<const std::byte> bytes(const std::string& name) const;
  const MappedFile& file() const { return file_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::pair<size_t, size_t>>
      ranges_;  // name -> [begin, end) in the mapped file
};

}  // namespace moe::io
