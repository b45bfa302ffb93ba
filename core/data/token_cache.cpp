#include "core/data/token_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <system_error>
#include <tuple>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/version.h"

namespace moe::data {

namespace {

namespace fs = std::filesystem;

uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// Returns the size of the ids of an example, padded to the beginning of its labels.
uint64_t ids_bytes(uint64_t tokens, uint32_t id_bytes) {
  return round_up(tokens * id_bytes, sizeof(uint32_t));
}

using layout::load;

void require(bool condition, const char* message) {
  if (!condition) {
    throw BadTokenFile(message);
  }
}

// Reads the header and checks its digest and key, but not its counts and offsets.
layout::Header check_header(std::span<const std::byte> bytes, const io::Digest& key,
                            int64_t vocab_size) {
  require(bytes.size() >= sizeof(layout::Header), "is cut short");
  const auto header = load<layout::Header>(bytes.data());
  require(header.magic == layout::kMagic, "is no file of tokens, or was not finished");
  require(io::compute_digest(bytes.first(layout::kHeaderSummedBytes)) == header.fields,
          "has a damaged header");
  require(header.version == kTokenFileVersion, "is of another version of moe");
  require(key == header.key && header.vocab_size == static_cast<uint64_t>(vocab_size),
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
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool has_loss = example.labels[t] != kNoLoss;
    if (has_loss && example.labels[t] != example.ids[t]) {
      return false;
    }
    if (has_loss == (runs.size() % 2 == 1)) {
      runs.push_back(0);
    }
    ++runs.back();
  }
  return true;
}

uint32_t id_bytes_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

fs::path environment_path(const char* name) {
  const char* value = std::getenv(name);
  const fs::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : fs::path();  // the XDG specification ignores relative paths
}

// Returns a folder for a large temporary file: $TMPDIR, else /var/tmp, which is on a disk.
fs::path temporary_folder() {
  const fs::path folder = environment_path("TMPDIR");
  return !folder.empty()                   ? folder
         : ::access("/var/tmp", W_OK) == 0 ? fs::path("/var/tmp")
                                           : fs::temp_directory_path();
}

// Inode, size and time of modification of a file (seconds, nanoseconds), to detect changes.
using Stamp = std::tuple<ino_t, off_t, int64_t, int64_t>;

Stamp read_stamp(const fs::path& file) {
  struct stat status {};
  ::stat(file.c_str(), &status);  // all 0 for a missing file
  return {status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

// Opens the file of an earlier run. Returns null if it is missing or damaged.
std::shared_ptr<const TokenFile> find_tokens(const CacheRequest& request, const fs::path& file,
                                             const io::Digest& key,
                                             std::vector<std::string>& notes) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return nullptr;
  }
  try {
    return std::make_shared<TokenFile>(io::MappedFile(file), key, request.vocab_size);
  } catch (const BadTokenFile& bad) {
    notes.push_back(fmt::format("{}: {}; the data are tokenised anew", file.string(), bad.what()));
  } catch (const UserError& error) {
    notes.push_back(fmt::format("{}; the data are tokenised anew", error.what()));
  }
  return nullptr;
}

// Tokenizes the sources into `file`. Adds remarks about records to `notes`. Throws UserError if a
// source changed since `stamps`. Lists skipped records in `skipped_file`.
std::shared_ptr<const TokenFile> tokenize(const CacheRequest& request, const Descriptor& file,
                                          const fs::path& name, const io::Digest& key,
                                          const std::vector<Stamp>& stamps,
                                          const fs::path& skipped_file,
                                          std::vector<std::string>& notes) {
  TokenFileWriter writer(file, name, key, request.vocab_size);
  const auto sink = [&](Example&& example) {
    writer.add(example);
    request.on_progress(writer.examples(), writer.tokens());
  };
  std::string skipped;
  ReadSettings settings = request.settings;
  settings.on_bad = [&](const BadRecord& bad) {
    request.on_progress(writer.examples(), writer.tokens());
    if (settings.bad_records == BadRecords::kSkip) {
      const auto& [text, line, error] = bad.record;
      skipped += json_text({{"error", bad.message}, {"line", line}, {"record", text}}) + "\n";
    }
  };
  const auto forms =
      stream_examples(request.sources, settings, request.vocab_size, request.codec, sink);
  writer.finish(forms);
  if (!skipped.empty()) {
    io::PartialFile list(skipped_file, S_IRUSR | S_IWUSR);  // as private as the tokens
    io::write_all(list.file(), std::as_bytes(std::span(skipped)), list.path());
    list.commit();
  }
  for (size_t index = 0; index < forms.size(); ++index) {
    const std::string source = request.sources[index].file.string();
    if (forms[index].has_notes()) {
      notes.push_back(fmt::format("{}: {}", source, forms[index].summary()));
    }
    USER_ERROR_IF(read_stamp(source) != stamps[index],
                  "{}: changed while it was read; start again when nothing writes to it", source);
  }
  // Opens the file by its descriptor: another run may have renamed its own file to the name.
  const fs::path number = fmt::format("/proc/self/fd/{}", file.get());
  try {
    return std::make_shared<TokenFile>(io::MappedFile(open_to_read(number), name), key,
                                       request.vocab_size);
  } catch (const BadTokenFile& bad) {
    throw std::runtime_error(fmt::format("{}: {} right after it was written; is the disk whole?",
                                         name.string(), bad.what()));
  }
}

constexpr std::string_view kEnding = ".tokens";
constexpr int kTextRules = 6;  // version of the conversion of records to ids

// Returns true for KEY.tokens, where KEY is 32 hexadecimal digits.
bool is_cache_name(std::string_view name) {
  constexpr size_t kDigits = 32;
  return name.size() == kDigits + kEnding.size() && name.ends_with(kEnding) &&
         name.find_first_not_of("0123456789abcdef") == kDigits;
}

// Creates a file in the cache. Returns null if the folder cannot be written and may_fail is set.
std::unique_ptr<io::PartialFile> make_file(const CacheLocation& location, const fs::path& target,
                                           std::vector<std::string>& notes) {
  std::error_code error;
  fs::create_directories(location.folder, error);
  try {
    USER_ERROR_IF(error, "{}: cannot be created: {}", location.folder.string(), error.message());
    const auto& magic = layout::kUnfinishedMagic;
    io::sweep_partial_files(location.folder, is_cache_name, {magic.data(), magic.size()});
    return std::make_unique<io::PartialFile>(target, S_IRUSR | S_IWUSR);
  } catch (const UserError& failure) {
    USER_ERROR_IF(!location.may_fail, "--cache {}; give another folder, or off", failure.what());
    notes.push_back(fmt::format("no cache of tokens: {}", failure.what()));
    return nullptr;
  }
}

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
  put(bytes_of(layout::Block{static_cast<uint32_t>(tokens),
                             has_runs ? static_cast<uint32_t>(runs.size()) : layout::kLabelsFollow,
                             example.line}));
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
  header.key = key_;
  header.vocab_size = static_cast<uint64_t>(vocab_size_);
  header.files = forms.size();
  header.examples = index_.size();
  header.tokens = static_cast<uint64_t>(tokens_);
  header.blocks_end = written_;
  header.blocks = blocks_.digest();
  std::vector<layout::File> files;
  for (size_t file = 0; file < forms.size(); ++file) {
    files.push_back(
        {static_cast<uint32_t>(forms[file].format), static_cast<uint32_t>(forms[file].packing),
         static_cast<uint64_t>(ranges_[file].count), static_cast<uint64_t>(ranges_[file].tokens)});
  }
  io::ContentHash tables;
  tables.update(bytes_of(index_));
  tables.update(bytes_of(files));
  header.tables = tables.digest();
  header.fields = io::compute_digest(bytes_of(header).first(layout::kHeaderSummedBytes));
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
  if (written_ != sizeof(layout::Header)) {  // not the header
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
  require(io::compute_digest(bytes.subspan(end)) == header.tables, "has a damaged index");
  size_ = static_cast<int64_t>(header.examples);
  id_bytes_ = header.id_bytes;
  index_ = bytes.data() + end;
  read_files(header.files);
  int64_t tokens = 0;
  for (const auto& range : ranges_) {
    tokens += range.tokens;
  }
  require(static_cast<uint64_t>(tokens) == header.tokens, "does not add up");
  const auto blocks = bytes.subspan(sizeof(layout::Header), end - sizeof(layout::Header));
  require(io::compute_digest(blocks) == header.blocks, "has damaged tokens");
  check_blocks(end, vocab_size);
}

// Reads the table of files and checks its values.
void TokenFile::read_files(uint64_t files) {
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

// Returns the end of the block at `offset`. Checks that it is at most `end` and that ids and labels
// are in the vocabulary.
uint64_t TokenFile::check_block(uint64_t offset, uint64_t end, int64_t vocab_size) const {
  require(end - offset >= sizeof(layout::Block), "has an example that is cut short");
  const std::byte* at = file_.bytes().data() + offset;
  const auto block = load<layout::Block>(at);
  const bool has_labels = block.runs == layout::kLabelsFollow;
  const uint64_t num_values = has_labels ? block.tokens : block.runs;  // labels or runs
  // At most 2^32 * 8 + 2^32 * 4: no overflow.
  const uint64_t bytes = round_up(
      sizeof(layout::Block) + ids_bytes(block.tokens, id_bytes_) + num_values * sizeof(uint32_t),
      layout::kAlignBytes);
  require(block.tokens > 0 && block.line > 0 && bytes <= end - offset,
          "has an example that is cut short");
  const std::byte* ids = at + sizeof(layout::Block);
  const std::byte* rest = ids + ids_bytes(block.tokens, id_bytes_);
  uint64_t in_runs = 0;
  for (uint64_t i = 0; i < num_values; ++i, rest += sizeof(uint32_t)) {
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

void TokenFile::append(int64_t index, int64_t begin, int64_t end, std::vector<int64_t>& ids,
                       std::vector<int32_t>& labels) const {
  const auto head = load<layout::Block>(block(index));
  const std::byte* from = block(index) + sizeof(layout::Block);
  for (int64_t t = begin; t < end; ++t) {
    ids.push_back(id(from, t));
  }
  const std::byte* rest = from + ids_bytes(head.tokens, id_bytes_);
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
      labels.push_back(learned ? id(from, t) : kNoLoss);
    }
    run_begin = run_end;
  }
}

CacheLocation cache_location(const std::string& word) {
  if (!word.empty()) {
    return word == "off" ? CacheLocation{} : CacheLocation{word, false};
  }
  const fs::path caches = environment_path("XDG_CACHE_HOME"), home = environment_path("HOME");
  if (!caches.empty()) {
    return {caches / "moe" / "tokens", true};
  }
  return home.empty() ? CacheLocation{} : CacheLocation{home / ".cache" / "moe" / "tokens", true};
}

io::Digest token_key(const std::vector<Source>& sources, const ReadSettings& settings,
                     int64_t vocab_size, const TokenizerSource& tokenizer,
                     const std::function<void()>& on_block) {
  io::ContentHash hash;
  hash.update_text(
      fmt::format("moe {} tokens {} texts {}", kVersion, kTokenFileVersion, kTextRules));
  hash.update_text(fmt::format("vocabulary {} objective {} loss {} most {} format {}", vocab_size,
                               static_cast<int>(settings.objective),
                               static_cast<int>(settings.loss_on), settings.max_per_file,
                               settings.format ? format_name(*settings.format) : "open"));
  hash.update_text(fmt::format("bad {} overlong {} {}", static_cast<int>(settings.bad_records),
                               static_cast<int>(settings.overlong), settings.max_tokens));
  for (const auto& [from, to] : settings.columns) {
    hash.update_text(from);
    hash.update_text(to);
  }
  hash.update_text(settings.text_template.fingerprint());
  std::error_code ignored;
  const bool has_tokenizer = fs::exists(tokenizer.file, ignored);
  hash.update_text(has_tokenizer ? "tokenizer" : "no tokenizer");
  if (has_tokenizer) {
    hash.update_file(tokenizer.file, on_block);
  }
  if (!tokenizer.special_tokens.empty()) {
    hash.update_text(tokenizer.special_tokens);
  }
  for (const auto& source : sources) {
    // The last two extensions decide whether a file is plain text (.txt.gz).
    hash.update_text(source.file.stem().extension().string() + source.file.extension().string());
    hash.update_file(source.file, on_block);
  }
  return hash.digest();
}

std::string HostTokens::text() const {
  std::string text;
  for (const auto& [key, tokens] : offered_) {
    text += fmt::format("{} {} {} {}\n", key.high, key.low, ::getpid(), tokens->descriptor());
  }
  return text;
}

void HostTokens::take(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Taken taken;
    std::string rest;
    if (words >> taken.key.high >> taken.key.low >> taken.process >> taken.descriptor &&
        !(words >> rest) && taken.process > 0 && taken.descriptor >= 0) {
      taken_.push_back(taken);
    }
  }
}

void HostTokens::offer(const io::Digest& key, std::shared_ptr<const TokenFile> tokens) {
  offered_.emplace_back(key, std::move(tokens));
}

std::shared_ptr<const TokenFile> HostTokens::next(int64_t vocab_size, size_t files) {
  if (taken_.empty()) {
    return nullptr;
  }
  const Taken taken = taken_.front();
  taken_.pop_front();
  const fs::path path = fmt::format("/proc/{}/fd/{}", taken.process, taken.descriptor);
  try {
    auto tokens = std::make_shared<TokenFile>(io::MappedFile(path), taken.key, vocab_size);
    return tokens->forms().size() == files ? tokens : nullptr;
  } catch (const std::runtime_error&) {
  }
  return nullptr;
}

namespace {

// Returns the tokens of the sources from the cache, or tokenizes them.
std::shared_ptr<const TokenFile> open_tokens(const CacheRequest& request,
                                             std::vector<std::string>& notes) {
  if (request.shared != nullptr) {
    if (auto tokens = request.shared->next(request.vocab_size, request.sources.size())) {
      notes.push_back("tokens from another process of the run on this host");
      return tokens;
    }
  }
  std::vector<Stamp> stamps;
  for (const auto& source : request.sources) {
    stamps.push_back(read_stamp(source.file));
  }
  const auto on_block = [&] { request.on_progress(0, 0); };
  const io::Digest key =
      token_key(request.sources, request.settings, request.vocab_size, request.tokenizer, on_block);
  const auto share = [&](std::shared_ptr<const TokenFile> tokens, const fs::path& skipped,
                         const std::string& note) {
    if (fs::exists(skipped)) {
      notes.push_back("skipped records are listed in " + skipped.string());
    }
    notes.push_back(fmt::format("{} ({})", note, io::size_text(tokens->bytes())));
    if (request.shared != nullptr) {
      request.shared->offer(key, tokens);
    }
    return tokens;
  };
  const CacheLocation& location = request.location;
  if (!location.folder.empty()) {
    const fs::path target = location.folder / (key.hex() + std::string(kEnding));
    const fs::path skipped = location.folder / (key.hex() + ".skipped.jsonl");
    if (auto tokens = find_tokens(request, target, key, notes)) {
      return share(tokens, skipped, "tokens from the cache " + target.string());
    }
    if (const auto partial = make_file(location, target, notes)) {
      auto tokens = tokenize(request, partial->file(), target, key, stamps, skipped, notes);
      partial->commit();
      return share(tokens, skipped, "tokens cached in " + target.string());
    }
  }
  const fs::path folder = temporary_folder();
  const fs::path skipped = folder / ("moe-" + key.hex() + ".skipped.jsonl");
  const Descriptor file = io::make_nameless_file(folder);
  auto tokens =
      tokenize(request, file, folder / "(a file without a name)", key, stamps, skipped, notes);
  return share(tokens, skipped, "tokens in a temporary file in " + folder.string());
}

}  // namespace

Examples open_or_tokenize(const CacheRequest& request, std::vector<std::string>& notes) {
  for (const auto& source : request.sources) {
    open_data_file(source.file);  // reports a missing or unknown file before any is read
  }
  auto tokens = open_tokens(request, notes);
  Examples examples;
  describe_sources(request.sources, tokens->forms(), examples);
  examples.ranges = tokens->ranges();
  examples.store = std::move(tokens);
  return examples;
}

}  // namespace moe::data
