#include "core/train/observe/step_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/io/file.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

struct stat status_of(const Descriptor& descriptor, const fs::path& file) {
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) {
    throw UserError("{}: cannot be read: {}", file.string(), std::strerror(errno));
  }
  return status;
}

void truncate(const Descriptor& descriptor, uint64_t bytes, const fs::path& file) {
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    io::throw_write_error(errno, file);
  }
}

std::string read_at(const Descriptor& descriptor, uint64_t begin, uint64_t end,
                    const fs::path& file) {
  std::string text(end - begin, '\0');
  for (size_t filled = 0; filled < text.size();) {
    const ssize_t count = ::pread(descriptor.get(), text.data() + filled, text.size() - filled,
                                  static_cast<off_t>(begin + filled));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw UserError("{}: cannot be read: {}", file.string(),
                      count < 0 ? std::strerror(errno) : "it became shorter");
    }
    filled += static_cast<size_t>(count);
  }
  return text;
}

// Returns the offset after the last line break of the first `end` bytes, 0 if there is none. Throws
// UserError if more than kMaxLineBytes follow it, which moe does not write.
uint64_t behind_last_break(const Descriptor& descriptor, uint64_t end, const fs::path& file) {
  constexpr uint64_t kBlock = uint64_t{1} << 16;
  const uint64_t size = end;
  while (end > 0) {
    if (size - end > kMaxLineBytes) {
      throw UserError("{}: has a line of more than {} bytes; move the file away", file.string(),
                      kMaxLineBytes);
    }
    const uint64_t begin = end - std::min(end, kBlock);
    const size_t end_of_line = read_at(descriptor, begin, end, file).rfind('\n');
    if (end_of_line != std::string::npos) {
      return begin + end_of_line + 1;
    }
    end = begin;
  }
  return 0;
}

// Returns the step of a line; nothing if it has none.
std::optional<int64_t> line_step(const Json& line) {
  const auto step = line.is_object() ? line.find("step") : line.end();
  if (!line.is_object() || step == line.end() || !step->is_number_integer()) {
    return std::nullopt;
  }
  return step->get<int64_t>();
}

// Returns a partial file, to replace `file`, with its first `bytes` bytes and its permissions.
std::unique_ptr<io::PartialFile> copy_start(const fs::path& file, uint64_t bytes, mode_t mode) {
  auto copy = std::make_unique<io::PartialFile>(file);
  ::fchmod(copy->file().get(), mode & 0777);
  FileReader in(file);
  std::string block(size_t{1} << 20, '\0');
  while (bytes > 0) {
    const auto wanted = static_cast<std::streamsize>(std::min<uint64_t>(bytes, block.size()));
    const auto count = static_cast<size_t>(in.sgetn(block.data(), wanted));
    if (count == 0) {
      break;
    }
    io::write_all(copy->file(), std::as_bytes(std::span(block).first(count)), copy->path());
    bytes -= count;
  }
  return copy;
}

}  // namespace

Descriptor open_lines(const fs::path& file) {
  // O_NONBLOCK: opening a named pipe must not block.
  Descriptor descriptor(::open(
      file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (!descriptor.is_open()) {
    const int error = errno;
    if (error == ELOOP) {
      throw UserError("{}: is a symbolic link, which moe does not follow here; remove it",
                      file.string());
    }
    if (error == ENOSPC || error == EDQUOT) {
      io::throw_write_error(error, file);
    }
    throw UserError("{}: cannot be written: {}", file.string(), std::strerror(error));
  }
  const auto status = status_of(descriptor, file);
  if (!S_ISREG(status.st_mode)) {
    throw UserError("{}: is not a regular file; remove it", file.string());
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  const uint64_t end = behind_last_break(descriptor, size, file);
  if (end < size) {
    truncate(descriptor, end, file);
  }
  return descriptor;
}

StepLines::StepLines(fs::path file, LinesPerStep per_step)
    : file_(std::move(file)), per_step_(per_step), descriptor_(open_lines(file_)) {}

void StepLines::cut(const LinesMark& mark) {
  truncate(descriptor_, mark.bytes, file_);
  mark_ = mark;
}

bool StepLines::cut_at(const LinesMark& mark) {
  if (mark.bytes == 0) {
    cut({});
    return true;
  }
  if (static_cast<uint64_t>(status_of(descriptor_, file_).st_size) < mark.bytes) {
    return false;
  }
  const uint64_t begin = behind_last_break(descriptor_, mark.bytes - 1, file_);
  const std::string line = read_at(descriptor_, begin, mark.bytes, file_);
  const Json json = try_parse_json(line).value_or(Json());
  if (line.back() != '\n' || line_step(json) != mark.step) {
    return false;
  }
  cut(mark);
  return true;
}

int64_t StepLines::keep_steps(int64_t steps, const std::function<void(const Json&)>& on_line) {
  FileReader in(file_);
  std::unique_ptr<io::PartialFile> copy;  // made at the first line that is dropped
  LinesMark mark;
  int64_t damaged = 0, dropped = 0;  // dropped: since the last line that was kept
  for (std::string line; in.read_whole_line(line);) {
    const Json json = try_parse_json(line).value_or(Json());
    const auto step = line_step(json);
    const bool ascends =
        step && (*step > mark.step || (*step == mark.step && per_step_ == LinesPerStep::kAny));
    if (!ascends || *step > steps) {
      ++dropped;
      continue;
    }
    if (dropped > 0 && !copy) {
      copy = copy_start(file_, mark.bytes, status_of(descriptor_, file_).st_mode);
    }
    damaged += dropped;
    dropped = 0;
    line += '\n';
    if (copy) {
      io::write_all(copy->file(), std::as_bytes(std::span(line)), copy->path());
    }
    on_line(json);
    mark = {mark.bytes + line.size(), *step};
  }
  if (!copy) {
    cut(mark);
    return 0;
  }
  copy->commit();
  descriptor_ = open_lines(file_);
  mark_ = mark;
  return damaged;
}

void StepLines::append(std::string_view text, int64_t step) {
  const std::string line = std::string(text) + "\n";
  io::write_all(descriptor_, std::as_bytes(std::span(line)), file_);
  mark_ = {mark_.bytes + line.size(), step};
}

}  // namespace moe::train
