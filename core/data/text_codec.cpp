#include "core/data/text_codec.h"

#include <algorithm>

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
        return words->encode_marked(filled.text, filled.written);
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

namespace {

// Encodes the parts of a conversation between special tokens.
class ChatEncoder {
 public:
  ChatEncoder(const FilledChat& chat, const TextCodec& codec) : chat_(chat), codec_(codec) {
    parts_ = codec.split ? codec.split(chat.text)
                         : std::vector<io::TokenOrText>{{-1, 0, chat.text.text.size()}};
    for (const FilledChat::Learned& range : chat.learned) {
      learned_.push_back({range.begin, end_of_turn(chat, range, parts_).end});
    }
  }

  std::vector<ChatToken> run() {
    for (const io::TokenOrText& part : parts_) {
      if (part.id >= 0) {
        tokens_.push_back({part.id, overlaps(part.begin, part.end)});
      } else if (part.begin < part.end) {
        add_text(part.begin, part.end);
      }
    }
    return std::move(tokens_);
  }

 private:
  bool overlaps(size_t begin, size_t end) const {
    return std::ranges::any_of(learned_, [&](const io::TextRange& range) {
      return range.begin < end && begin < range.end;
    });
  }

  // Encodes bytes [begin, end) of the conversation, of a part that begins at `part`.
  std::vector<int64_t> encode(size_t begin, size_t end) const {
    const FilledText part = chat_.text.slice(begin, end);
    return codec_.encode_part ? codec_.encode_part(part.text, part.written, begin == 0)
                              : codec_.encode(part.text);
  }

  // A text in which loss begins or ends is compared with its beginning up to there: the tokens
  // that both have are before that place, the next one may span it.
  void add_text(size_t begin, size_t end) {
    const std::vector<int64_t> ids = encode(begin, end);
    const auto tokens_before = [&](size_t at) {
      const std::vector<int64_t> before = encode(begin, at);
      const auto differs = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
      return std::pair(static_cast<size_t>(differs.second - ids.begin()),
                       differs.first != before.end());
    };
    std::vector<ChatToken> run;
    for (const int64_t id : ids) {
      run.push_back({id, false});
    }
    for (const io::TextRange& range : learned_) {
      if (range.end <= begin || end <= range.begin) {
        continue;
      }
      const size_t first = range.begin <= begin ? 0 : tokens_before(range.begin).first;
      size_t last = run.size();
      if (range.end < end) {
        const auto [count, has_spanning] = tokens_before(range.end);
        last = std::min(run.size(), count + (has_spanning ? 1 : 0));
      }
      for (size_t i = first; i < last; ++i) {
        run[i].learned = true;
      }
    }
    tokens_.insert(tokens_.end(), run.begin(), run.end());
  }

  const FilledChat& chat_;
  const TextCodec& codec_;
  std::vector<io::TokenOrText> parts_;
  std::vector<io::TextRange> learned_;
  std::vector<ChatToken> tokens_;
};

}  // namespace

std::vector<ChatToken> chat_tokens(const FilledChat& chat, const TextCodec& codec) {
  return ChatEncoder(chat, codec).run();
}

}  // namespace moe::data
