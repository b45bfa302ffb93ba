#include "core/data/text_codec.h"

#include <algorithm>

#include "core/tokenizer/tokenizer.h"

namespace moe::data {

std::string strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r\x1c\x1d\x1e\x1f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return "";
  }
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

FilledText& FilledText::own(const std::string& words) {
  text += words;
  return *this;
}

FilledText& FilledText::data(const std::string& words) {
  if (!words.empty()) {
    written.push_back({text.size(), text.size() + words.size()});
  }
  text += words;
  return *this;
}

FilledText& FilledText::append(const FilledText& other) {
  for (const auto& [begin, end] : other.written) {
    written.push_back({text.size() + begin, text.size() + end});
  }
  text += other.text;
  return *this;
}

FilledText FilledText::stripped() const {
  const std::string kept = strip(text);
  const size_t first = kept.empty() ? 0 : text.find(kept.front());
  FilledText result{kept};
  for (const auto& [begin, end] : written) {
    const size_t from = std::max(begin, first) - first;
    const size_t to = std::min(std::max(end, first) - first, kept.size());
    if (from < to) {
      result.written.push_back({from, to});
    }
  }
  return result;
}

TextCodec make_text_codec(const std::shared_ptr<const io::Tokenizer>& tokenizer) {
  const auto words = std::make_shared<io::WordEncoder>(tokenizer);
  const bool is_sentencepiece = tokenizer->kind() == io::TokenizerKind::kSentencepiece;
  return {[words](std::string_view text) { return words->encode(text); },
          tokenizer->bos_id(),
          tokenizer->eos_id(),
          tokenizer->adds_space(),
          [words, tokenizer, is_sentencepiece](std::string_view text, bool begins_text) {
            return is_sentencepiece ? words->encode(text)
                                    : tokenizer->encode_plain(text, begins_text);
          },
          [tokenizer](const std::string& mark) { return tokenizer->special_id(mark); },
          [words, tokenizer, is_sentencepiece](const FilledText& filled) {
            return is_sentencepiece ? words->encode(filled.text)
                                    : tokenizer->encode_template(filled.text, filled.written);
          }};
}

namespace {

class ChatEncoder {
 public:
  explicit ChatEncoder(const TextCodec& codec) : codec_(codec) {}

  void add(const ChatPiece& piece) {
    if (piece.kind == ChatPiece::Kind::kBos) {
      return codec_.bos < 0 ? void() : token(codec_.bos, false);
    }
    if (piece.kind == ChatPiece::Kind::kEos) {
      return token(codec_.eos, piece.learned);
    }
    const int64_t id =
        piece.kind == ChatPiece::Kind::kMark && codec_.special ? codec_.special(piece.text) : -1;
    if (id >= 0) {
      token(id, piece.learned);
    } else {
      texts_.push_back(piece);
    }
  }

  std::vector<ChatToken> finish() {
    end_text();
    return std::move(tokens_);
  }

 private:
  void token(int64_t id, bool learned) {
    end_text();
    tokens_.push_back({id, learned});
  }

  std::vector<int64_t> encode(const std::string& text) const {
    return codec_.encode_plain ? codec_.encode_plain(text, tokens_.empty()) : codec_.encode(text);
  }

  // Encodes the texts since the last token as one. If the loss begins or ends between two of them,
  // the tokens of the text up to there are compared with those of the whole; the change applies
  // from the first token that differs.
  void end_text() {
    struct Change {
      std::string before;  // the text up to here
      bool learned;        // of the text after it
    };
    std::string text;
    std::vector<Change> changes;
    for (const auto& piece : texts_) {
      if (changes.empty() || changes.back().learned != piece.learned) {
        changes.push_back({text, piece.learned});
      }
      text += piece.text;
    }
    texts_.clear();
    if (text.empty()) {
      return;
    }
    const std::vector<int64_t> ids = encode(text);
    std::vector<ChatToken> run;
    for (const int64_t id : ids) {
      run.push_back({id, changes.front().learned});
    }
    for (size_t i = 1; i < changes.size(); ++i) {
      const std::vector<int64_t> before = encode(changes[i].before);
      const auto begin =
          std::mismatch(before.begin(), before.end(), ids.begin(), ids.end()).second - ids.begin();
      std::for_each(run.begin() + begin, run.end(),
                    [&](ChatToken& token) { token.learned = changes[i].learned; });
    }
    tokens_.insert(tokens_.end(), run.begin(), run.end());
  }

  const TextCodec& codec_;
  std::vector<ChatToken> tokens_;
  std::vector<ChatPiece> texts_;
};

}  // namespace

std::vector<ChatToken> chat_tokens(const std::vector<ChatPiece>& pieces, const TextCodec& codec) {
  ChatEncoder encoder(codec);
  for (const auto& piece : pieces) {
    encoder.add(piece);
  }
  return encoder.finish();
}

}  // namespace moe::data
