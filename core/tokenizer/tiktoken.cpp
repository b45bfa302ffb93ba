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
  std::vector<std::string> names = {"begin_of_text", "end_of_text"};
  int reserved = 0;
  const auto reserve = [&](int count) {
    for (const int end = reserved + count; reserved < end; ++reserved) {
      names.push_back(fmt::format("reserved_special_token_{}", reserved));
    }
  };
  reserve(is_llama31 ? 2 : 4);
  if (is_llama31) {
    names.insert(names.end(), {"finetune_right_pad_id", "step_id"});
  }
  names.insert(names.end(), {"start_header_id", "end_header_id"});
  if (is_llama31) {
    names.insert(names.end(), {"eom_id", "eot_id", "python_tag", "image"});
  } else {
    reserve(1);
    names.emplace_back("eot_id");
  }
  reserve(static_cast<int>(kSpecial - std::ssize(names)));
  return names;
}

// Returns the value of a base64 digit; -1 if `c` is none.
int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') {
    return c - 'A';
  }
  if (c >= 'a' && c <= 'z') {
    return c - 'a' + 26;
  }
  if (c >= '0' && c <= '9') {
    return c - '0' + 52;
  }
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) {
    return std::nullopt;
  }
  text.remove_suffix(text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) {
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

// Returns the bytes and the rank of a token.
std::optional<std::pair<std::string, int64_t>> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return std::nullopt;
  }
  const auto bytes = from_base64(line.substr(0, space));
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (!bytes || bytes->empty() || read.ec != std::errc() ||
      read.ptr != digits.data() + digits.size() || rank < 0) {
    return std::nullopt;
  }
  return std::pair(*bytes, rank);
}

std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

// Returns all pairs of tokens whose concatenation is a token; its rank is the rank of the merge.
std::vector<BpeMerge> find_merges(const Vocabulary& vocabulary) {
  std::vector<BpeMerge> merges;
  for (int64_t rank = 0; rank < vocabulary.ids_end(); ++rank) {
    const std::string_view text = vocabulary.text(rank);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (is_continuation_byte(text[cut])) {
        continue;
      }
      const int64_t left = vocabulary.find(text.substr(0, cut));
      const int64_t right =
          left == Vocabulary::kNone ? Vocabulary::kNone : vocabulary.find(text.substr(cut));
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
                "not say how they cut words: use the model's tokenizer.json",
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
  const PreTokenizer cut = split_isolated(kLlama3Split, where);
  return std::make_unique<Pipeline>(
      PipelineParts{std::move(added), normalizer,
                    [cut, write = bytes_as_characters()](Words& words) {
                      cut(words);
                      write(words);
                    },
                    Bpe(std::move(vocabulary), merges, {.ignore_merges = true}),
                    SpecialTokens{{kBeginOfText}, {}}, characters_as_bytes(), kBeginOfText,
                    kEndOfText, /*is_byte_level=*/true});
}

}  // namespace moe::io
