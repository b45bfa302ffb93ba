#pragma once
// File descriptors, and reading of files that are small or read front to back. Every file of a
// model, a run, a task or a data set is opened here or mapped (core/io/file.h, which uses
// open_to_read() too): opening never waits for the other end of a named pipe, folders and devices
// are refused, and sizes are limited.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe {

// An open file descriptor, which closes itself. Moved, not copied.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = other.release();
    }
    return *this;
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }

 private:
  void reset() {
    if (number_ >= 0) {
      close(number_);
    }
  }

  int number_ = -1;
};

// Returns an empty file in memory, readable by this user only, which is freed with its last
// descriptor and mapping. Its size may be sealed. The descriptor is never that of a standard
// stream. Throws std::system_error if the system has no more.
Descriptor make_memory_file();

// kAllowed: the file may also be a named pipe or a character device, such as /dev/stdin or the
// shell's <(command). For files that the user names on the command line and that are read once.
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

// Returns the bytes of `file`. Throws UserError as open_to_read() does, and if the file has more
// than `max_bytes` bytes or a read fails.
std::string read_small_file(const std::filesystem::path& file,
                            uint64_t max_bytes = kMaxSmallFileBytes, Pipes pipes = Pipes::kRefused);

// Throws UserError: the file `name` has more than `max_bytes` bytes.
[[noreturn]] void throw_too_large(const std::string& name, uint64_t max_bytes);

// Returns up to `max_bytes` bytes from the start of an open file; nothing if it is not open or not
// a regular file.
std::optional<std::string> read_start(const Descriptor& file, size_t max_bytes);

// Buffered reader of a file of any size, by lines or as a std::streambuf. Throws UserError where a
// read fails.
class FileReader : public std::streambuf {
 public:
  explicit FileReader(const std::filesystem::path& file, Pipes pipes = Pipes::kRefused);
  // `name` is the file in error messages.
  FileReader(Descriptor file, std::string name);

  // Reads the next line into `line`, without its '\n'. Returns false at the end of the file. Throws
  // UserError if the line has more than `max_bytes` bytes.
  bool read_line(std::string& line, uint64_t max_bytes = kMaxLineBytes);

  // Overload for logs: a last line without '\n' was cut short and counts as the end of the file.
  bool read_whole_line(std::string& line) { return read_line(line) && has_newline_; }

  // Returns whether a '\n' followed the last line that was read.
  bool has_newline() const { return has_newline_; }

  // Returns up to `max_bytes` bytes from the current position to the end. Throws UserError if there
  // are more.
  std::string read_rest(uint64_t max_bytes);

  // Returns the next bytes, at most `size` and fewer only at the end, which stay to be read. Valid
  // until the next call.
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
