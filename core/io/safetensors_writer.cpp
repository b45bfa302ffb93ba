// Writing: one pass, no seeks, no memory for tensor data. A kernel left alone lets gigabytes of
// written pages pile up and makes fsync wait for all of them; so every few blocks it is told to
// begin writing back.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "core/io/safetensors.h"
#include "core/io/safetensors_header.h"

namespace moe::io {

namespace {

constexpr size_t kCopyBlock = size_t{8} << 20;
constexpr uint64_t kFlushStep = uint64_t{32} << 20;

// Copies up to `length` bytes between two files inside the kernel. Returns how many went; the rest
// must go another way (file systems that cannot, sources in /proc, kernels before 4.5). Throws when
// the target is full.
uint64_t copy_in_kernel(int source, int64_t offset, uint64_t length, const Descriptor& target,
                        const std::filesystem::path& target_path) {
  uint64_t copied = 0;
  while (copied < length) {
    const auto block = static_cast<size_t>(std::min<uint64_t>(length - copied, kCopyBlock));
    const ssize_t moved = ::copy_file_range(source, &offset, target.get(), nullptr, block, 0);
    if (moved > 0) {
      copied += static_cast<uint64_t>(moved);
    } else if (moved == 0) {
      break;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      throw_write_error(errno, target_path);
    } else if (errno != EINTR) {
      break;
    }
  }
  return copied;
}

// Pages of a mapping that lost their file raise SIGBUS; write() only fails on them, with a message
// that helps nobody.
void check_still_whole(const SafetensorsFile& source) {
  struct stat status {};
  if (::fstat(source.file().descriptor(), &status) == 0 &&
      static_cast<uint64_t>(status.st_size) < source.file().bytes().size()) {
    throw UserError("{}: became shorter while it was read; fetch it again", source.path().string());
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorInfo> tensors)
    : path_(path), file_(create_file(path)) {
  expected_bytes_ = bytes_of(tensors);
  const std::string start = safetensors_start(tensors);
  reserve(file_, start.size() + expected_bytes_, path_);
  write_all(file_, std::as_bytes(std::span(start)), path_);
  header_bytes_ = start.size();
}

void SafetensorsWriter::count(uint64_t bytes) {
  written_bytes_ += bytes;
  if (written_bytes_ - flushed_bytes_ >= kFlushStep) {
    // Asynchronous and only a hint: where it is not supported fsync does all the work.
    ::sync_file_range(file_.get(), static_cast<off64_t>(header_bytes_ + flushed_bytes_),
                      static_cast<off64_t>(written_bytes_ - flushed_bytes_), SYNC_FILE_RANGE_WRITE);
    flushed_bytes_ = written_bytes_;
  }
}

void SafetensorsWriter::write(std::span<const std::byte> piece) {
  MOE_CHECK(written_bytes_ + piece.size() <= expected_bytes_, "{}: {} bytes after {} of {}",
            path_.string(), piece.size(), written_bytes_, expected_bytes_);
  while (!piece.empty()) {
    const auto block = piece.first(std::min<size_t>(piece.size(), kFlushStep));
    write_all(file_, block, path_);
    count(block.size());
    piece = piece.subspan(block.size());
  }
}

void SafetensorsWriter::copy(const SafetensorsFile& source, const std::string& name) {
  std::span<const std::byte> rest = source.bytes(name);
  MOE_CHECK(written_bytes_ + rest.size() <= expected_bytes_, "{}: '{}' is one too many",
            path_.string(), name);
  bool in_kernel = true;
  while (!rest.empty()) {
    const auto block = rest.first(std::min(rest.size(), kCopyBlock));
    const auto offset = block.data() - source.file().bytes().data();
    uint64_t done = 0;
    if (in_kernel) {
      done = copy_in_kernel(source.file().descriptor(), offset, block.size(), file_, path_);
      in_kernel = done == block.size();
    }
    if (done < block.size()) {
      check_still_whole(source);
      write_all(file_, block.subspan(done), path_);
      source.file().drop(block);
    }
    count(block.size());
    rest = rest.subspan(block.size());
  }
}

void SafetensorsWriter::finish() {
  MOE_CHECK(written_bytes_ == expected_bytes_, "{}: {} of {} bytes written", path_.string(),
            written_bytes_, expected_bytes_);
  sync(file_, path_);
}

}  // namespace moe::io
