#include "core/base/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/error.h"

namespace moe {

namespace {

constexpr size_t kReadBlockBytes = size_t{64} << 10;

// Blocks until `file` has bytes or has ended.
void wait_for_input(int file) {
  pollfd request = {file, POLLIN, 0};
  while (::poll(&request, 1, /*timeout=*/-1) < 0 && errno == EINTR) {
  }
}

// Reads up to `size` bytes. Returns the number of bytes, 0 at the end of the file.
size_t read_some(const Descriptor& file, char* into, size_t size, const std::string& name) {
  while (true) {
    const ssize_t count = ::read(file.get(), into, size);
    if (count >= 0) {
      return static_cast<size_t>(count);
    }
    if (errno == EAGAIN) {
      wait_for_input(file.get());
    } else if (errno != EINTR) {
      fail_file(name, "cannot be read");
    }
  }
}

}  // namespace

Descriptor make_memory_file() {
  constexpr int kFirstNumber = STDERR_FILENO + 1;
  Descriptor file(memfd_create("moe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.is_open() && file.get() < kFirstNumber) {  // a standard stream is closed
    file = Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, kFirstNumber));
  }
  if (!file.is_open() || fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) {
    throw std::system_error(errno, std::generic_category(), "a file in memory");
  }
  return file;
}

void throw_too_large(const std::string& name, uint64_t max_bytes) {
  throw UserError("{}: has more than the {} bytes that such a file may have", name, max_bytes);
}

Descriptor open_to_read(const std::filesystem::path& path, Pipes pipes) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer. It has no effect on regular files.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    USER_ERROR_IF(errno == ENOENT, "{}: no such file", path.string());
    fail_file(path.string(), "cannot be read");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    fail_file(path.string(), "cannot be read");
  }
  USER_ERROR_IF(S_ISDIR(status.st_mode), "{}: is a folder, not a regular file", path.string());
  if (S_ISREG(status.st_mode)) {
    return file;
  }
  USER_ERROR_IF(pipes == Pipes::kRefused || (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)),
                "{}: is not a regular file (a pipe or a device)", path.string());
  wait_for_input(file.get());  // without a writer a read would return the end of the file
  ::fcntl(file.get(), F_SETFL, O_RDONLY);
  return file;
}

std::filesystem::path nearest_existing(const std::filesystem::path& folder) {
  std::filesystem::path existing = std::filesystem::absolute(folder);
  std::error_code error;
  while (!std::filesystem::is_directory(existing, error) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  return existing;
}

Descriptor open_standard_input() {
  Descriptor file(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!file.is_open()) {
    fail_file("standard input", "cannot be read");
  }
  return file;
}

std::string read_small_file(const std::filesystem::path& file, uint64_t max_bytes, Pipes pipes) {
  return FileReader(file, pipes).read_rest(max_bytes);
}

std::string read_start(const Descriptor& file, size_t max_bytes) {
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return "";
  }
  std::string text(std::min(max_bytes, static_cast<size_t>(status.st_size)), '\0');
  ssize_t count = 0;
  do {
    count = ::pread(file.get(), text.data(), text.size(), 0);
  } while (count < 0 && errno == EINTR);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

FileReader::FileReader(const std::filesystem::path& file, Pipes pipes)
    : FileReader(open_to_read(file, pipes), file.string()) {}

FileReader::FileReader(Descriptor file, std::string name)
    : file_(std::move(file)), name_(std::move(name)) {}

bool FileReader::read_line(std::string& line, uint64_t max_bytes) {
  line.clear();
  has_newline_ = false;
  while (!has_newline_) {
    if (gptr() == egptr() && traits_type::eq_int_type(underflow(), traits_type::eof())) {
      return !line.empty();
    }
    const std::string_view buffered(gptr(), static_cast<size_t>(egptr() - gptr()));
    const size_t length = std::min(buffered.find('\n'), buffered.size());
    has_newline_ = length < buffered.size();
    line.append(buffered, 0, length);
    setg(eback(), gptr() + length + (has_newline_ ? 1 : 0), egptr());
    USER_ERROR_IF(line.size() > max_bytes, "{}: has a line of more than {} bytes", name_,
                  max_bytes);
  }
  return true;
}

std::string FileReader::read_rest(uint64_t max_bytes) {
  struct stat status {};
  const bool is_regular = ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode);
  const uint64_t size = is_regular ? static_cast<uint64_t>(status.st_size) : 0;
  if (size > max_bytes) {
    throw_too_large(name_, max_bytes);
  }
  std::string text(gptr(), egptr());
  setg(nullptr, nullptr, nullptr);
  size_t filled = text.size();
  // One more byte, to detect the end. The size is a hint: files in /proc report 0.
  text.resize(std::max<size_t>(size + 1, filled + kReadBlockBytes));
  while (const size_t count = read_some(file_, text.data() + filled, text.size() - filled, name_)) {
    filled += count;
    if (filled > max_bytes) {
      throw_too_large(name_, max_bytes);
    }
    if (filled == text.size()) {
      text.resize(2 * text.size());
    }
  }
  text.resize(filled);
  return text;
}

std::string_view FileReader::peek(size_t size) {
  std::vector<char> next(size);
  next.resize(static_cast<size_t>(sgetn(next.data(), static_cast<std::streamsize>(size))));
  size = next.size();
  next.insert(next.end(), gptr(), egptr());
  buffer_ = std::move(next);
  setg(buffer_.data(), buffer_.data(), buffer_.data() + buffer_.size());
  return {gptr(), size};
}

void FileReader::seek(uint64_t offset) {
  setg(nullptr, nullptr, nullptr);
  if (::lseek(file_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    fail_file(name_, "cannot be read");
  }
}

FileReader::int_type FileReader::underflow() {
  if (gptr() == egptr()) {
    buffer_.resize(kReadBlockBytes);
    const size_t count = read_some(file_, buffer_.data(), buffer_.size(), name_);
    setg(buffer_.data(), buffer_.data(), buffer_.data() + count);
  }
  return gptr() == egptr() ? traits_type::eof() : traits_type::to_int_type(*gptr());
}

std::streamsize FileReader::xsgetn(char* into, std::streamsize count) {
  const auto size = static_cast<size_t>(count);
  size_t filled = 0;
  while (filled < size) {
    const size_t remaining = size - filled, buffered = static_cast<size_t>(egptr() - gptr());
    if (buffered > 0) {
      const size_t copied = std::min(remaining, buffered);
      std::memcpy(into + filled, gptr(), copied);
      setg(eback(), gptr() + copied, egptr());
      filled += copied;
    } else if (remaining >= kReadBlockBytes) {
      const size_t read = read_some(file_, into + filled, remaining, name_);
      if (read == 0) {
        break;
      }
      filled += read;
    } else if (traits_type::eq_int_type(underflow(), traits_type::eof())) {
      break;
    }
  }
  return static_cast<std::streamsize>(filled);
}

}  // namespace moe
