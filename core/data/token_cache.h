#pragma once
// Text is tokenised once: the examples of a data set stand in a token file (core/data/token_file.h)
// that is named by what they were made from, the bytes of every data file and of the tokenizer and
// every setting that shapes a token. Another run of the same data maps it and begins at once. What
// stands under that name and is not whole is never trusted, but made anew.
//
// A file appears under its name all at once (temporary name, fsync, rename), so runs that make the
// same one at the same time do not disturb each other. Nothing is ever removed but what a killed
// run left half made: to empty the cache, delete its folder; a run that goes on makes its file
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

// Where token files are kept.
struct CacheLocation {
  std::filesystem::path
      folder;             // empty: in none; the tokens are in a temporary file without a name
  bool may_fail = false;  // where the folder cannot be written, do without it
};

// The word of --cache: "off", a folder, or "" = $XDG_CACHE_HOME/moe/tokens, ~/.cache/moe/tokens.
CacheLocation cache_location(const std::string& word);

// The file that ids come from; one that is not there counts as none. And what else BOS, EOS and ids
// depend on, as a text (core/tokenizer/tokenizer.h, special_token_words).
struct TokenizerSource {
  std::filesystem::path file;
  std::string special_tokens;
};

// What the examples of `sources` depend on: bytes of all files and how they are read. `on_block` is
// called between blocks and may throw.
io::Digest token_key(const std::vector<Source>& sources, const ReadSettings& settings,
                     int64_t vocab_size, const TokenizerSource& tokenizer,
                     const std::function<void()>& on_block);

class TokenFile;

// The token files of a run of several processes, so that one process a host tokenises and the
// others map what it made. That one opens its data sets first and tells the others text(); they
// take() it and open the same data sets in the same order. Where a file cannot be had that way
// (other mounts, another user, a process that is gone) each does without.
class HostTokens {
 public:
  // "KEY KEY PROCESS DESCRIPTOR" a line, in decimal: /proc/PROCESS/fd/DESCRIPTOR is a token file of
  // the key whose two halves these are. It holds for as long as this object does, also of files
  // that have no name.
  std::string text() const;
  void take(const std::string& text);  // lines that are none of these are left out

  void offer(const io::Digest& key, std::shared_ptr<const TokenFile> tokens);
  // The next file that was taken, checked in full; null when there is none or it cannot be used.
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
  TokenizerSource tokenizer;         // where `codec` comes from
  std::function<TextCodec()> codec;  // called only where text is tokenised
  CacheLocation location;
  HostTokens* shared = nullptr;  // of a run of several processes
  // Called while files are read, often, with the examples and tokens made so far (0 while contents
  // are looked at); may throw.
  std::function<void(int64_t examples, int64_t tokens)> on_progress = [](int64_t, int64_t) {};
};

// The examples, mapped. `notes` is told where their tokens are and what was found broken, a line
// each. UserError: what stream_examples says, a file that changes while it is read, a folder that
// was asked for and cannot be written, a full disk.
Examples open_or_tokenise(const CacheRequest& request, std::vector<std::string>& notes);

}  // namespace moe::data
