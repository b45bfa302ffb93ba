#include "core/data/token_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "core/base/error.h"
#include "core/io/file.h"

namespace moe::data {

namespace {

uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// Returns the bytes of the ids of an example, up to its labels.
uint64_t ids_bytes(uint64_t tokens, uint32_t id_bytes) {
  return round_up(tokens * id_bytes, sizeof(uint32_t));
}

using layout::load;

void require(bool holds, const char* words) {
  if (!holds) {
    throw BadTokenFile(words);
  }
}

// Returns the header, after checking its digest and key; counts and offsets are not checked yet.
layout::Header check_header(std::span<const std::byte> bytes, const io::Digest& key,
                            int64_t vocab_size) {
  require(bytes.size() >= sizeof(layout::Header), "is cut short");
  const auto header = load<layout::Header>(bytes.data());
  require(header.magic == layout::kMagic, "is no file of tokens, or was not finished");
  const io::Digest own = io::digest_of(bytes.first(layout::kHeaderSummedBytes));
  require(own == io::Digest{header.header_high, header.header_low}, "has a damaged header");
  require(header.version == kTokenFileVersion, "is of another version of moe");
  require(key == io::Digest{header.key_high, header.key_low} &&
              header.vocab_size == static_cast<uint64_t>(vocab_size),
          "was made from other data");
  require(header.id_bytes == 2 || header.id_bytes == 4, "has ids of an unknown size");
  require(header.examples > 0 && header.files > 0, "holds no example");
  return header;
}

constexpr size_t kBufferBytes = size_t{1} << 20;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Sets `runs` to the lengths of the runs, alternately without and with loss. Returns false if a
// label is neither its token nor kNoLoss.
bool find_runs(const Example& example, std::vector<uint32_t>& runs) {
  runs.assign(1, 0);
  bool learned = false;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool learns = example.labels[t] != kNoLoss;
    if (learns && example.labels[t] != example.ids[t]) {
      return false;
    }
    if (learns != learned) {
      runs.push_back(0);
      learned = learns;
    }
    ++runs.back();
  }
  return true;
}

uint32_t id_bytes_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

}  // namespace

TokenFileWriter::TokenFileWriter(const Descriptor& file, const std::filesystem::path& name,
                                 const io::Digest& key, int64_t vocab_size)
    : file_(file), name_(name), key_(key), vocab_size_(vocab_size) {
  put(bytes_of(layout::Header{layout::kUnfinishedMagic}));
  flush();
}

void TokenFileWriter::add(const Example& example) {
  MOE_CHECK(!example.ids.empty() && example.ids.size() == example.labels.size());
  MOE_CHECK(example.ids.size() < std::numeric_limits<uint32_t>::max());
  const auto file = static_cast<size_t>(example.file);
  MOE_CHECK(file + 1 >= ranges_.size(), "file {} after {}", file, ranges_.size());
  while (ranges_.size() <= file) {
    ranges_.push_back({examples(), 0, 0});
  }
  const auto tokens = static_cast<int64_t>(example.ids.size());
  ++ranges_.back().count;
  ranges_.back().tokens += tokens;
  tokens_ += tokens;
  index_.push_back(written_);
  std::vector<uint32_t> runs;
  const bool has_runs = find_runs(example, runs);
  layout::Block block;
  block.tokens = static_cast<uint32_t>(tokens);
  block.runs = has_runs ? static_cast<uint32_t>(runs.size()) : layout::kLabelsFollow;
  block.line = example.line;
  put(bytes_of(block));
  if (id_bytes_for(vocab_size_) == 2) {
    std::vector<uint16_t> narrow(example.ids.begin(), example.ids.end());
    narrow.resize(narrow.size() + narrow.size() % 2);
    put(bytes_of(narrow));
  } else {
    put(bytes_of(example.ids));
  }
  put(has_runs ? bytes_of(runs) : bytes_of(example.labels));
  const std::vector<std::byte> padding(round_up(written_, layout::kAlignBytes) - written_);
  put(padding);
}

void TokenFileWriter::finish(const std::vector<FileForm>& forms) {
  MOE_CHECK(forms.size() == ranges_.size(), "{} forms, {} files", forms.size(), ranges_.size());
  flush();
  layout::Header header;
  header.version = kTokenFileVersion;
  header.id_bytes = id_bytes_for(vocab_size_);
  header.key_high = key_.high;
  header.key_low = key_.low;
  header.vocab_size = static_cast<uint64_t>(vocab_size_);
  header.files = forms.size();
  header.examples = index_.size();
  header.tokens = static_cast<uint64_t>(tokens_);
  header.blocks_end = written_;
  const io::Digest blocks = blocks_.digest();
  header.blocks_high = blocks.high;
  header.blocks_low = blocks.low;
  std::vector<layout::File> files;
  for (size_t file = 0; file < forms.size(); ++file) {
    files.push_back(
        {static_cast<uint32_t>(forms[file].format), static_cast<uint32_t>(forms[file].packing),
         static_cast<uint64_t>(ranges_[file].count), static_cast<uint64_t>(ranges_[file].tokens)});
  }
  io::ContentHash tables;
  tables.update(bytes_of(index_));
  tables.update(bytes_of(files));
  header.tables_high = tables.digest().high;
  header.tables_low = tables.digest().low;
  const io::Digest own = io::digest_of(bytes_of(header).first(layout::kHeaderSummedBytes));
  header.header_high = own.high;
  header.header_low = own.low;
  io::write_all(file_, bytes_of(index_), name_);
  io::write_all(file_, bytes_of(files), name_);
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) {
    io::throw_write_error(errno, name_);
  }
  io::write_all(file_, bytes_of(header), name_);
}

void TokenFileWriter::put(std::span<const std::byte> bytes) {
  written_ += bytes.size();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) {
    flush();
  }
}

void TokenFileWriter::flush() {
  const bool is_header = written_ == sizeof(layout::Header);
  if (!is_header) {
    blocks_.update(buffer_);
  }
  io::write_all(file_, buffer_, name_);
  buffer_.clear();
}

TokenFile::TokenFile(io::MappedFile file, const io::Digest& key, int64_t vocab_size)
    : file_(std::move(file)) {
  const std::span<const std::byte> bytes = file_.bytes();
  const layout::Header header = check_header(bytes, key, vocab_size);
  const uint64_t end = header.blocks_end, size = bytes.size();
  require(end >= sizeof(layout::Header) && end <= size && end % layout::kAlignBytes == 0,
          "is cut short");
  const uint64_t tables = size - end;
  require(header.examples <= tables / sizeof(uint64_t) &&
              header.files <= tables / sizeof(layout::File) &&
              tables == header.examples * sizeof(uint64_t) + header.files * sizeof(layout::File),
          "is cut short or has bytes behind its end");
  const auto tables_sum = io::digest_of(bytes.subspan(end));
  require(tables_sum == io::Digest{header.tables_high, header.tables_low}, "has a damaged index");
  size_ = static_cast<int64_t>(header.examples);
  id_bytes_ = header.id_bytes;
  index_ = bytes.data() + end;
  check_files(header.files);
  int64_t tokens = 0;
  for (const auto& range : ranges_) {
    tokens += range.tokens;
  }
  require(static_cast<uint64_t>(tokens) == header.tokens, "does not add up");
  const auto blocks = bytes.subspan(sizeof(layout::Header), end - sizeof(layout::Header));
  require(io::digest_of(blocks) == io::Digest{header.blocks_high, header.blocks_low},
          "has damaged tokens");
  check_blocks(end, vocab_size);
}

// Checks the table of files: known forms, counts that add up.
void TokenFile::check_files(uint64_t files) {
  const std::byte* table = index_ + static_cast<uint64_t>(size_) * sizeof(uint64_t);
  int64_t begin = 0;
  for (uint64_t file = 0; file < files; ++file) {
    const auto entry = load<layout::File>(table + file * sizeof(layout::File));
    require(entry.format <= static_cast<uint32_t>(Format::kText) &&
                entry.packing <= static_cast<uint32_t>(Packing::kParquet),
            "names an unknown form");
    require(entry.examples > 0 && entry.examples <= static_cast<uint64_t>(size_ - begin) &&
                entry.tokens <= file_.bytes().size(),
            "does not add up");
    forms_.push_back({static_cast<Format>(entry.format), static_cast<Packing>(entry.packing)});
    ranges_.push_back(
        {begin, static_cast<int64_t>(entry.examples), static_cast<int64_t>(entry.tokens)});
    begin += ranges_.back().count;
  }
  require(begin == size_, "does not add up");
}

// Checks that the blocks tile the file from header to index and hold the tokens of their files.
void TokenFile::check_blocks(uint64_t end, int64_t vocab_size) const {
  uint64_t offset = sizeof(layout::Header);
  int64_t index = 0;
  for (const auto& range : ranges_) {
    int64_t tokens = 0;
    for (; index < range.begin + range.count; ++index) {
      require(load<uint64_t>(index_ + static_cast<uint64_t>(index) * sizeof(uint64_t)) == offset,
              "has an index that leads elsewhere");
      const uint64_t next = check_block(offset, end, vocab_size);
      tokens += length(index);
      offset = next;
    }
    require(tokens == range.tokens, "does not add up");
  }
  require(offset == end, "has bytes that belong to no example");
}

// Returns the end of the block at `offset`, after checking that it lies before `end` and that its
// ids and labels are in the vocabulary.
uint64_t TokenFile::check_block(uint64_t offset, uint64_t end, int64_t vocab_size) const {
  require(end - offset >= sizeof(layout::Block), "has an example that is cut short");
  const std::byte* at = file_.bytes().data() + offset;
  const auto block = load<layout::Block>(at);
  const bool has_labels = block.runs == layout::kLabelsFollow;
  const uint64_t followers = has_labels ? block.tokens : block.runs;
  // At most 2^32 * 8 + 2^32 * 4: no overflow.
  const uint64_t bytes = round_up(
      sizeof(layout::Block) + ids_bytes(block.tokens, id_bytes_) + followers * sizeof(uint32_t),
      layout::kAlignBytes);
  require(block.tokens > 0 && block.line > 0 && bytes <= end - offset,
          "has an example that is cut short");
  const std::byte* ids = at + sizeof(layout::Block);
  const std::byte* rest = ids + ids_bytes(block.tokens, id_bytes_);
  uint64_t in_runs = 0;
  for (uint64_t follower = 0; follower < followers; ++follower, rest += sizeof(uint32_t)) {
    const auto label = load<int32_t>(rest);
    require(!has_labels || label == kNoLoss || (label >= 0 && label < vocab_size),
            "has a label outside the vocabulary");
    in_runs += load<uint32_t>(rest);
  }
  require(has_labels || in_runs == block.tokens, "has labels that do not add up");
  for (int64_t t = 0; t < static_cast<int64_t>(block.tokens); ++t) {
    const int32_t token = id(ids, t);
    require(token >= 0 && token < vocab_size, "has a token outside the vocabulary");
  }
  return offset + bytes;
}

const std::byte* TokenFile::block(int64_t index) const {
  MOE_CHECK(index >= 0 && index < size_, "{} of {}", index, size_);
  return file_.bytes().data() +
         load<uint64_t>(index_ + static_cast<uint64_t>(index) * sizeof(uint64_t));
}

int32_t TokenFile::id(const std::byte* ids, int64_t position) const {
  return id_bytes_ == 2 ? load<uint16_t>(ids + 2 * position) : load<int32_t>(ids + 4 * position);
}

int64_t TokenFile::length(int64_t index) const { return load<layout::Block>(block(index)).tokens; }

int64_t TokenFile::line(int64_t index) const { return load<layout::Block>(block(index)).line; }

void TokenFile::add_ids(int64_t index, int64_t begin, int64_t end,
                        std::vector<int64_t>& ids) const {
  const std::byte* from = block(index) + sizeof(layout::Block);
  for (int64_t t = begin; t < end; ++t) {
    ids.push_back(id(from, t));
  }
}

void TokenFile::add_labels(int64_t index, int64_t begin, int64_t end,
                           std::vector<int32_t>& labels) const {
  const std::byte* at = block(index);
  const auto head = load<layout::Block>(at);
  const std::byte* ids = at + sizeof(layout::Block);
  const std::byte* rest = ids + ids_bytes(head.tokens, id_bytes_);
  if (head.runs == layout::kLabelsFollow) {
    for (int64_t t = begin; t < end; ++t) {
      labels.push_back(load<int32_t>(rest + static_cast<int64_t>(sizeof(int32_t)) * t));
    }
    return;
  }
  int64_t run_begin = 0;
  for (uint32_t run = 0; run < head.runs && run_begin < end; ++run, rest += sizeof(uint32_t)) {
    const int64_t run_end = run_begin + load<uint32_t>(rest);
    const bool learned = run % 2 == 1;
    for (int64_t t = std::max(run_begin, begin); t < std::min(run_end, end); ++t) {
      labels.push_back(learned ? id(ids, t) : kNoLoss);
    }
    run_begin = run_end;
  }
}

}  // namespace moe::data
