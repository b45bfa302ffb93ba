#pragma once
// Reading of files that are small or read from front to end. Every file of a model, a run, a task
// or a data set is opened here or mapped (core/io/mapped_file.h, which opens by open_to_read()
// too): opening never waits for the other end of a named pipe, a folder or a device is refused by a
// sentence, and sizes are limited.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/json.h"

namespace moe {

// kAllowed: the file may also be a named pipe or a character device, such as /dev/stdin or the
// shell's <(command). For files that the user names on the command line and that are read once.
enum class Pipes { kRefused, kAllowed };

inline constexpr uint64_t kMaxSmallFileBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxLineBytes = uint64_t{64} << 20;

// Opens `file` for reading. Blocks only for an allowed pipe, until a process has opened its other
// end. Throws UserError if the file is missing, not a regular file or not readable.
Descriptor open_to_read(const std::filesystem::path& file, Pipes pipes = Pipes::kRefused);

// Returns a new descriptor of standard input. Throws UserError if it is closed.
Descriptor open_standard_input();

// Returns the bytes of `file`. Throws UserError as open_to_read() does, and if the file has more
// than `max_bytes` bytes or a read fails.
std::string read_small_file(const std::filesystem::path& file,
                            uint64_t max_bytes = kMaxSmallFileBytes, Pipes pipes = Pipes::kRefused);

// Throws the UserError of a file that has more than `max_bytes` bytes.
[[noreturn]] void throw_too_large(const std::string& name, uint64_t max_bytes);

// Returns the first `bytes` bytes of a regular file, fewer if the file is shorter.
std::string read_file_start(const std::filesystem::path& file, size_t bytes);

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

// Parses JSON text as parse_json() does (core/base/json.h); keys keep their order.
OrderedJson parse_ordered_json(std::string_view text, const std::string& where);

// Returns nothing where parse_json() throws: for files whose damage is no error.
std::optional<Json> try_parse_json(std::string_view text);

}  // namespace moe
