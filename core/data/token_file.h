#pragma once
// The examples of a data set in one file that is mapped while a run trains; core/io/formats.md
// defines its bytes. It is written front to back with 8 bytes of memory per example, and read
// through the map with none.
//
// A label of text is its token or no loss, so only the lengths of the runs of the two are stored;
// rows with other labels store them all.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/data/examples.h"
#include "core/io/checksums.h"
#include "core/io/mapped_file.h"

namespace moe::data {

inline constexpr uint32_t kTokenFileVersion = 1;

// The bytes of a token file as structs, little endian as every machine that moe runs on.
namespace layout {

inline constexpr std::array<char, 8> kMagic = {'m', 'o', 'e', ' ', 't', 'o', 'k', '\n'};
inline constexpr std::array<char, 8> kUnfinishedMagic = {'m', 'o', 'e', ' ', 'p', 'a', 'r', 't'};
inline constexpr uint32_t kLabelsFollow = 0xFFFFFFFF;  // in Block::runs
inline constexpr uint64_t kAlignBytes = 8;             // of blocks

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = 0;
  uint32_t id_bytes = 0;               // 2 or 4
  uint64_t key_high = 0, key_low = 0;  // of the sources of the tokens
  uint64_t vocab_size = 0;
  uint64_t files = 0, examples = 0, tokens = 0;
  uint64_t blocks_end = 0;                   // offset of the index
  uint64_t blocks_high = 0, blocks_low = 0;  // digest of [sizeof(Header), blocks_end)
  uint64_t tables_high = 0, tables_low = 0;  // of index and files
  uint64_t header_high = 0, header_low = 0;  // of the bytes above
};
static_assert(sizeof(Header) == 120);
inline constexpr size_t kHeaderSummedBytes = offsetof(Header, header_high);

// Precedes the ids of an example. After them, at the next multiple of 4: u32 runs[runs] or
// i32 labels[tokens].
struct Block {
  uint32_t tokens = 0;
  uint32_t runs = 0;  // number of runs, alternately without and with loss; they sum to `tokens`
  int64_t line = 0;
};
static_assert(sizeof(Block) == 16);

struct File {
  uint32_t format = 0, packing = 0;
  uint64_t examples = 0, tokens = 0;
};
static_assert(sizeof(File) == 24);

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace layout

// The file is not as a TokenFileWriter left it: truncated, damaged, of another version or key.
class BadTokenFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TokenFileWriter {
 public:
  // `file` is empty and open for writing, `name` its name in errors; both must outlive the writer.
  // `key` identifies the sources of the tokens.
  TokenFileWriter(const Descriptor& file, const std::filesystem::path& name, const io::Digest& key,
                  int64_t vocab_size);

  // Examples come in file order; ids and labels lie in the vocabulary. Throws UserError if the disk
  // is full.
  void add(const Example& example);
  // Writes the tables, then the header: a file without finish() is recognised as incomplete.
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
  uint64_t written_ = 0;  // bytes, including those in the buffer
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> index_;  // offset of each example
  std::vector<FileRange> ranges_;
  io::ContentHash blocks_;
};

class TokenFile : public ExampleStore {
 public:
  // Reads the whole file once. Throws BadTokenFile if a byte differs from what was written, if the
  // file has another key, or if a value leads outside the file or the vocabulary.
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
  int descriptor() const { return file_.descriptor(); }  // open while this object lives

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
