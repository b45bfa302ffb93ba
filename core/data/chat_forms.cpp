#include "core/data/chat_forms.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/data/strip.h"

namespace moe::data {

namespace {

using Kind = ChatPiece::Kind;

// The pieces of a conversation. Those between begin_answer(true) and end_answer() are learned.
class Writer {
 public:
  void text(const std::string& text) {
    if (!text.empty()) {
      pieces_.push_back({Kind::kText, text, is_learned_});
    }
  }
  void mark(const std::string& text) { pieces_.push_back({Kind::kMark, text, is_learned_}); }
  void bos() { pieces_.push_back({Kind::kBos}); }
  void eos() { pieces_.push_back({Kind::kEos, "", is_learned_}); }

  void begin_answer(bool is_learned) {
    answer_ = pieces_.size();
    is_learned_ = is_learned;
  }
  void end_answer() { is_learned_ = false; }

  std::vector<ChatPiece> pieces() { return std::move(pieces_); }
  std::vector<ChatPiece> before_last_answer() {
    pieces_.resize(answer_);
    return std::move(pieces_);
  }

 private:
  std::vector<ChatPiece> pieces_;
  size_t answer_ = 0;  // where the last answer begins
  bool is_learned_ = false;
};

std::string question_of(const Turn& turn) {
  return turn.instruction + (turn.input.empty() ? "" : "\n" + turn.input);
}

void write_llama3(Writer& out, const Conversation& conversation, bool only_last) {
  const auto header = [&](const std::string& role) {
    out.mark("<|start_header_id|>");
    out.text(role);
    out.mark("<|end_header_id|>");
    out.text("\n\n");
  };
  const auto message = [&](const std::string& role, const std::string& content) {
    header(role);
    out.text(strip(content));
    out.mark("<|eot_id|>");
  };
  out.bos();
  if (!conversation.system.empty()) {
    message("system", conversation.system);
  }
  for (const Turn& turn : conversation.turns) {
    message("user", question_of(turn));
    header("assistant");
    out.begin_answer(!only_last || &turn == &conversation.turns.back());
    out.text(strip(turn.response));
    out.mark("<|eot_id|>");
    out.end_answer();
  }
}

void write_chatml(Writer& out, const Conversation& conversation, bool only_last) {
  const auto message = [&](const std::string& role, const std::string& content) {
    out.mark("<|im_start|>");
    out.text(role + "\n" + content);
    out.mark("<|im_end|>");
    out.text("\n");
  };
  if (!conversation.system.empty()) {
    message("system", conversation.system);
  }
  for (const Turn& turn : conversation.turns) {
    message("user", question_of(turn));
    out.mark("<|im_start|>");
    out.text("assistant\n");
    out.begin_answer(!only_last || &turn == &conversation.turns.back());
    out.text(turn.response);
    out.mark("<|im_end|>");
    out.end_answer();
    out.text("\n");
  }
}

void write_zephyr(Writer& out, const Conversation& conversation, bool only_last) {
  const auto message = [&](const std::string& mark, const std::string& content) {
    out.mark(mark);
    out.text("\n" + content);
    out.eos();
    out.text("\n");
  };
  if (!conversation.system.empty()) {
    message("<|system|>", conversation.system);
  }
  for (const Turn& turn : conversation.turns) {
    message("<|user|>", question_of(turn));
    out.mark("<|assistant|>");
    out.text("\n");
    out.begin_answer(!only_last || &turn == &conversation.turns.back());
    out.text(turn.response);
    out.eos();
    out.end_answer();
    out.text("\n");
  }
}

// One of Mistral's spacings.
struct Mistral {
  enum class System { kFirst, kLast, kMarked };
  const char* name;
  const char *before_inst, *after_inst, *before_end, *before_answer;
  bool strips_answers;
  System system;
};

constexpr std::array<Mistral, 5> kMistrals = {{
    {"mistral", " ", " ", " ", " ", false, Mistral::System::kFirst},
    {"mistral-v0", "", " ", " ", "", false, Mistral::System::kFirst},
    {"mistral-v3", "", " ", "", " ", true, Mistral::System::kLast},
    {"mistral-tekken", "", "", "", "", false, Mistral::System::kLast},
    {"mistral-v7", "", "", "", "", false, Mistral::System::kMarked},
}};

void write_mistral(const Mistral& form, Writer& out, const Conversation& conversation,
                   bool only_last) {
  const auto& turns = conversation.turns;
  const bool has_system = !conversation.system.empty();
  out.bos();
  if (has_system && form.system == Mistral::System::kMarked) {
    out.mark("[SYSTEM_PROMPT]");
    out.text(conversation.system);
    out.mark("[/SYSTEM_PROMPT]");
  }
  for (const Turn& turn : turns) {
    const bool is_last = &turn == &turns.back();
    const bool has_system_before_it =
        has_system && ((form.system == Mistral::System::kFirst && &turn == &turns.front()) ||
                       (form.system == Mistral::System::kLast && is_last));
    out.text(form.before_inst);
    out.mark("[INST]");
    out.text(form.after_inst + (has_system_before_it ? conversation.system + "\n\n" : "") +
             question_of(turn) + form.before_end);
    out.mark("[/INST]");
    out.begin_answer(!only_last || is_last);
    out.text(form.before_answer + (form.strips_answers ? strip(turn.response) : turn.response));
    out.eos();
    out.end_answer();
  }
}

void write(const std::string& form, Writer& out, const Conversation& conversation, bool only_last) {
  if (form == "llama3") {
    return write_llama3(out, conversation, only_last);
  }
  if (form == "chatml") {
    return write_chatml(out, conversation, only_last);
  }
  if (form == "zephyr") {
    return write_zephyr(out, conversation, only_last);
  }
  const auto mistral = std::find_if(kMistrals.begin(), kMistrals.end(),
                                    [&](const Mistral& spacing) { return form == spacing.name; });
  MOE_CHECK(mistral != kMistrals.end(), "no chat form '{}'", form);
  write_mistral(*mistral, out, conversation, only_last);
}

}  // namespace

const std::vector<std::string>& chat_form_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"llama3", "chatml", "zephyr"};
    for (const auto& form : kMistrals) {
      all.emplace_back(form.name);
    }
    return all;
  }();
  return names;
}

std::vector<ChatPiece> chat_pieces(const std::string& form, const Conversation& conversation,
                                   bool only_last) {
  Writer out;
  write(form, out, conversation, only_last);
  return out.pieces();
}

std::vector<ChatPiece> question_pieces(const std::string& form, const Conversation& conversation) {
  Writer out;
  write(form, out, conversation, /*only_last=*/true);
  return out.before_last_answer();
}

ChatPiece end_of_turn(const std::string& form) {
  return form == "llama3"   ? ChatPiece{Kind::kMark, "<|eot_id|>"}
         : form == "chatml" ? ChatPiece{Kind::kMark, "<|im_end|>"}
                            : ChatPiece{Kind::kEos};
}

}  // namespace moe::data
