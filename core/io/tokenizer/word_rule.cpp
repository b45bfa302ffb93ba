#include "core/io/tokenizer/word_rule.h"

#include <cstdint>
#include <functional>
#include <optional>

namespace moe::io {

namespace {

// One field of a protobuf message: a number (wire type 0) or bytes (type 2; others have none).
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

// Whether every field of `message` is understood and `take` says true to each.
bool all_fields(std::string_view message, const std::function<bool(const Field&)>& take) {
  while (!message.empty()) {
    const auto field = take_field(message);
    if (!field || !take(*field)) {
      return false;
    }
  }
  return true;
}

// Of SentencePiece: normal, unknown, control and byte pieces do nothing across a space where none
// has one behind another letter. User-defined and unused ones have rules of their own.
bool is_plain_piece(std::string_view message, bool& has_space) {
  uint64_t type = 1;
  std::string_view text;
  const bool read = all_fields(message, [&](const Field& field) {
    text = field.number == 1 ? field.bytes : text;
    type = field.number == 3 ? field.value : type;
    return true;
  });
  has_space = has_space || text == kSpaceMark;
  while (text.starts_with(kSpaceMark)) {
    text.remove_prefix(kSpaceMark.size());
  }
  return read && (type == 1 || type == 2 || type == 3 || type == 6) &&
         text.find(kSpaceMark) == std::string_view::npos;
}

// Of TrainerSpec: BPE, the space before its word.
bool is_plain_trainer(std::string_view message) {
  uint64_t type = 1;
  bool suffix = false;
  const bool read = all_fields(message, [&](const Field& field) {
    type = field.number == 3 ? field.value : type;
    suffix = field.number == 24 ? field.value != 0 : suffix;
    return true;
  });
  return read && type == 2 && !suffix;
}

// Of NormalizerSpec: no table of characters, a space put first, spaces written as U+2581.
WordRule rule_of_normaliser(std::string_view message) {
  bool prefix = true, collapses = true, escapes = true, has_table = false;
  const bool read = all_fields(message, [&](const Field& field) {
    has_table = has_table || ((field.number == 2 || field.number == 6) && !field.bytes.empty());
    prefix = field.number == 3 ? field.value != 0 : prefix;
    collapses = field.number == 4 ? field.value != 0 : collapses;
    escapes = field.number == 5 ? field.value != 0 : escapes;
    return true;
  });
  if (!read || has_table || !prefix || !escapes) {
    return WordRule::kNone;
  }
  return collapses ? WordRule::kCollapses : WordRule::kKeeps;
}

}  // namespace

bool has_piece_with_nul(std::string_view model) {
  bool has_nul = false;
  all_fields(model, [&](const Field& field) {
    if (field.number == 1) {
      all_fields(field.bytes, [&](const Field& part) {
        has_nul = has_nul || (part.number == 1 && part.bytes.find('\0') != std::string_view::npos);
        return true;
      });
    }
    return true;
  });
  return has_nul;
}

WordRule word_rule_of(std::string_view model) {
  bool has_space = false, plain_trainer = false;
  WordRule rule = WordRule::kNone;
  const bool plain = all_fields(model, [&](const Field& field) {
    if (field.number == 1) {
      return is_plain_piece(field.bytes, has_space);
    }
    if (field.number == 2) {
      plain_trainer = is_plain_trainer(field.bytes);
    } else if (field.number == 3) {
      rule = rule_of_normaliser(field.bytes);
    }
    return true;
  });
  return plain && has_space && plain_trainer ? rule : WordRule::kNone;
}

}  // namespace moe::io
