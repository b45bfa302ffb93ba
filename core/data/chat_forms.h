#pragma once
// Chat forms: how published chat templates write a conversation. They are known by name, so that no
// template language has to run; tests/interop/chat_templates.py holds each to transformers.
//
//   llama3   BOS <|start_header_id|>role<|end_header_id|>\n\nU<|eot_id|>, texts stripped
//   chatml   <|im_start|>role\nU<|im_end|>\n
//   zephyr   <|user|>\nU EOS \n <|assistant|>\nA EOS \n
//   mistral  BOS [INST] U [/INST] A EOS, of which Mistral published five spacings:
//            mistral-v0      "[INST] U [/INST]A"      7B-Instruct-v0.1 as first published
//            mistral         " [INST] U [/INST] A"    v1: 7B-Instruct-v0.1 and v0.2 today
//            mistral-v3      "[INST] U[/INST] A"      7B-Instruct-v0.3; answers stripped
//            mistral-tekken  "[INST]U[/INST]A"        Nemo
//            mistral-v7      the same, and [SYSTEM_PROMPT]S[/SYSTEM_PROMPT] before it
//            A system text stands before the first question, in v3 and tekken before the last, with
//            a blank line between.
//
// A conversation without a system text is written without one. A mark such as <|im_start|> is a
// special token where the vocabulary has one; marks in the texts themselves are plain text
// (chat_tokens.h).

#include <string>
#include <vector>

#include "core/data/formats.h"

namespace moe::data {

struct ChatPiece {
  enum class Kind { kText, kMark, kBos, kEos };
  Kind kind = Kind::kText;
  std::string text = {};  // of a text or mark
  bool learned = false;   // carries loss
};

const std::vector<std::string>& chat_form_names();

// The whole conversation; answers and what ends their turns are learned, with `only_last` those of
// the last turn. `form` is one of the names.
std::vector<ChatPiece> chat_pieces(const std::string& form, const Conversation& conversation,
                                   bool only_last);

// The conversation up to its last answer, which is not read: the prompt that a model answers.
std::vector<ChatPiece> question_pieces(const std::string& form, const Conversation& conversation);

// What ends an answer: one mark, or EOS.
ChatPiece end_of_turn(const std::string& form);

}  // namespace moe::data
