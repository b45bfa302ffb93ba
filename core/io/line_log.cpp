#include "core/io/line_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <span>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/checksums.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr size_t kChecksumDigits = 16;
constexpr std::chrono::seconds kSyncPeriod{2};

// A lock for appending. On file systems without locks, an append is still a single write.
class Lock {
 public:
  explicit Lock(const Descriptor& file) : descriptor_(file.get()) {
    while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Lock() { ::flock(descriptor_, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

Descriptor open_to_append(const fs::path& path) {
  std::error_code failure;
  if (path.has_parent_path()) {
    fs::create_directories(path.parent_path(), failure);
  }
  USER_ERROR_IF(failure, "{}: its folder cannot be created: {}", path.string(), failure.message());
  // O_NONBLOCK: opening a named pipe must not wait for its other end.
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file.is_open()) {
    fail_file(path.string(), "cannot be written");
  }
  struct stat status {};
  USER_ERROR_IF(::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode),
                "{}: is not a regular file", path.string());
  return file;
}

}  // namespace

LineLog::LineLog(fs::path file, const std::string& title)
    : path_(std::move(file)),
      file_(open_to_append(path_)),
      synced_(std::chrono::steady_clock::now()) {
  const Lock lock(file_);
  const std::string text = read_again(file_, path_).read_rest(std::numeric_limits<uint64_t>::max());
  const std::string head = title + "\n";
  // An incomplete title: the first write of the log was interrupted.
  USER_ERROR_IF(text.compare(0, head.size(), head, 0, std::min(text.size(), head.size())) != 0,
                "{}: does not begin with '{}', so it is something else; give another file",
                path_.string(), printable(title));
  const size_t end = text.size() < head.size() ? 0 : text.rfind('\n') + 1;
  if (end < text.size() && ::ftruncate(file_.get(), static_cast<off_t>(end)) != 0) {
    fail_file(path_.string(), "cannot be written");
  }
  if (end == 0) {
    write_all(file_, std::as_bytes(std::span(head)), path_);
    return;
  }
  for (size_t begin = head.size(); begin < end;) {
    const size_t newline = text.find('\n', begin);
    const std::string_view line(text.data() + begin, newline - begin);
    const bool is_whole =
        line.size() > kChecksumDigits && line[kChecksumDigits] == ' ' &&
        line.substr(0, kChecksumDigits) == checksum_text(line.substr(kChecksumDigits + 1));
    if (is_whole) {
      lines_.emplace_back(line.substr(kChecksumDigits + 1));
    } else {
      ++damaged_;
    }
    begin = newline + 1;
  }
}

void LineLog::append(std::string_view text) {
  MOE_CHECK(text.find('\n') == std::string_view::npos);
  const std::string line = fmt::format("{} {}\n", checksum_text(text), text);
  {
    const Lock lock(file_);
    write_all(file_, std::as_bytes(std::span(line)), path_);
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - synced_ >= kSyncPeriod) {
    sync(file_, path_);
    synced_ = now;
  }
}

}  // namespace moe::io
