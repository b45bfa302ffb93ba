#pragma once
// The pieces of a chat form (chat_forms.h) as tokens.
//
// A mark is its special token where the vocabulary has one, and text where it has none. Adjacent
// texts are encoded together, as a tokenizer does that is given the whole conversation, and no text
// becomes a special token: "<|im_end|>" in a question is ten characters. A token that covers the
// end of one text and the beginning of the next carries loss if the next text does.

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/chat_forms.h"
#include "core/data/templates.h"
#include "core/data/text_codec.h"

namespace moe::data {

struct ChatToken {
  int64_t id = 0;
  bool learned = false;
  bool operator==(const ChatToken&) const = default;
};

std::vector<ChatToken> chat_tokens(const std::vector<ChatPiece>& pieces, const TextCodec& codec);

// The prompt of a single question, and the tokens that end its answer.
struct Question {
  std::vector<int64_t> ids, end;
};
Question question_tokens(const Template& form, const std::string& question, const TextCodec& codec);

}  // namespace moe::data
