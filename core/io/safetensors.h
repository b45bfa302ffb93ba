#pragma once
// safetensors: an 8-byte little-endian header length, a JSON header, the tensors' bytes
// (core/io/formats.md). Reading maps the file and copies nothing; writing streams, tensor after
// tensor, in the order announced.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/mapped_file.h"
#include "core/io/tensor_info.h"

namespace moe::io {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit

// One file, checked whole when it is opened: header within the file, known dtypes, offsets that
// follow from shapes, cover the data without gaps or overlaps. Throws UserError naming file and
// tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  // Of a file that is open to read; `path` is its name in errors.
  SafetensorsFile(Descriptor file, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  bool has(const std::string& name) const { return ranges_.count(name) > 0; }
  // The mapped data, little endian, row-major. The format promises no alignment: copy elements out,
  // do not cast. UserError when there is no such tensor.
  std::span<const std::byte> bytes(const std::string& name) const;
  const MappedFile& file() const { return file_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::pair<size_t, size_t>>
      ranges_;  // name -> [begin, end) in the mapped file
  std::map<std::string, std::string> metadata_;
};

// Writes one file as a stream: the header goes out first, then the bytes of each tensor in the
// order given, in as many pieces as the caller likes. finish() checks that every byte came and
// syncs the file. Writing back to the disk starts early, so that finish() has little left to wait
// for. Throws UserError "disk full: ...".
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors);

  void write(std::span<const std::byte> piece);
  // Appends the bytes of tensor `name` of another file, inside the kernel where it can
  // (copy_file_range), else from the mapping in blocks. Takes no memory to speak of; the same
  // tensor may be copied any number of times.
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
  uint64_t flushed_bytes_ = 0;  // up to here the kernel was told to write back
};

}  // namespace moe::io
