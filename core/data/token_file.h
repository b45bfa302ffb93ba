#pragma once
// The examples of a data set in one file that is mapped while a run trains: core/io/formats.md has
// its bytes. Written front to back with 8 bytes an example in memory, read through the map with
// none, so that neither depends on how much memory there is.
//
// A label of text is its token or no loss, so runs of the two are kept; only rows whose labels say
// something else keep them whole.

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/data/examples.h"
#include "core/io/checksums.h"
#include "core/io/file.h"
#include "core/io/mapped_file.h"

namespace moe::data {

inline constexpr uint32_t kTokenFileVersion = 1;

// The file is not what a TokenFileWriter leaves: cut, damaged, of another version or another key.
class BadTokenFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TokenFileWriter {
 public:
  // `file` is empty and open to write, `name` its name in errors; both outlive the writer. `key`
  // says what the tokens were made from.
  TokenFileWriter(const Descriptor& file, const std::filesystem::path& name, const io::Digest& key,
                  int64_t vocab_size);

  // In file order; ids and labels lie in the vocabulary. UserError when the disk is full.
  void add(const Example& example);
  // What follows the tokens, and the header last: a file without finish() is never taken for whole.
  void finish(const std::vector<FileForm>& forms);

  int64_t examples() const { return static_cast<int64_t>(index_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  void put(std::span<const std::byte> bytes);
  void flush();

  const Descriptor& file_;
  const std::filesystem::path& name_;
  io::Digest key_;
  int64_t vocab_size_;
  int64_t tokens_ = 0;
  uint64_t written_ = 0;  // bytes, those in the buffer included
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> index_;  // where each example stands
  std::vector<FileRange> ranges_;
  io::ContentHash blocks_;
};

class TokenFile : public ExampleStore {
 public:
  // Reads all of it once: BadTokenFile, in words, when any byte is not as it was written, does not
  // belong to `key` or could lead outside the file or the vocabulary.
  TokenFile(io::MappedFile file, const io::Digest& key, int64_t vocab_size);

  int64_t size() const override { return size_; }
  int64_t length(int64_t index) const override;
  int64_t line(int64_t index) const override;
  void add_ids(int64_t index, int64_t begin, int64_t end, std::vector<int64_t>& ids) const override;
  void add_labels(int64_t index, int64_t begin, int64_t end,
                  std::vector<int32_t>& labels) const override;

  const std::vector<FileForm>& forms() const { return forms_; }
  const std::vector<FileRange>& ranges() const { return ranges_; }
  uint64_t bytes() const { return file_.bytes().size(); }
  int descriptor() const { return file_.descriptor(); }  // of the file, open while this lives

 private:
  const std::byte* block(int64_t index) const;
  int32_t id(const std::byte* ids, int64_t position) const;
  uint64_t check_block(uint64_t offset, uint64_t end, int64_t vocab_size) const;
  void check_files(uint64_t files);
  void check_blocks(uint64_t end, int64_t vocab_size) const;

  io::MappedFile file_;
  int64_t size_ = 0;
  uint32_t id_bytes_ = 0;             // 2 or 4
  const std::byte* index_ = nullptr;  // u64 an example, in the map
  std::vector<FileForm> forms_;
  std::vector<FileRange> ranges_;
};

}  // namespace moe::data
