#pragma once
// A data file as a stream of records: JSON lines, the elements of a JSON array, or the documents of
// a plain text. One record at a time is in memory, so a file may be larger than that; a record may
// not exceed kMaxRecordBytes. gzip and zstd are unpacked on the way (core/data/compressed.h); lines
// are those of the text inside.
//
// The form is told from the first character that is no white space: '[' = array, '{' = JSON lines,
// else text. A name that ends in .txt (.txt.gz, .txt.zst) is always text. Documents of a text stand
// between lines
// `<|endoftext|>`; white space at their ends is dropped, and so are documents that hold nothing
// else.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <streambuf>
#include <string>

#include "core/data/compressed.h"

namespace moe::data {

enum class RecordForm { kJsonLines, kJsonArray, kText };

inline constexpr size_t kMaxRecordBytes = size_t{64} << 20;

struct Record {
  std::string text;
  int64_t line = 1;  // where it starts, from 1
};

class RecordReader {
 public:
  // UserError: the file is missing, a folder, empty, or of a form that open_data_file refuses.
  explicit RecordReader(const std::filesystem::path& file);

  RecordForm form() const { return form_; }
  Packing packing() const { return file_bytes_.packing; }
  // The next record, or nothing at the end. UserError naming file and line: too long a record, an
  // array that is not closed or holds something between its elements, text that is not UTF-8,
  // packed data that are cut short or damaged.
  std::optional<Record> next();

 private:
  void find_form();
  std::optional<Record> next_of_form();
  [[noreturn]] void fail(const BrokenStream& broken) const;
  std::optional<Record> next_line();
  std::optional<Record> next_element();
  std::optional<Record> next_document();
  bool read_line(std::string& line);  // false at the end of the file
  int peek();
  int take();  // one byte, counting lines; EOF at the end
  void skip_space();
  void read_element_text(std::string& text);
  void check_length(const std::string& text, int64_t line) const;

  std::filesystem::path file_;
  OpenFile file_bytes_;
  RecordForm form_ = RecordForm::kText;
  int64_t line_ = 1;
  bool array_open_ = false;
};

}  // namespace moe::data
