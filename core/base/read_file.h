#pragma once
// File descriptors, and reading of files that are small or read sequentially. open_to_read() opens
// every file of a model, a run, a task or a data set, also those that core/io/file.h maps: opening
// never waits for the other end of a named pipe, folders and devices are refused, and sizes are
// limited.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe {

// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    const Descriptor closed(std::exchange(number_, other.release()));
    return *this;
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

// Returns an empty file in memory, accessible to this user only and freed with its last descriptor
// and mapping. Callers may add seals (F_ADD_SEALS). The descriptor is never 0, 1 or 2. Throws
// std::system_error on failure.
Descriptor make_memory_file();

// kAllowed: the file may also be a named pipe or a character device, such as /dev/stdin or the
// shell's <(command). For files on the command line that are read once.
enum class Pipes { kRefused, kAllowed };

inline constexpr uint64_t kMaxSmallFileBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxLineBytes = uint64_t{64} << 20;

// Opens `file` for reading. Blocks only for an allowed pipe, until a process has opened its other
// end. Throws UserError if the file is missing, not a regular file or not readable.
Descriptor open_to_read(const std::filesystem::path& file, Pipes pipes = Pipes::kRefused);

// Returns the absolute path of `folder`, or of its nearest parent that is a folder.
std::filesystem::path nearest_existing(const std::filesystem::path& folder);

// Returns a new descriptor of standard input. Throws UserError if it is closed.
Descriptor open_standard_input();

// Returns the bytes of `file`. Throws UserError if open_to_read() or a read fails, or if the file
// has more than `max_bytes` bytes.
std::string read_small_file(const std::filesystem::path& file,
                            uint64_t max_bytes = kMaxSmallFileBytes, Pipes pipes = Pipes::kRefused);

// Throws the UserError that the file `name` has more than `max_bytes` bytes.
[[noreturn]] void throw_too_large(const std::string& name, uint64_t max_bytes);

// Returns up to `max_bytes` bytes from the start of an open file, or "" if it is not open, not a
// regular file or not readable.
std::string read_start(const Descriptor& file, size_t max_bytes);

// Buffered reader of a file of any size, by lines or as a std::streambuf. Throws UserError if a
// read fails.
class FileReader : public std::streambuf {
 public:
  explicit FileReader(const std::filesystem::path& file, Pipes pipes = Pipes::kRefused);
  // `name` is the file in error messages.
  FileReader(Descriptor file, std::string name);

  // Reads the next line into `line`, without its '\n'. Returns false at the end of the file. Throws
  // UserError if the line has more than `max_bytes` bytes.
  bool read_line(std::string& line, uint64_t max_bytes = kMaxLineBytes);

  // Reads a line of a log, where a last line without '\n' is incomplete: returns false for it.
  bool read_whole_line(std::string& line) { return read_line(line) && has_newline_; }

  // Returns the bytes from the current position to the end. Throws UserError if there are more than
  // `max_bytes`.
  std::string read_rest(uint64_t max_bytes);

  // Returns the next `size` bytes, or fewer at the end, without consuming them. Valid until the
  // next call.
  std::string_view peek(size_t size);

  // Moves to byte `offset` of a regular file.
  void seek(uint64_t offset);

 protected:
  int_type underflow() override;
  std::streamsize xsgetn(char* into, std::streamsize count) override;

 private:
  Descriptor file_;
  std::string name_;
  std::vector<char> buffer_;
  bool has_newline_ = false;
};

}  // namespace moe
