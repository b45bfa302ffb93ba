#include "core/data/text_codec.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::data {

FilledText FilledText::slice(size_t begin, size_t end) const {
  return {text.substr(begin, end - begin), io::slice_ranges(written, begin, end)};
}

TextCodec make_text_codec(const std::shared_ptr<const io::Tokenizer>& tokenizer) {
  const auto words = std::make_shared<io::WordEncoder>(tokenizer);
  const auto text = [&](int64_t id) {
    return id < 0 ? std::string() : replace_invalid_utf8(tokenizer->piece(id));
  };
  return {
      [words](std::string_view text) { return words->encode(text); },
      tokenizer->bos_id(),
      tokenizer->eos_id(),
      tokenizer->adds_space(),
      text(tokenizer->bos_id()),
      text(tokenizer->eos_id()),
      [tokenizer](const FilledText& filled) {
        return tokenizer->split(filled.text, filled.written);
      },
      [tokenizer](const std::string& mark) { return tokenizer->special_id(mark); },
      [tokenizer](std::string_view text, const std::vector<io::TextRange>& plain,
                  bool begins_text) { return tokenizer->encode_part(text, plain, begins_text); },
      [words](const FilledText& filled) {
        return words->encode_parsing_special(filled.text, filled.written);
      }};
}

io::TextRange end_of_turn(const FilledChat& chat, const FilledChat::Learned& learned,
                          const std::vector<io::TokenOrText>& parts) {
  for (const io::TokenOrText& part : parts) {
    if (part.id >= 0 && part.end <= learned.turn_end &&
        (part.begin >= learned.end || part.end == learned.end)) {
      return {part.begin, part.end};
    }
  }
  const std::string tail = chat.text.text.substr(0, learned.turn_end);
  const size_t end = tail.find_last_not_of(" \t\r\n") + 1;
  return {learned.end, std::max(learned.end, end)};
}

std::vector<ChatToken> chat_tokens(const FilledChat& chat, const TextCodec& codec) {
  const std::vector<io::TokenOrText> parts =
      codec.split ? codec.split(chat.text)
                  : std::vector<io::TokenOrText>{{-1, 0, chat.text.text.size()}};
  const auto encode = [&](size_t begin, size_t end) {
    const FilledText part = chat.text.slice(begin, end);
    return codec.encode_part ? codec.encode_part(part.text, part.written, begin == 0)
                             : codec.encode(part.text);
  };
  std::vector<io::TextRange> learned;
  for (const FilledChat::Learned& range : chat.learned) {
    learned.push_back({range.begin, end_of_turn(chat, range, parts).end});
  }
  std::vector<ChatToken> tokens;
  for (const auto& [id, begin, end] : parts) {
    const std::vector<int64_t> ids = id >= 0        ? std::vector<int64_t>{id}
                                     : begin == end ? std::vector<int64_t>()
                                                    : encode(begin, end);
    std::vector<ChatToken> run;
    for (const int64_t token : ids) {
      run.push_back({token, false});
    }
    // A text in which loss begins or ends at `at` is compared with the encoding of its beginning up
    // to there. Tokens that both have are before `at`; the next token may span it.
    const auto tokens_before = [&, first = begin](size_t at) {
      const std::vector<int64_t> before = encode(first, at);
      const auto differs = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
      return std::pair(static_cast<size_t>(differs.second - ids.begin()),
                       differs.first != before.end());
    };
    for (const io::TextRange& range : learned) {
      if (range.end <= begin || end <= range.begin) {
        continue;
      }
      size_t first = 0, last = run.size();
      if (id < 0 && begin < range.begin) {
        first = tokens_before(range.begin).first;
      }
      if (id < 0 && range.end < end) {
        const auto [count, has_spanning] = tokens_before(range.end);
        last = std::min(last, count + (has_spanning ? 1 : 0));
      }
      for (size_t i = first; i < last; ++i) {
        run[i].learned = true;
      }
    }
    tokens.insert(tokens.end(), run.begin(), run.end());
  }
  return tokens;
}

}  // namespace moe::data
