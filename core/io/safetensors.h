#pragma once
// safetensors: an 8-byte little-endian header length, a JSON header, the tensors' bytes (core/io/formats.md).
// Reading maps the file and copies nothing; writing streams, tensor after tensor, in the order announced.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
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
  std::vector<int64_t> shape;
  int64_t elements() const;  // checked against overflow when the header is read
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

std::string shape_text(const std::vector<int64_t>& shape);  // "[4096, 11008]"

// A file mapped read-only. Moved, not copied; spans live as long as it does.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that these bytes will not be read again, so that a streaming copy keeps no pages resident.
  void drop(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// One file, checked whole when it is opened: header within the file, known dtypes, offsets that follow from shapes,
// cover the data without gaps or overlaps. Throws UserError naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  std::span<const std::byte> bytes(const std::string& name) const;     // the mapped data, little endian, row-major
  const MappedFile& file() const { return file_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::pair<size_t, size_t>> ranges_;  // name -> [begin, end) in the mapped file
  std::map<std::string, std::string> metadata_;
};

// Writes one file as a stream: the header goes out first, then the bytes of each tensor in the order given, in as many
// pieces as the caller likes. finish() checks that every byte came and syncs the file.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(std::span<const std::byte> piece);
  // Appends `length` bytes of another file from `offset` (copy_file_range where it works, else read and write).
  void copy(const SafetensorsFile& source, const std::string& name);
  void finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t expected_bytes_ = 0;
  uint64_t written_bytes_ = 0;
};

}  // namespace moe::io
