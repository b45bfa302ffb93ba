#include "core/io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace moe::io {

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(open_to_read(path), path) {}

MappedFile::MappedFile(Descriptor file, const std::filesystem::path& path)
    : descriptor_(std::move(file)) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw UserError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) {
    return;  // an empty mapping is an error to mmap, an empty span to us
  }
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_.get(), 0);
  if (mapped == MAP_FAILED) {
    throw UserError("{}: cannot be mapped into memory: {}", path.string(), std::strerror(errno));
  }
  data_ = static_cast<const std::byte*>(mapped);
  range_ = MappedRange(data_, size_, path);
}

MappedFile::~MappedFile() {
  range_ = {};  // before the addresses may be those of something else
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      range_(std::move(other.range_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(range_, other.range_);
  return *this;
}

void MappedFile::drop(std::span<const std::byte> part) const {
  if (part.empty()) {
    return;
  }
  MOE_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  // The mapping starts on a page; a page shared with a neighbour costs that neighbour a minor
  // fault, no more.
  const auto offset = static_cast<size_t>(part.data() - data_);
  const size_t first = offset / page * page;
  ::madvise(const_cast<std::byte*>(data_) + first, offset + part.size() - first, MADV_DONTNEED);
}

}  // namespace moe::io
