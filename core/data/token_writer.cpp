// Writes a token file (core/data/token_file.h).

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "core/base/error.h"
#include "core/data/token_file.h"
#include "core/data/token_layout.h"
#include "core/io/file.h"

namespace moe::data {

namespace {

constexpr size_t kBuffer_bytes = size_t{1} << 20;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Lengths of the runs without and with loss, by turns. False where a label is neither its token nor
// no loss.
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
  const std::vector<std::byte> padding(layout::round_up(written_, layout::kAlign_bytes) - written_);
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
  const io::Digest own = io::digest_of(bytes_of(header).first(layout::kHeaderSummed_bytes));
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
  if (buffer_.size() >= kBuffer_bytes) {
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

}  // namespace moe::data
