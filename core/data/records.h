#pragma once
// Data files (core/io/formats.md, "Training data") as streams of records: JSON lines, other JSON
// objects, the elements of a JSON array, the rows of a table, or the documents of a plain text. One
// record is in memory at a time. Compressed
// files are decompressed while they are read, 64 KiB at a time (zstd adds its window, at most 128
// MiB). After kFreeBytes a file that expands to more than kMaxExpansion times its size is refused.
// Documents are stripped of white space; empty ones are skipped.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/read_file.h"

namespace moe::data {

enum class Packing { kNone, kGzip, kZstd, kParquet };

const char* packing_name(Packing packing);  // "gzip", "zstd", "Parquet" or ""

// Returns the extension of `file` before that of its compression: ".csv" for a.csv.gz.
std::string format_extension(const std::filesystem::path& file);

// Throws UserError naming `where` and the first invalid byte unless `text` is UTF-8.
void check_utf8(std::string_view text, const std::string& where);

inline constexpr uint64_t kMaxExpansion = 500;
inline constexpr uint64_t kFreeBytes = uint64_t{256} << 20;
inline constexpr size_t kMaxRecordBytes = size_t{64} << 20;

// Error of compressed data that are truncated, damaged or a decompression bomb. RecordReader
// converts it to a UserError with file and line.
class BrokenStream : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct OpenFile {
  std::unique_ptr<std::streambuf> bytes;
  Packing packing = Packing::kNone;
};

// Opens a data file of any name for reading: plain, gzip, zstd, or Parquet as one line with a JSON
// object per row. With Pipes::kAllowed `file` may be a pipe, and "-" is standard input. Throws
// UserError if the file is missing or unreadable, if its first bytes are those of another kind of
// file (Arrow, SQLite, zip, UTF-16, an HTML page, ...), or if it is Parquet and moe was built
// without its reader. Reading from `bytes` throws BrokenStream.
OpenFile open_data_file(const std::filesystem::path& file, Pipes pipes = Pipes::kRefused);

// Returns the name of a data file for messages.
std::string data_file_name(const std::filesystem::path& file, Pipes pipes);

// kJsonObjects: objects of several lines. kJsonArray: also the array of {"data": [...]}. kTable:
// CSV or TSV (by the name of the file) with a header; a record is a JSON object of strings.
enum class RecordForm { kJsonLines, kJsonObjects, kJsonArray, kTable, kText };

struct Record {
  std::string text;        // with an error: a JSON array of the fields of the row
  int64_t line = 1;        // where it begins, from 1
  std::string error = {};  // why the record cannot be read, with its place, or ""
};

class RecordReader {
 public:
  // Throws UserError if open_data_file() does, or if the file is empty.
  explicit RecordReader(const std::filesystem::path& file, Pipes pipes = Pipes::kRefused);

  RecordForm form() const { return form_; }
  Packing packing() const { return file_bytes_.packing; }
  // Returns the next record, nullopt at the end of the file. Throws UserError with file and line
  // for a record of more than kMaxRecordBytes, an array that is not closed or has other text
  // between its elements, text that is not UTF-8, and compressed data that are truncated or
  // damaged.
  std::optional<Record> next();

 private:
  void find_form();
  auto with_line(const auto& read);  // runs read(); adds file and line to a BrokenStream
  [[noreturn]] void fail(int64_t line, const std::string& message) const;
  std::optional<Record> next_line();
  std::optional<Record> next_element();
  std::optional<Record> next_object();
  std::optional<Record> next_row();
  std::optional<Record> next_document();
  bool read_line(std::string& line);    // returns false at the end of the file
  std::vector<std::string> read_row();  // none at the end of the file
  void find_json_form();
  int peek();
  int take();  // reads a byte and counts lines; EOF at the end of the file
  void skip_space();
  void read_to_brace(std::string& text, int64_t depth);
  void check_length(size_t bytes, int64_t line) const;

  std::filesystem::path file_;
  std::string name_;  // of the file, for messages
  OpenFile file_bytes_;
  RecordForm form_ = RecordForm::kText;
  int64_t line_ = 1;
  bool array_open_ = false, array_is_wrapped_ = false;  // kJsonArray
  std::string put_back_;                                // bytes to read before those of the file
  size_t put_back_at_ = 0;
  std::vector<std::string> header_;  // kTable
};

}  // namespace moe::data

// Entry point of libmoe_parquet.so (parquet.cpp), which is loaded from the folder of the binary
// when the first Parquet file is opened, because the Arrow libraries are large. The caller owns the
// result. Throws UserError if the file is not a Parquet file.
extern "C" std::streambuf* moe_open_parquet(const char* file);
