#pragma once
// A tokenizer with one id per byte (10 + byte), BOS 1 and EOS 2. Examples are shown as text: B and
// E for BOS and EOS, and '.' for a label without loss.

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.h"
#include "core/data/examples.h"
#include "tests/support/memory_examples.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::test {

inline constexpr int64_t kBos = 1, kEos = 2, kVocab = 300;

inline data::TextCodec byte_codec() {
  const auto encode = [](std::string_view text) {
    std::vector<int64_t> ids;
    for (const char c : text) {
      ids.push_back(10 + static_cast<unsigned char>(c));
    }
    return ids;
  };
  return {encode, kBos, kEos};
}

inline std::string show_ids(const data::Example& example) {
  std::string shown;
  for (const int32_t id : example.ids) {
    shown += id == kBos ? 'B' : id == kEos ? 'E' : static_cast<char>(id - 10);
  }
  return shown;
}

inline std::string show_labels(const data::Example& example) {
  std::string shown;
  for (const int32_t id : example.labels) {
    shown += id == data::kNoLoss ? '.' : id == kEos ? 'E' : static_cast<char>(id - 10);
  }
  return shown;
}

// Returns true if two sets have equal examples of equal files and lines.
inline bool same_examples(const data::Examples& a, const data::Examples& b) {
  bool equal = a.size() == b.size();
  for (int64_t index = 0; equal && index < a.size(); ++index) {
    const data::Example one = a.at(index), other = b.at(index);
    equal = one.ids == other.ids && one.labels == other.labels && one.line == other.line &&
            one.file == other.file;
  }
  return equal;
}

// Reads files without weights and with default settings.
inline data::Examples read_examples(const std::vector<std::filesystem::path>& files,
                                    data::Objective objective, int64_t vocab_size,
                                    const std::function<data::TextCodec()>& codec) {
  data::ReadSettings settings;
  settings.objective = objective;
  std::vector<data::Source> sources;
  for (const auto& file : files) {
    sources.push_back({file});
  }
  return read_examples(sources, settings, vocab_size, codec);
}

// Reads `text` as a file called `name`.
inline data::Examples read_bytes(const std::string& name, const std::string& text,
                                 const data::ReadSettings& settings = {}) {
  const TempDir dir;
  write_file(dir / name, text);
  return read_examples({{dir / name}}, settings, kVocab, byte_codec);
}

// Returns the message of reading `text` as file `name`, without the folder.
inline std::string error_of_reading(const std::string& name, const std::string& text,
                                    const data::ReadSettings& settings = {}) {
  const TempDir dir;
  write_file(dir / name, text);
  const std::string message =
      user_error_of([&] { read_examples({{dir / name}}, settings, kVocab, byte_codec); });
  return replace_all(message, dir.path().string() + "/", "");
}

}  // namespace moe::test
