#include "core/io/shared_safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/io/safetensors_header.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBlock = size_t{32} << 20;  // then the kernel is told to begin writing back

void write_at(const Descriptor& file, std::span<const std::byte> bytes, uint64_t offset,
              const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written > 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    } else if (written == 0 || errno != EINTR) {
      throw_write_error(written == 0 ? ENOSPC : errno, path);
    }
  }
}

Descriptor open_to_write(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) {
    throw UserError("{}: cannot be written: {}", path.string(), std::strerror(errno));
  }
  return file;
}

}  // namespace

void create_safetensors(const fs::path& path, const std::vector<TensorInfo>& tensors) {
  const std::string start = safetensors_start(tensors);
  const uint64_t length = start.size() + bytes_of(tensors);
  const Descriptor file = create_file(path);
  reserve(file, length, path);
  if (::ftruncate(file.get(), static_cast<off_t>(length)) != 0) {
    throw_write_error(errno, path);
  }
  write_at(file, std::as_bytes(std::span(start)), 0, path);
  sync(file, path);
}

SafetensorsPatch::SafetensorsPatch(const fs::path& path)
    : path_(path), contents_(path), file_(open_to_write(path)) {}

void SafetensorsPatch::write(const std::string& name, uint64_t begin,
                             std::span<const std::byte> bytes) {
  const auto tensor = contents_.bytes(name);
  MOE_CHECK(begin <= tensor.size() && bytes.size() <= tensor.size() - begin,
            "{}: bytes {} to {} of '{}', which has {}", path_.string(), begin, begin + bytes.size(),
            name, tensor.size());
  auto offset = static_cast<uint64_t>(tensor.data() - contents_.file().bytes().data()) + begin;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), kBlock));
    write_at(file_, block, offset, path_);
    if (block.size() == kBlock) {  // only a hint
      ::sync_file_range(file_.get(), static_cast<off64_t>(offset),
                        static_cast<off64_t>(block.size()), SYNC_FILE_RANGE_WRITE);
    }
    offset += block.size();
    bytes = bytes.subspan(block.size());
  }
}

void SafetensorsPatch::finish() { sync(file_, path_); }

}  // namespace moe::io
