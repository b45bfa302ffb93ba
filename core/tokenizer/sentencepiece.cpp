// The only file that includes the headers of sentencepiece.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/pipeline.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

// A field of a protobuf message: a number (wire type 0) or bytes (type 2).
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

std::optional<uint64_t> take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(rest.front());
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<Field> take_field(std::string_view& rest) {
  const auto key = take_varint(rest);
  if (!key) {
    return std::nullopt;
  }
  Field field{*key >> 3, 0, {}};
  const uint64_t type = *key & 7;
  uint64_t length = type == 1 ? 8 : type == 5 ? 4 : 0;
  if (type == 0 || type == 2) {
    const auto number = take_varint(rest);
    if (!number) {
      return std::nullopt;
    }
    (type == 0 ? field.value : length) = *number;
  } else if (length == 0) {
    return std::nullopt;
  }
  if (length > rest.size()) {
    return std::nullopt;
  }
  field.bytes = rest.substr(0, length);
  rest.remove_prefix(length);
  return field;
}

// Calls `on_field` for every field of `message`. Returns false at the first one that is malformed.
template <typename OnField>
bool for_each_field(std::string_view message, const OnField& on_field) {
  while (!message.empty()) {
    const auto field = take_field(message);
    if (!field) {
      return false;
    }
    on_field(*field);
  }
  return true;
}

// Returns true if a SentencePiece message is a normal, unknown, control or byte piece without a
// space after another letter (user-defined and unused pieces have other rules). Sets `has_space` if
// it is a space.
bool is_plain_piece(std::string_view message, bool& has_space) {
  uint64_t type = 1;
  std::string_view text;
  const bool is_valid = for_each_field(message, [&](const Field& field) {
    text = field.number == 1 ? field.bytes : text;
    type = field.number == 3 ? field.value : type;
  });
  has_space = has_space || text == kSpaceMark;
  while (text.starts_with(kSpaceMark)) {
    text.remove_prefix(kSpaceMark.size());
  }
  return is_valid && (type == 1 || type == 2 || type == 3 || type == 6) &&
         text.find(kSpaceMark) == std::string_view::npos;
}

// Returns true if a TrainerSpec is BPE with spaces before words (no treat_whitespace_as_suffix).
bool is_plain_trainer(std::string_view message) {
  uint64_t type = 1;
  bool suffix = false;
  const bool is_valid = for_each_field(message, [&](const Field& field) {
    type = field.number == 3 ? field.value : type;
    suffix = field.number == 24 ? field.value != 0 : suffix;
  });
  return is_valid && type == 2 && !suffix;
}

// Returns the rule of a NormalizerSpec; kNone unless it has no table of characters, prepends a
// space and replaces spaces by U+2581.
WordRule normalizer_rule(std::string_view message) {
  bool prefix = true, collapses = true, escapes = true, has_table = false;
  const bool is_valid = for_each_field(message, [&](const Field& field) {
    has_table = has_table || ((field.number == 2 || field.number == 6) && !field.bytes.empty());
    prefix = field.number == 3 ? field.value != 0 : prefix;
    collapses = field.number == 4 ? field.value != 0 : collapses;
    escapes = field.number == 5 ? field.value != 0 : escapes;
  });
  if (!is_valid || has_table || !prefix || !escapes) {
    return WordRule::kNone;
  }
  return collapses ? WordRule::kCollapses : WordRule::kKeeps;
}

// Returns true if a piece contains a byte 0, on which the library aborts.
bool has_piece_with_nul(std::string_view model) {
  bool has_nul = false;
  for_each_field(model, [&](const Field& field) {
    for_each_field(field.number == 1 ? field.bytes : "", [&](const Field& part) {
      has_nul = has_nul || (part.number == 1 && part.bytes.find('\0') != std::string_view::npos);
    });
  });
  return has_nul;
}

class Sentencepiece : public TokenizerModel {
 public:
  Sentencepiece(std::string_view bytes, const std::string& where, const FolderTokens& tokens)
      : where_(where), prefix_(tokens.prefix) {
    USER_ERROR_IF(has_piece_with_nul(bytes) || !processor_.LoadFromSerializedProto(bytes).ok() ||
                      processor_.GetPieceSize() == 0,
                  "{}: is no sentencepiece model, or a broken one; fetch it again", where);
    // A second NormalizerSpec message overrides the fields that it has: add_dummy_prefix = false.
    check(unprefixed_.LoadFromSerializedProto(std::string(bytes) + "\x1a\x02\x18" + '\0'));
    std::vector<AddedToken> own;  // tokens of the model that are matched only by split()
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id) || processor_.IsUnknown(id)) {
        own.push_back({.content = processor_.IdToPiece(id), .normalized = false, .special = true});
      }
    }
    std::vector<AddedToken> added;
    for (AddedToken token : tokens.added) {
      token.normalized = false;  // the library normalizes texts, not tokens
      (find_piece(token.content) < 0 ? added : own).push_back(token);
    }
    const auto find = [this](const std::string& text) { return find_piece(text); };
    added_ = AddedTokens(added, Normalizer(), find, processor_.GetPieceSize(), where);
    own.insert(own.end(), added.begin(), added.end());
    all_ = AddedTokens(own, Normalizer(), find, processor_.GetPieceSize(), where);
    word_rule_ = prefix_ == FolderTokens::Prefix::kNever ? WordRule::kNone : find_word_rule(bytes);
  }

  // Prepends a space by the rule `prefix_`. No text becomes a control piece.
  std::vector<int64_t> encode(std::string_view text, const std::vector<TextRange>& plain,
                              bool begins_text) const override {
    std::vector<int64_t> all;
    for (const TokenOrText& part : added_.split(text, /*is_normalized=*/false, plain)) {
      if (part.id >= 0) {
        all.push_back(part.id);
        continue;
      }
      const bool has_prefix =
          prefix_ == FolderTokens::Prefix::kAlways ||
          (prefix_ == FolderTokens::Prefix::kFirst && begins_text && part.begin == 0);
      std::vector<int> ids;
      check((has_prefix ? processor_ : unprefixed_)
                .Encode(text.substr(part.begin, part.end - part.begin), &ids));
      all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
  }
  std::vector<TokenOrText> split(std::string_view text,
                                 const std::vector<TextRange>& plain) const override {
    return all_.split(text, /*is_normalized=*/false, plain);
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    std::string text;
    std::vector<std::string> pieces;
    std::string bytes;  // of the byte pieces at the end of `pieces`
    const auto end_bytes = [&] {
      if (find_invalid_utf8(bytes) != kValidUtf8) {
        std::fill_n(pieces.rbegin(), bytes.size(), "\uFFFD");
      }
      bytes.clear();
    };
    const auto end_pieces = [&] {
      end_bytes();
      std::string part;
      check(processor_.Decode(pieces, &part));
      // The library drops the space of the first piece, which is the prefix only at the beginning.
      const bool drops_space =
          !text.empty() && !pieces.empty() && pieces[0].starts_with(kSpaceMark);
      text += (drops_space ? " " : "") + part;
      pieces.clear();
    };
    for (const int64_t id : ids) {
      const int index = static_cast<int>(id);
      if (const AddedToken* token = added_.find(id)) {
        end_pieces();
        text += token->special ? "" : token->content;
        continue;
      }
      if (!has(id) || processor_.IsControl(index) || processor_.IsUnknown(index)) {
        continue;  // no text; the library aborts on an id beyond its vocabulary
      }
      const std::string& piece = processor_.IdToPiece(index);
      if (processor_.IsByte(index)) {
        bytes += static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));  // <0xE2>
      } else {
        end_bytes();
      }
      pieces.push_back(piece);
    }
    end_pieces();
    return text;
  }

  // Implements sentencepiece_as_json().
  Json as_json(WordRule rule, int64_t bos) const {
    Json vocab = Json::object();
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      vocab.emplace(processor_.IdToPiece(id), id);
    }
    const Json merges = list_merges(vocab);
    if (rule == WordRule::kNone || prefix_ == FolderTokens::Prefix::kNever || merges.is_null() ||
        processor_.unk_id() < 0) {
      return nullptr;
    }
    const std::string begin = bos < 0 ? "" : piece(bos);
    // The normalizer leaves no ' ', so the first Metaspace prepends one to every text, even to a
    // text that begins with a space, and the second replaces it by U+2581.
    Json json = parse_json(replace_all(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Replace", "pattern": {"Regex": "\\A +"}, "content": ""},
      {"type": "Replace", "pattern": {"Regex": "(?<![ \u2581])(?>[ \u2581]+)\\z"}, "content": ""},
      {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": false},
      {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": false},
      {"type": "Split", "pattern": {"Regex": "\u2581*[^\u2581]+|\u2581+"}, "behavior": "Isolated",
       "invert": false}]},
    "post_processor": {"type": "TemplateProcessing",
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": true, "ignore_merges": false}})",
                                       "<s>", begin),
                           where_);
    if (rule == WordRule::kKeeps) {
      Json& normalizers = json["normalizer"]["normalizers"];
      normalizers.erase(normalizers.begin(), normalizers.begin() + 3);
    } else {
      json["decoder"]["decoders"][3]["start"] = 1 << 20;  // all
    }
    if (prefix_ == FolderTokens::Prefix::kAlways) {
      json["pre_tokenizer"]["pretokenizers"][0]["prepend_scheme"] = "always";
    }
    Json& post = json["post_processor"];
    post["special_tokens"][begin]["ids"][0] = bos;
    post = bos < 0 ? Json() : std::move(post);
    for (int64_t id = 0; id < vocab_size(); ++id) {
      if (const AddedToken* token = all_.find(id)) {
        Json& entry = json["added_tokens"].emplace_back(added_token_json(*token));
        entry["id"] = id;
      }
    }
    Json& bpe = json["model"];
    bpe["unk_token"] = piece(processor_.unk_id());
    bpe["byte_fallback"] = find_piece("<0x00>") >= 0;
    bpe["vocab"] = vocab;
    bpe["merges"] = merges;
    return json;
  }

  bool has(int64_t id) const override {
    return id >= 0 && (id < processor_.GetPieceSize() || added_.find(id) != nullptr);
  }
  std::string piece(int64_t id) const override {
    const AddedToken* token = added_.find(id);
    return token != nullptr ? token->content : processor_.IdToPiece(static_cast<int>(id));
  }
  std::string bytes(int64_t id) const override { return piece_bytes(piece(id)); }
  int64_t find(const std::string& token) const override {
    const int64_t id = added_.find(std::string_view(token));
    return id >= 0 ? id : find_piece(token);
  }
  int64_t special_id(const std::string& token) const override {
    return all_.find(std::string_view(token));
  }
  int64_t vocab_size() const override {
    return std::max<int64_t>(processor_.GetPieceSize(), added_.ids_end());
  }
  int64_t bos_id() const override { return processor_.bos_id(); }
  int64_t eos_id() const override { return processor_.eos_id(); }
  WordRule word_rule(std::string_view text) const override {
    const std::vector<TokenOrText> parts = added_.split(text, /*is_normalized=*/false, {});
    return std::ranges::any_of(parts, [](const TokenOrText& part) { return part.id >= 0; })
               ? WordRule::kNone
               : word_rule_;
  }

 private:
  // Throws UserError for a failed call. The library loads some broken models and fails later.
  void check(const sentencepiece::util::Status& status) const {
    USER_ERROR_IF(!status.ok(), "{}: a broken sentencepiece model ({}); fetch it again", where_,
                  printable(status.ToString(), 200));
  }

  // Returns the pairs that merge, in the order of sentencepiece: by the score of the merged piece.
  // Among pieces of equal score, such as the runs of spaces in LLaMA's model, sentencepiece merges
  // the leftmost pair, so that a run grows from the left: the longer piece and the longer left half
  // come first. Returns null if a character of a piece is no piece, since sentencepiece may merge
  // such a piece.
  Json list_merges(const Json& vocab) const {
    std::vector<int> pieces;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (!processor_.IsControl(id) && !processor_.IsUnknown(id) && !processor_.IsByte(id)) {
        pieces.push_back(id);
      }
    }
    std::ranges::stable_sort(pieces, std::greater(), [this](int id) {
      return std::pair(processor_.GetScore(id), processor_.IdToPiece(id).size());
    });
    Json merges = Json::array();
    for (const int id : pieces) {
      const std::string& text = processor_.IdToPiece(id);
      constexpr size_t kMaxPieceBytes = 1024;  // the time is quadratic in it
      if (text.size() > kMaxPieceBytes || find_invalid_utf8(text) != kValidUtf8) {
        return nullptr;
      }
      const size_t first = merges.size();
      for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        next_code_point(text, at);
        if (!vocab.contains(text.substr(begin, at - begin))) {
          return nullptr;
        }
        const std::string left = text.substr(0, at), right = text.substr(at);
        if (vocab.contains(left) && vocab.contains(right)) {
          merges.push_back({left, right});
        }
      }
      std::reverse(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end());
    }
    return merges;
  }

  // Returns the id of a piece, or -1. PieceToId() returns the unknown token for other texts.
  int64_t find_piece(const std::string& token) const {
    const int id = processor_.PieceToId(token);
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IdToPiece(id) == token ? id : -1;
  }

  sentencepiece::SentencePieceProcessor processor_, unprefixed_;
  AddedTokens added_, all_;  // all_: added tokens and control pieces, for split()
  std::string where_;        // the file, for errors
  FolderTokens::Prefix prefix_;
  WordRule word_rule_ = WordRule::kNone;
};

}  // namespace

WordRule find_word_rule(std::string_view model) {
  bool is_plain = true, has_space = false, has_plain_trainer = false;
  WordRule rule = WordRule::kNone;
  const bool is_valid = for_each_field(model, [&](const Field& field) {
    if (field.number == 1) {
      is_plain = is_plain && is_plain_piece(field.bytes, has_space);
    } else if (field.number == 2) {
      has_plain_trainer = is_plain_trainer(field.bytes);
    } else if (field.number == 3) {
      rule = normalizer_rule(field.bytes);
    }
  });
  return is_valid && is_plain && has_space && has_plain_trainer ? rule : WordRule::kNone;
}

std::unique_ptr<TokenizerModel> read_sentencepiece(std::string_view bytes, const std::string& where,
                                                   const FolderTokens& tokens) {
  return std::make_unique<Sentencepiece>(bytes, where, tokens);
}

Json sentencepiece_as_json(std::string_view bytes, const std::string& where,
                           const FolderTokens& tokens, int64_t bos) {
  return Sentencepiece(bytes, where, tokens).as_json(find_word_rule(bytes), bos);
}

}  // namespace moe::io
