#include <charconv>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/pipeline.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

constexpr int64_t kRanks = 128000, kSpecial = 256;
constexpr int64_t kBeginOfText = kRanks, kEndOfText = kRanks + 1;

// Llama 3's expression that splits a text into words.
constexpr const char* kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Returns Llama 3's special tokens in the order of their ids.
std::vector<std::string> llama3_special_tokens(bool is_llama31) {
  constexpr const char* kReserved = "";
  std::vector<std::string> names = {"begin_of_text", "end_of_text", kReserved, kReserved};
  if (is_llama31) {
    names.insert(names.end(), {"finetune_right_pad_id", "step_id", "start_header_id",
                               "end_header_id", "eom_id", "eot_id", "python_tag", "image"});
  } else {
    names.insert(names.end(),
                 {kReserved, kReserved, "start_header_id", "end_header_id", kReserved, "eot_id"});
  }
  names.resize(kSpecial, kReserved);
  int reserved = 0;
  for (auto& name : names) {
    name = name == kReserved ? fmt::format("reserved_special_token_{}", reserved++) : name;
  }
  return names;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) {
    return std::nullopt;
  }
  text.remove_suffix(text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0);
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) {
      return std::nullopt;
    }
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return bytes;
}

// Parses a line into the bytes and the rank of a token.
std::optional<std::pair<std::string, int64_t>> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return std::nullopt;
  }
  const auto bytes = from_base64(line.substr(0, space));
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, rank);
  if (!bytes || bytes->empty() || error != std::errc() || stop != end || rank < 0) {
    return std::nullopt;
  }
  return std::pair(*bytes, rank);
}

// Removes the first line from `rest` and returns it without its line break.
std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

// Returns all pairs of tokens whose concatenation is a token. A merge has the rank of that token.
std::vector<BpeMerge> find_merges(const Vocabulary& vocabulary) {
  std::vector<BpeMerge> merges;
  for (int64_t rank = 0; rank < vocabulary.ids_end(); ++rank) {
    const std::string_view text = vocabulary.text(rank);
    for (size_t at = 1; at < text.size(); ++at) {
      if (is_continuation_byte(text[at])) {
        continue;
      }
      const int64_t left = vocabulary.find(text.substr(0, at));
      const int64_t right =
          left == Vocabulary::kNone ? Vocabulary::kNone : vocabulary.find(text.substr(at));
      if (right != Vocabulary::kNone) {
        merges.push_back({left, right, rank, rank});
      }
    }
  }
  return merges;
}

void check_complete(const Vocabulary& vocabulary, const std::string& where) {
  USER_ERROR_IF(vocabulary.tokens() != kRanks || vocabulary.ids_end() != kRanks,
                "{}: holds {} tokens up to rank {}, Llama 3's holds {}; other tiktoken files do "
                "not say how they split words: use the model's tokenizer.json",
                where, vocabulary.tokens(), vocabulary.ids_end() - 1, kRanks);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    USER_ERROR_IF(vocabulary.find(to_byte_level(text)) == Vocabulary::kNone,
                  "{}: no token is the byte 0x{:02X} alone; fetch the file again", where, byte);
  }
}

}  // namespace

bool is_tiktoken(std::string_view bytes) {
  constexpr size_t kMaxLineBytes = 1024;
  std::string_view rest = bytes.substr(0, kMaxLineBytes);
  return parse_line(take_line(rest)).has_value();
}

std::unique_ptr<TokenizerModel> read_tiktoken(std::string_view bytes, const std::string& where,
                                              const FolderTokens& tokens) {
  std::vector<std::pair<std::string, int64_t>> texts;
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const std::string_view line = take_line(bytes);
    if (line.empty()) {
      continue;
    }
    const auto token = parse_line(line);
    USER_ERROR_IF(!token, "{} line {}: is no token in base64 and its rank; fetch the file again",
                  where, number);
    texts.emplace_back(to_byte_level(token->first), token->second);
  }
  Vocabulary vocabulary(texts, where);
  check_complete(vocabulary, where);
  const auto merges = find_merges(vocabulary);
  const Normalizer normalizer = read_normalizer(Json(), where);
  std::vector<AddedToken> special;
  for (const auto& name : llama3_special_tokens(tokens.is_llama31)) {
    special.push_back({.content = "<|" + name + "|>", .normalized = false, .special = true});
  }
  special.insert(special.end(), tokens.added.begin(), tokens.added.end());
  AddedTokens added(
      special, normalizer, [&](const std::string& text) { return vocabulary.find(text); }, kRanks,
      where);
  const PreTokenizer split = split_isolated(kLlama3Split, where);
  return std::make_unique<Pipeline>(
      PipelineParts{std::move(added), normalizer,
                    [split, spell_bytes = bytes_as_characters()](Words& words) {
                      split(words);
                      spell_bytes(words);
                    },
                    Bpe(std::move(vocabulary), merges, {.ignore_merges = true}),
                    SpecialTokens{{kBeginOfText}, {}}, characters_as_bytes(), kBeginOfText,
                    kEndOfText, /*is_byte_level=*/true});
}

}  // namespace moe::io
