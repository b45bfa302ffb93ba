#include "core/data/token_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/version.h"
#include "core/data/token_file.h"
#include "core/io/file.h"

namespace moe::data {

namespace {

namespace fs = std::filesystem;

fs::path environment_path(const char* name) {
  const char* value = std::getenv(name);
  const fs::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : fs::path();  // as the XDG specification asks
}

// Returns a folder for a large temporary file: $TMPDIR, else one on a disk, not in memory.
fs::path temporary_folder() {
  const fs::path named = environment_path("TMPDIR");
  if (!named.empty()) {
    return named;
  }
  return ::access("/var/tmp", W_OK) == 0 ? fs::path("/var/tmp") : fs::temp_directory_path();
}

// Detects that a file was written to meanwhile.
struct Stamp {
  ino_t inode = 0;
  off_t bytes = 0;
  int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const Stamp&) const = default;
};

Stamp read_stamp(const fs::path& file) {
  struct stat status {};
  ::stat(file.c_str(), &status);  // a missing file has the default stamp
  return {status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

std::vector<Stamp> read_stamps(const std::vector<Source>& sources) {
  std::vector<Stamp> stamps;
  for (const auto& source : sources) {
    stamps.push_back(read_stamp(source.file));
  }
  return stamps;
}

// Returns the extensions of a file: .txt, packed or not, makes every file a text.
std::string extensions(const fs::path& file) {
  return file.stem().extension().string() + file.extension().string();
}

Examples examples_of(const CacheRequest& request, std::shared_ptr<const TokenFile> tokens) {
  Examples examples;
  describe_sources(request.sources, tokens->forms(), examples);
  examples.ranges = tokens->ranges();
  examples.store = std::move(tokens);
  return examples;
}

// As examples_of(), and offers the file to the other processes of the run.
Examples shared_examples(const CacheRequest& request, const io::Digest& key,
                         std::shared_ptr<const TokenFile> tokens) {
  if (request.shared != nullptr) {
    request.shared->offer(key, tokens);
  }
  return examples_of(request, std::move(tokens));
}

void write_tokens(const CacheRequest& request, const Descriptor& file, const fs::path& name,
                  const io::Digest& key) {
  TokenFileWriter writer(file, name, key, request.vocab_size);
  const auto sink = [&](Example&& example) {
    writer.add(example);
    request.on_progress(writer.examples(), writer.tokens());
  };
  const auto forms =
      stream_examples(request.sources, request.settings, request.vocab_size, request.codec, sink);
  writer.finish(forms);
}

// Returns the file of an earlier run, if it exists and is intact.
std::shared_ptr<const TokenFile> find_tokens(const CacheRequest& request, const fs::path& file,
                                             const io::Digest& key,
                                             std::vector<std::string>& notes) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return nullptr;
  }
  try {
    auto tokens = std::make_shared<TokenFile>(io::MappedFile(file), key, request.vocab_size);
    notes.push_back(fmt::format("tokens from the cache {} ({})", file.string(),
                                io::size_text(tokens->bytes())));
    return tokens;
  } catch (const BadTokenFile& bad) {
    notes.push_back(fmt::format("{}: {}; the data are tokenised anew", file.string(), bad.what()));
  } catch (const UserError& error) {
    notes.push_back(fmt::format("{}; the data are tokenised anew", error.what()));
  }
  return nullptr;
}

std::shared_ptr<const TokenFile> tokenise(const CacheRequest& request, const Descriptor& file,
                                          const fs::path& name, const io::Digest& key,
                                          const std::vector<Stamp>& stamps) {
  write_tokens(request, file, name, key);
  for (size_t index = 0; index < stamps.size(); ++index) {
    if (read_stamp(request.sources[index].file) != stamps[index]) {
      throw UserError("{}: changed while it was read; start again when nothing writes to it",
                      request.sources[index].file.string());
    }
  }
  // Opened by its descriptor: another run may have renamed its own file to the name.
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
constexpr int kTextRules = 2;  // incremented when the same record gives other ids than before

// Returns true for KEY.tokens, with the digits of a key.
bool is_cache_name(std::string_view name) {
  constexpr size_t kDigits = 32;
  return name.size() == kDigits + kEnding.size() && name.ends_with(kEnding) &&
         name.find_first_not_of("0123456789abcdef") == kDigits;
}

// Makes a new file in the cache; returns null if the folder cannot be written and may_fail is set.
std::unique_ptr<io::PartialFile> make_file(const CacheLocation& location, const fs::path& target,
                                           std::vector<std::string>& notes) {
  std::error_code error;
  fs::create_directories(location.folder, error);
  try {
    if (error) {
      throw UserError("{}: cannot be made: {}", location.folder.string(), error.message());
    }
    const auto& magic = layout::kUnfinishedMagic;
    io::sweep_partial_files(location.folder, is_cache_name, {magic.data(), magic.size()});
    return std::make_unique<io::PartialFile>(target, S_IRUSR | S_IWUSR);
  } catch (const UserError& failure) {
    if (!location.may_fail) {
      throw UserError("--cache {}; give another folder, or off", failure.what());
    }
    notes.push_back(fmt::format("no cache of tokens: {}", failure.what()));
    return nullptr;
  }
}

}  // namespace

CacheLocation cache_location(const std::string& word) {
  if (word == "off") {
    return {};
  }
  if (!word.empty()) {
    return {word, false};
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
                               static_cast<int>(settings.loss_on), settings.most_per_file,
                               settings.format ? format_name(*settings.format) : "open"));
  hash.update_text(settings.text_template.words());
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
    hash.update_text(extensions(source.file));
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
  } catch (const BadTokenFile&) {
  } catch (const UserError&) {
  } catch (const std::system_error&) {
  }
  return nullptr;
}

Examples open_or_tokenise(const CacheRequest& request, std::vector<std::string>& notes) {
  for (const auto& source : request.sources) {
    open_data_file(source.file);  // reports a missing or unknown file before any is read
  }
  if (request.shared != nullptr) {
    if (auto tokens = request.shared->next(request.vocab_size, request.sources.size())) {
      notes.push_back("tokens from another process of the run on this host");
      return examples_of(request, std::move(tokens));
    }
  }
  const std::vector<Stamp> stamps = read_stamps(request.sources);
  const auto on_block = [&] { request.on_progress(0, 0); };
  const io::Digest key =
      token_key(request.sources, request.settings, request.vocab_size, request.tokenizer, on_block);
  const CacheLocation& location = request.location;
  if (!location.folder.empty()) {
    const fs::path target = location.folder / (key.hex() + std::string(kEnding));
    if (auto tokens = find_tokens(request, target, key, notes)) {
      return shared_examples(request, key, std::move(tokens));
    }
    if (const auto partial = make_file(location, target, notes)) {
      auto tokens = tokenise(request, partial->file(), target, key, stamps);
      partial->commit();
      notes.push_back(
          fmt::format("tokens cached in {} ({})", target.string(), io::size_text(tokens->bytes())));
      return shared_examples(request, key, std::move(tokens));
    }
  }
  const fs::path folder = temporary_folder();
  const Descriptor file = io::make_nameless_file(folder);
  auto tokens = tokenise(request, file, folder / "(a file without a name)", key, stamps);
  notes.push_back(fmt::format("tokens in a temporary file in {} ({})", folder.string(),
                              io::size_text(tokens->bytes())));
  return shared_examples(request, key, std::move(tokens));
}

}  // namespace moe::data
