#include "core/data/chat_tokens.h"

#include <algorithm>

namespace moe::data {

namespace {

using Kind = ChatPiece::Kind;

class Encoder {
 public:
  explicit Encoder(const TextCodec& codec) : codec_(codec) {}

  void add(const ChatPiece& piece) {
    if (piece.kind == Kind::kBos) {
      return codec_.bos < 0 ? void() : token(codec_.bos, false);
    }
    if (piece.kind == Kind::kEos) {
      return token(codec_.eos, piece.learned);
    }
    const int64_t id =
        piece.kind == Kind::kMark && codec_.special ? codec_.special(piece.text) : -1;
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

  // Encodes the texts since the last token as one. Where the loss begins or ends between two of
  // them, the tokens of the text up to there are compared with those of the whole: what follows
  // begins at the first one that differs.
  void end_text() {
    struct Change {
      std::string before;  // the text up to here
      bool learned;        // of what follows
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

std::vector<int64_t> ids_of(const std::vector<ChatToken>& tokens) {
  std::vector<int64_t> ids;
  for (const auto& token : tokens) {
    ids.push_back(token.id);
  }
  return ids;
}

}  // namespace

std::vector<ChatToken> chat_tokens(const std::vector<ChatPiece>& pieces, const TextCodec& codec) {
  Encoder encoder(codec);
  for (const auto& piece : pieces) {
    encoder.add(piece);
  }
  return encoder.finish();
}

Question question_tokens(const Template& form, const std::string& question,
                         const TextCodec& codec) {
  const Conversation conversation{"", {{question, "", ""}}};
  if (form.is_chat()) {
    const ChatPiece end = end_of_turn(form.chat_form());
    return {ids_of(chat_tokens(question_pieces(form.chat_form(), conversation), codec)),
            ids_of(chat_tokens({end}, codec))};
  }
  TurnText text = form.render(conversation, 0);
  text.prompt.own(text.space_before_response && !codec.leading_space ? " " : "");
  Question asked{codec.encode_filled(text.prompt), {codec.eos}};
  if (text.begins_with_bos && codec.bos >= 0) {
    asked.ids.insert(asked.ids.begin(), codec.bos);
  }
  return asked;
}

}  // namespace moe::data
