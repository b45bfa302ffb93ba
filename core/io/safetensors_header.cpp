#include "core/io/safetensors_header.h"

#include <fcntl.h>

#include <cerrno>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/io/safetensors.h"

namespace moe::io {

namespace {

// The header's JSON, padded with spaces so that the data starts at a multiple of 8. Without
// "format" transformers refuses the file. Built as text: an ordered JSON object searches all its
// keys for every new one.
std::string header_text(const std::vector<TensorInfo>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    MOE_CHECK(names.insert(tensor.name).second, "{} is written twice", tensor.name);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        Json(tensor.name).dump(), dtype_name(tensor.dtype),
                        Json(tensor.shape).dump(), offset, offset + tensor.bytes());
    offset += tensor.bytes();
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  MOE_CHECK(text.size() <= kMaxHeaderBytes, "a header of {} bytes; write more shards", text.size());
  return text;
}

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  }
  return bytes;
}

}  // namespace

std::string safetensors_start(const std::vector<TensorInfo>& tensors) {
  const std::string header = header_text(tensors);
  return length_prefix(header.size()) + header;
}

uint64_t bytes_of(const std::vector<TensorInfo>& tensors) {
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += static_cast<uint64_t>(tensor.bytes());
  }
  return bytes;
}

void reserve(const Descriptor& file, uint64_t bytes, const std::filesystem::path& path) {
  if (::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT)) {
    throw_write_error(errno, path);
  }
}

}  // namespace moe::io
