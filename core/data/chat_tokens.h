#pragma once
// The pieces of a chat form (chat_forms.h) as tokens.
//
// A mark is its special token where the vocabulary has one, and text where it has none. Texts that
// stand side by side are encoded together, as tokenizers do that see the whole conversation, and no
// text becomes a special token: who writes "<|im_end|>" into a question has written ten characters.
// A token that holds the end of what is not learned and the beginning of what is counts to the
// latter.

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

// What a model is asked a single question with, and the tokens that end its answer.
struct Question {
  std::vector<int64_t> ids, end;
};
Question ask(const Template& form, const std::string& question, const TextCodec& codec);

}  // namespace moe::data
