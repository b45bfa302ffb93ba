#pragma once
// Token files and their cache (core/io/formats.md, "Tokens of training data"). Text is tokenized
// once; later runs map the result. A file is named by the hash of everything that its tokens depend
// on. It is renamed into place, so runs that write the same file at the same time do not conflict.
// A damaged or incomplete file is written again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/data/examples.h"
#include "core/io/checksums.h"
#include "core/io/file.h"

namespace moe::data {

inline constexpr uint32_t kTokenFileVersion = 1;

// Layout of a token file, little endian.
namespace layout {

inline constexpr std::array<char, 8> kMagic = {'m', 'o', 'e', ' ', 't', 'o', 'k', '\n'};
inline constexpr std::array<char, 8> kUnfinishedMagic = {'m', 'o', 'e', ' ', 'p', 'a', 'r', 't'};
inline constexpr uint32_t kLabelsFollow = 0xFFFFFFFF;  // in Block::runs
inline constexpr uint64_t kAlignBytes = 8;             // of blocks

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = 0;
  uint32_t id_bytes = 0;  // 2 or 4
  io::Digest key = {};    // token_key()
  uint64_t vocab_size = 0;
  uint64_t files = 0, examples = 0, tokens = 0;
  uint64_t blocks_end = 0;  // offset of the index
  io::Digest blocks = {};   // of [sizeof(Header), blocks_end)
  io::Digest tables = {};   // of index and files
  io::Digest fields = {};   // of the fields above
};
static_assert(sizeof(Header) == 120);
inline constexpr size_t kHeaderSummedBytes = offsetof(Header, fields);

// Header of an example. Its ids follow, and at the next multiple of 4 bytes u32 runs[runs] or
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

// Error of a token file that is truncated or damaged, or has another version or key.
class BadTokenFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Writer of a token file. Uses 8 bytes of memory per example.
class TokenFileWriter {
 public:
  // `file` must be empty and open for writing. `name` is its name in errors. Both must outlive the
  // writer. `key` is token_key().
  TokenFileWriter(const Descriptor& file, const std::filesystem::path& name, const io::Digest& key,
                  int64_t vocab_size);

  // Appends an example. Requires file order, and ids and labels within the vocabulary. Throws
  // UserError if the disk is full.
  void add(const Example& example);
  // Writes the tables, then the header. Without this call the file is incomplete.
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

// A mapped token file. Uses no memory per example.
class TokenFile : public ExampleStore {
 public:
  // Reads and checks the whole file. Throws BadTokenFile if a digest or the key differs, or if a
  // value is outside the file or the vocabulary.
  TokenFile(io::MappedFile file, const io::Digest& key, int64_t vocab_size);

  int64_t size() const override { return size_; }
  int64_t length(int64_t index) const override;
  int64_t line(int64_t index) const override;
  void append(int64_t index, int64_t begin, int64_t end, std::vector<int64_t>& ids,
              std::vector<int32_t>& labels) const override;

  const std::vector<FileForm>& forms() const { return forms_; }
  const std::vector<FileRange>& ranges() const { return ranges_; }
  uint64_t bytes() const { return file_.bytes().size(); }
  int descriptor() const { return file_.descriptor(); }  // open while this object lives

 private:
  const std::byte* block(int64_t index) const;
  int32_t id(const std::byte* ids, int64_t position) const;
  uint64_t check_block(uint64_t offset, uint64_t end, int64_t vocab_size) const;
  void read_files(uint64_t files);
  void check_blocks(uint64_t end, int64_t vocab_size) const;

  io::MappedFile file_;
  int64_t size_ = 0;
  uint32_t id_bytes_ = 0;             // 2 or 4
  const std::byte* index_ = nullptr;  // u64 offsets [size_], in the mapping
  std::vector<FileForm> forms_;
  std::vector<FileRange> ranges_;
};

struct CacheLocation {
  std::filesystem::path folder;  // empty: tokens go to a temporary file without a name
  bool may_fail = false;         // use a temporary file if the folder cannot be written
};

// Parses --cache: "off", a folder, or "" for $XDG_CACHE_HOME/moe/tokens, else ~/.cache/moe/tokens.
CacheLocation cache_location(const std::string& word);

// Tokenizer, for token_key(): its file, which may be missing, and io::special_token_key().
struct TokenizerSource {
  std::filesystem::path file;
  std::string special_tokens;
};

// Returns the hash of everything that the examples of `sources` depend on. Calls `on_block`, which
// may throw, between blocks of the files.
io::Digest token_key(const std::vector<Source>& sources, const ReadSettings& settings,
                     int64_t vocab_size, const TokenizerSource& tokenizer,
                     const std::function<void()>& on_block);

// Shares token files between the processes of a run on one host. One process opens its data sets
// and sends text() to the others, which pass it to take() and open the same data sets in the same
// order. A process that cannot open a file this way (other mounts, another user, an ended process)
// tokenizes the data itself.
class HostTokens {
 public:
  // Returns a line "KEY_HIGH KEY_LOW PROCESS DESCRIPTOR" for each file, in decimal. Valid while
  // this object lives.
  std::string text() const;
  void take(const std::string& text);  // ignores invalid lines

  // Adds a file to text().
  void offer(const io::Digest& key, std::shared_ptr<const TokenFile> tokens);
  // Opens and checks the next file of take(). Returns null if there is none, if it cannot be used,
  // or if it does not hold `files` data files.
  std::shared_ptr<const TokenFile> next(int64_t vocab_size, size_t files);

 private:
  struct Taken {
    io::Digest key;
    int64_t process = 0, descriptor = 0;
  };
  std::vector<std::pair<io::Digest, std::shared_ptr<const TokenFile>>> offered_;
  std::deque<Taken> taken_;
};

struct CacheRequest {
  std::vector<Source> sources;
  ReadSettings settings;
  int64_t vocab_size = 0;
  TokenizerSource tokenizer;         // of `codec`
  std::function<TextCodec()> codec;  // called only if text is tokenized
  CacheLocation location;
  HostTokens* shared = nullptr;  // in a run of several processes
  // Called often while files are read, with the number of examples and tokens so far (0 while files
  // are hashed). May throw.
  std::function<void(int64_t examples, int64_t tokens)> on_progress = [](int64_t, int64_t) {};
};

// Returns the examples in a mapped token file. Adds notes on where the file is, on damaged files
// and on the records. Throws UserError as stream_examples() does, if a file changes while it is
// read, if the folder of --cache cannot be written, or if the disk is full.
Examples open_or_tokenize(const CacheRequest& request, std::vector<std::string>& notes);

}  // namespace moe::data
