// Writing: one pass, no seeks, no memory for tensor data. A kernel left alone lets gigabytes of
// written pages pile up and makes fsync wait for all of them; so every few blocks it is told to
// begin writing back.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/io/safetensors.h"

namespace moe::io {

namespace {

constexpr size_t kCopyBlock = size_t{8} << 20;
constexpr uint64_t kFlushStep = uint64_t{32} << 20;

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
                        Json(tensor.name).dump(),
                        dtype_name(tensor.dtype),
                        Json(tensor.shape).dump(),
                        offset,
                        offset + tensor.bytes());
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

// Copies up to `length` bytes between two files inside the kernel. Returns how many went; the rest
// must go another way (file systems that cannot, sources in /proc, kernels before 4.5). Throws when
// the target is full.
uint64_t copy_in_kernel(int source,
                        int64_t offset,
                        uint64_t length,
                        const Descriptor& target,
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

// Claims the file's blocks at once: a disk too small shows before the first byte, and the blocks
// lie side by side, which makes the copy a quarter faster. File systems that cannot are asked for
// nothing.
void reserve(const Descriptor& file, uint64_t bytes, const std::filesystem::path& path) {
  if (::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT)) {
    throw_write_error(errno, path);
  }
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
  for (const auto& tensor : tensors) {
    expected_bytes_ += static_cast<uint64_t>(tensor.bytes());
  }
  const std::string header = header_text(tensors);
  const std::string start = length_prefix(header.size()) + header;
  reserve(file_, start.size() + expected_bytes_, path_);
  write_all(file_, std::as_bytes(std::span(start)), path_);
  header_bytes_ = start.size();
}

void SafetensorsWriter::count(uint64_t bytes) {
  written_bytes_ += bytes;
  if (written_bytes_ - flushed_bytes_ >= kFlushStep) {
    // Asynchronous and only a hint: where it is not supported fsync does all the work.
    ::sync_file_range(file_.get(),
                      static_cast<off64_t>(header_bytes_ + flushed_bytes_),
                      static_cast<off64_t>(written_bytes_ - flushed_bytes_),
                      SYNC_FILE_RANGE_WRITE);
    flushed_bytes_ = written_bytes_;
  }
}

void SafetensorsWriter::write(std::span<const std::byte> piece) {
  MOE_CHECK(written_bytes_ + piece.size() <= expected_bytes_,
            "{}: {} bytes after {} of {}",
            path_.string(),
            piece.size(),
            written_bytes_,
            expected_bytes_);
  while (!piece.empty()) {
    const auto block = piece.first(std::min<size_t>(piece.size(), kFlushStep));
    write_all(file_, block, path_);
    count(block.size());
    piece = piece.subspan(block.size());
  }
}

void SafetensorsWriter::copy(const SafetensorsFile& source, const std::string& name) {
  std::span<const std::byte> rest = source.bytes(name);
  MOE_CHECK(written_bytes_ + rest.size() <= expected_bytes_,
            "{}: '{}' is one too many",
            path_.string(),
            name);
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
  MOE_CHECK(written_bytes_ == expected_bytes_,
            "{}: {} of {} bytes written",
            path_.string(),
            written_bytes_,
            expected_bytes_);
  sync(file_, path_);
}

}  // namespace moe::io
