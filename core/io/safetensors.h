#pragma once
// Reading and writing of safetensors files: an 8-byte little-endian header length, a JSON header,
// the bytes of the tensors (core/io/formats.md). Reading maps files and copies nothing. Files are
// written as a stream, by several processes at once, or as the shards of a folder with an index.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace moe::io {

enum class DType { kF32, kF16, kBF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t dtype_bytes(DType dtype);     // of one element
const char* dtype_name(DType dtype);  // "F32", "BF16", ...: the name in safetensors
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

// A mapped file. The constructors throw UserError, naming file and tensor, unless the header is
// within the file, all dtypes are known, and the offsets match the shapes and cover the data
// without gaps or overlaps.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path)
      : SafetensorsFile(open_to_read(path), path) {}
  // Maps a file that is open for reading; `path` names it in errors.
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

// A writer of one file as a stream. The constructor writes the header, write() and copy() append
// the bytes of the tensors in their order, in pieces of any size, and finish() checks that all
// bytes were written and syncs the file. All throw UserError if the disk is full.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors);

  void write(std::span<const std::byte> piece);
  // Appends the bytes of tensor `name` of another file, by copy_file_range() if the kernel supports
  // it, else from the mapping in blocks. Keeps no pages resident.
  void copy(const SafetensorsFile& source, const std::string& name);
  void finish();

  uint64_t written_bytes() const { return written_bytes_; }

 private:
  void count(uint64_t bytes);

  std::filesystem::path path_;
  Descriptor file_;
  uint64_t header_bytes_ = 0;
  uint64_t expected_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  uint64_t flushed_bytes_ = 0;  // of these, bytes whose writeback has been started
};

// Creates a file of full length, the header and then zeros, that several processes fill by
// SafetensorsPatch. Returns when header and length are on the disk. Throws UserError "disk full" if
// the file system can reserve blocks and has too few.
void create_safetensors(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors);

// A writer into a file that create_safetensors() made. Processes that write different bytes need no
// synchronization; the file is complete when all have called finish().
class SafetensorsPatch {
 public:
  // Throws UserError if the file is missing (such as on a host without the creator's disk),
  // incomplete or not writable.
  explicit SafetensorsPatch(const std::filesystem::path& path);

  // Writes `bytes` at byte `begin` of tensor `name`; must not exceed the tensor.
  void write(const std::string& name, uint64_t begin, std::span<const std::byte> bytes);
  void finish() { sync(file_, path_); }

 private:
  std::filesystem::path path_;
  SafetensorsFile contents_;
  Descriptor file_;
};

struct Shard {
  std::string file;  // "model.safetensors" alone, else "model-00001-of-0000N.safetensors"
  std::vector<TensorInfo> tensors;
};

// Distributes `tensors` over files. Shards are filled in order, as by transformers; a tensor larger
// than `shard_bytes` gets its own shard. Returns one file without tensors if there are none.
std::vector<Shard> plan_shards(const std::vector<TensorInfo>& tensors, uint64_t shard_bytes);

// Writes model.safetensors.index.json if there are several shards.
void write_index(const std::filesystem::path& folder, const std::vector<Shard>& shards);

// A tensor to be written, and a function that passes its bytes to the writer.
struct TensorSource {
  TensorInfo info;
  std::function<void(SafetensorsWriter&)> write;
};

// Writes one file with `tensors`. Calls `on_bytes` after each tensor with `bytes_before` plus the
// bytes of tensor data written so far. Returns the bytes of tensor data of this file.
uint64_t write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                           const std::function<void(uint64_t)>& on_bytes = {},
                           uint64_t bytes_before = 0);

// Writes `tensors` in order into the files of plan_shards() below `folder`, and the index. Calls
// `on_bytes` after each tensor with the bytes of tensor data written so far. Returns their sum.
uint64_t write_tensors(const std::filesystem::path& folder,
                       const std::vector<TensorSource>& tensors, uint64_t shard_bytes,
                       const std::function<void(uint64_t)>& on_bytes = {});

}  // namespace moe::io
