#pragma once
// The cache of token files (core/data/token_file.h): text is tokenised once. A file is named by the
// hash of everything its tokens depend on: the bytes of every data file and of the tokenizer, and
// every setting that shapes a token. A later run of the same data maps it. A file that is damaged
// or incomplete is made anew.
//
// A file appears under its name at once (temporary name, fsync, rename), so runs that make the same
// one at the same time do not disturb each other. Nothing is removed but the partial files of
// killed runs. The cache is emptied by deleting its folder; a run that resumes makes its file
// again.

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/data/examples.h"
#include "core/io/checksums.h"

namespace moe::data {

struct CacheLocation {
  std::filesystem::path folder;  // empty: tokens go to a temporary file without a name
  bool may_fail = false;         // do without the folder if it cannot be written
};

// Parses --cache: "off", a folder, or "" for $XDG_CACHE_HOME/moe/tokens, else ~/.cache/moe/tokens.
CacheLocation cache_location(const std::string& word);

// The tokenizer's file, which may be missing, and io::special_token_words().
struct TokenizerSource {
  std::filesystem::path file;
  std::string special_tokens;
};

// Returns the hash of everything that the examples of `sources` depend on. `on_block` is called
// between blocks of the files and may throw.
io::Digest token_key(const std::vector<Source>& sources, const ReadSettings& settings,
                     int64_t vocab_size, const TokenizerSource& tokenizer,
                     const std::function<void()>& on_block);

class TokenFile;

// Shares token files between the processes of a run on one host: one process tokenises, the others
// map its files. That process opens its data sets first and sends text() to the others; they take()
// it and open the same data sets in the same order. A process that cannot open a file this way
// (other mounts, another user, an ended process) tokenises itself.
class HostTokens {
 public:
  // Returns a line "KEY_HIGH KEY_LOW PROCESS DESCRIPTOR" for each file, in decimal:
  // /proc/PROCESS/fd/DESCRIPTOR is a token file of that key. Valid while this object lives, also
  // for files without a name.
  std::string text() const;
  void take(const std::string& text);  // ignores other lines

  void offer(const io::Digest& key, std::shared_ptr<const TokenFile> tokens);
  // Returns the next file of take(), checked in full; null if there is none or it cannot be used.
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
  TokenizerSource tokenizer;         // the source of `codec`
  std::function<TextCodec()> codec;  // called only if text is tokenised
  CacheLocation location;
  HostTokens* shared = nullptr;  // in a run of several processes
  // Called often while files are read, with the examples and tokens made so far (0 while files are
  // hashed); may throw.
  std::function<void(int64_t examples, int64_t tokens)> on_progress = [](int64_t, int64_t) {};
};

// Returns the examples, mapped. Appends to `notes` a line on where their tokens are and on each
// damaged file. Throws UserError as stream_examples() does, if a file changes while it is read, if
// the folder of --cache cannot be written, or if the disk is full.
Examples open_or_tokenise(const CacheRequest& request, std::vector<std::string>& notes);

}  // namespace moe::data
