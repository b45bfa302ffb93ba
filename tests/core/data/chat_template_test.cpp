#include "core/data/chat_template.h"

#include <algorithm>

#include "core/base/json.h"
#include "core/data/examples.h"
#include "core/data/templates.h"
#include "tests/support/byte_codec.h"
#include "tests/support/data.h"

// Chat templates with a tokenizer of one id per byte. tests/interop/chat_templates.py compares ids
// and loss with transformers.

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

using Strings = std::vector<std::string>;

// Returns a codec with the special tokens <s>, </s> and `marks` (ids from 270) and the token "ab"
// (269).
TextCodec chat_codec(const Strings& marks) {
  TextCodec codec = byte_codec();
  codec.bos_text = "<s>";
  codec.eos_text = "</s>";
  codec.encode_part = [](std::string_view text, const std::vector<io::TextRange>&, bool) {
    std::vector<int64_t> ids;
    for (size_t at = 0; at < text.size(); ++at) {
      const bool is_pair = text.substr(at, 2) == "ab";
      ids.push_back(is_pair ? 269 : 10 + static_cast<unsigned char>(text[at]));
      at += is_pair ? 1 : 0;
    }
    return ids;
  };
  codec.special = [marks](const std::string& mark) {
    const auto found = std::find(marks.begin(), marks.end(), mark);
    return found == marks.end() ? -1 : 270 + (found - marks.begin());
  };
  codec.split = [marks](const FilledText& filled) {
    std::vector<std::pair<std::string, int64_t>> tokens = {{"<s>", kBos}, {"</s>", kEos}};
    for (const auto& mark : marks) {
      tokens.emplace_back(mark, 270 + static_cast<int64_t>(tokens.size()) - 2);
    }
    std::vector<io::TokenOrText> parts;
    size_t begin = 0;
    for (size_t at = 0; at < filled.text.size(); ++at) {
      for (const auto& [mark, id] : tokens) {
        const size_t end = at + mark.size();
        if (filled.text.compare(at, mark.size(), mark) == 0 &&
            io::next_in_ranges(filled.written, at) >= end) {
          parts.push_back({-1, begin, at});
          parts.push_back({id, at, end});
          begin = end;
          at = end - 1;
          break;
        }
      }
    }
    parts.push_back({-1, begin, filled.text.size()});
    return parts;
  };
  return codec;
}

// Prints BOS as B, EOS as E, special tokens as {mark}, token 269 as (ab), and loss in brackets.
std::string show(const std::vector<ChatToken>& tokens, const Strings& marks) {
  std::string shown;
  bool learned = false;
  const auto change = [&](bool to) {
    shown += learned == to ? "" : to ? "[" : "]";
    learned = to;
  };
  for (const auto& [id, is_learned] : tokens) {
    change(is_learned);
    shown += id == kBos   ? "B"
             : id == kEos ? "E"
             : id >= 270  ? "{" + marks.at(static_cast<size_t>(id - 270)) + "}"
             : id == 269  ? "(ab)"
                          : std::string(1, static_cast<char>(id - 10));
  }
  change(false);
  return shown;
}

std::string show(const ChatTemplate& form, const Chat& chat, const Strings& marks = {},
                 bool only_last = false) {
  const TextCodec codec = chat_codec(marks);
  return show(chat_tokens(form.fill(chat, only_last, codec), codec), marks);
}

std::string show(const std::string& form, const Conversation& conversation,
                 const Strings& marks = {}, bool only_last = false) {
  return show(ChatTemplate::named(form, {}), make_chat(conversation), marks, only_last);
}

const Conversation kOne = {"", {{"Q ", "", " R"}}};
const Conversation kTwo = {"S", {{"Q", "I", "R"}, {"q", "", "r"}}};
const Strings kLlama3 = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
const Strings kChatml = {"<|im_start|>", "<|im_end|>"};

const char* const kMessages =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// Returns the template of a folder with this chat_template.jinja.
ChatTemplate folder_template(const std::string& source, const ChatOptions& options = {}) {
  const TempDir dir;
  write_file(dir / "chat_template.jinja", source);
  return *ChatTemplate::find(dir.path(), options);
}

Chat chat_of(const char* messages) {
  const OrderedJson record = {{"messages", OrderedJson::parse(messages)}};
  return read_chat(record, Json(record), Format::kMessages, "line 1");
}

}  // namespace

TEST_CASE("The named chat templates are the published ones", "[data]") {
  CHECK(show("llama3", kOne, kLlama3) ==
        "B{<|start_header_id|>}user{<|end_header_id|>}\n\nQ{<|eot_id|>}"
        "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n[R{<|eot_id|>}]");
  CHECK(show("chatml", kTwo) ==
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ\nI<|im_end|>\n"
        "<|im_start|>assistant\n[R<|im_end|>]\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\n[r<|im_end|>]\n");
  CHECK(
      show("zephyr", kTwo) ==
      "<|system|>\nSE\n<|user|>\nQ\nIE\n<|assistant|>\n[RE]\n<|user|>\nqE\n<|assistant|>\n[rE]\n");
  CHECK(show("mistral", kTwo) == "B [INST] S\n\nQ\nI [/INST][ RE] [INST] q [/INST][ rE]");
  CHECK(show("mistral-v0", kTwo) == "B[INST] S\n\nQ\nI [/INST][RE][INST] q [/INST][rE]");
  CHECK(show("mistral-v3", kTwo) == "B[INST] Q\nI[/INST][ RE][INST] S\n\nq[/INST][ rE]");
  CHECK(show("mistral-tekken", kTwo) == "B[INST]Q\nI[/INST][RE][INST]S\n\nq[/INST][rE]");
  CHECK(show("mistral-v7", kTwo, {"[INST]"}) ==
        "B[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]{[INST]}Q\nI[/INST][RE]{[INST]}q[/INST][rE]");
}

TEST_CASE("Loss on the last answer excludes the others", "[data]") {
  CHECK(show("mistral-v7", {"", kTwo.turns}, {}, /*only_last=*/true) ==
        "B[INST]Q\nI[/INST]RE[INST]q[/INST][rE]");
}

TEST_CASE("A special token in the text of a user is encoded as text", "[data]") {
  CHECK(show("chatml", {"", {{"<|im_end|>", "", "<|im_end|>"}}}, kChatml) ==
        "{<|im_start|>}user\n<|im_end|>{<|im_end|>}\n{<|im_start|>}assistant\n"
        "[<|im_end|>{<|im_end|>}]\n");
}

TEST_CASE("A text is encoded as a whole; a token across the boundary has loss", "[data]") {
  CHECK(show(chat_tokens({FilledText{"xabyza"}, {{2, 4, 4}}}, chat_codec({})), {}) == "x[(ab)y]za");
  CHECK(show(chat_tokens({}, chat_codec({})), {}).empty());
}

TEST_CASE("A question ends where its answer begins", "[data]") {
  const auto asked = [](const std::string& form, const Strings& marks) {
    const Question question = question_tokens(Template::parse(form), "Q", chat_codec(marks));
    const auto shown = [&](const std::vector<int64_t>& ids) {
      std::vector<ChatToken> tokens;
      for (const int64_t id : ids) {
        tokens.push_back({id, false});
      }
      return show(tokens, marks);
    };
    return shown(question.ids) + " until " + shown(question.end);
  };
  CHECK(asked("llama3", kLlama3) ==
        "B{<|start_header_id|>}user{<|end_header_id|>}\n\nQ{<|eot_id|>}"
        "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n until {<|eot_id|>}");
  CHECK(asked("chatml", kChatml) ==
        "{<|im_start|>}user\nQ{<|im_end|>}\n{<|im_start|>}assistant\n until {<|im_end|>}");
  CHECK(asked("zephyr", {}) == "<|user|>\nQE\n<|assistant|>\n until E");
  CHECK(asked("mistral", {}) == "B [INST] Q [/INST] until E");
}

TEST_CASE("A named template whose tokens the vocabulary lacks is refused", "[data]") {
  CHECK_THAT(user_error_of([] {
               question_tokens(Template::parse("chatml"), "Q", chat_codec({"<|im_start|>"}));
             }),
             contains_text("--template chatml") && contains_text("<|im_end|>"));
}

TEST_CASE("The chat template of a folder is a file, or in tokenizer_config.json", "[data]") {
  const TempDir dir;
  const auto shown = [&] { return show(*ChatTemplate::find(dir.path()), make_chat(kOne)); };
  const auto write_config = [&](const Json& chat_template) {
    write_file(dir / "tokenizer_config.json",
               Json{{"chat_template", chat_template}, {"eos_token", {{"content", "</s>"}}}}.dump());
  };
  const std::string one = "{{ messages[-1].content + eos_token }}";
  CHECK_FALSE(ChatTemplate::find(dir.path()));
  CHECK(Template::parse("auto", dir.path()).description() == "paper");
  write_config({{{"name", "rag"}, {"template", one}}, 7, {{"name", 1}}});
  CHECK_FALSE(ChatTemplate::find(dir.path()));
  write_config({{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", one}}});
  CHECK(shown() == "[ RE]");
  write_config("{{ bos_token }}" + one);
  CHECK(shown() == "B[ RE]");
  write_file(dir / "chat_template.jinja", "-" + one + "-");
  CHECK(shown() == "-[ RE]-");
  CHECK_THAT(Template::parse("auto", dir.path()).description(), contains_text("_template.jinja"));
  CHECK(Template::parse(dir / "chat_template.jinja").chat());
  write_file(dir / "chat_template.jinja", "a\n{{ messages | evil }}");
  CHECK_THAT(user_error_of([&] { ChatTemplate::find(dir.path()); }),
             contains_text("chat_template.jinja line 2 column 15") && contains_text("'evil'"));
  // A broken template is an error only if the data contain a conversation.
  const auto read = [&](const std::string& record, Objective objective) {
    write_file(dir / "a.jsonl", record);
    ReadSettings settings;
    settings.objective = objective;
    settings.text_template = Template::parse("auto", dir.path());
    return read_examples({{dir / "a.jsonl"}}, settings, kVocab, [] { return byte_codec(); }).size();
  };
  CHECK(read(R"({"text": "a"})", Objective::kLm) == 1);
  CHECK_THAT(
      user_error_of([&] { read(R"({"prompt": "a", "completion": "b"})", Objective::kInstruct); }),
      contains_text("'evil'") && contains_text("--template"));
}

TEST_CASE("Text that a template adds to an answer has loss, text before it has none", "[data]") {
  const std::string thinks =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last "
      "%}"
      "<think>\n{{ m.reasoning_content or '' }}</think>\n{% endif %}{{ m.content }}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const Chat chat = chat_of(R"([{"role": "user", "content": "a"}, {"role": "assistant",
      "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d",
      "reasoning_content": "Hm"}])");
  CHECK(show(folder_template(thinks), chat, kChatml) ==
        "{<|im_start|>}user\na{<|im_end|>}\n{<|im_start|>}assistant\n[b{<|im_end|>}]\n"
        "{<|im_start|>}user\nc{<|im_end|>}\n{<|im_start|>}assistant\n"
        "[<think>\nHm</think>\nd{<|im_end|>}]\n");
}

TEST_CASE("Loss is on the parts of {% generation %} if a template has them", "[data]") {
  const std::string tagged =
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!"
      "{% endgeneration %}{{ eos_token }}{% else %}U:{{ m.content }}{% endif %}{% endfor %}";
  CHECK(show(folder_template(tagged), make_chat({"", kTwo.turns})) == "U:Q\nIA:[R!]EU:qA:[r!]E");
  const std::string untagged = "{% if messages | length < 3 %}" + tagged + "{% endif %}x";
  CHECK_THAT(user_error_of([&] {
               show(folder_template(untagged), make_chat({"", kTwo.turns}));
             }),
             contains_text("0 generated parts for 2 answers"));
}

TEST_CASE("Messages decide about loss, roles and their order", "[data]") {
  const Chat chat = chat_of(R"([{"role": "user", "content": "a"}, {"role": "tool",
      "content": "b"}, {"role": "assistant", "content": "c", "train": false},
      {"role": "assistant", "content": "d"}, {"role": "user", "content": "last"}])");
  CHECK(show(folder_template(kMessages), chat) ==
        "<|im_start|>user\na<|im_end|>\n<|im_start|>tool\nb<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
  for (const char* none :
       {R"([{"role": "user", "content": "a"}])", R"([{"role": "assistant", "content": " "}])",
        R"([{"role": "assistant", "content": "c", "weight": 0}])"}) {
    CHECK_THAT(user_error_of([&] { chat_of(none); }), contains_text("line 1"));
  }
}

TEST_CASE("A key that the template does not use is refused", "[data]") {
  Chat chat = chat_of(R"([{"role": "assistant", "content": "c", "reasoning_content": "Hm"}])");
  CHECK_THAT(user_error_of([&] { show(folder_template(kMessages), chat); }),
             contains_text("'reasoning_content'"));
  chat.messages[0].json.erase("reasoning_content");
  chat.tools = {{{"name", "add"}}};
  CHECK_THAT(user_error_of([&] { show(folder_template(kMessages), chat); }),
             contains_text("'tools'"));
  CHECK(show(folder_template("{{ tools | tojson }}" + std::string(kMessages)), chat)
            .starts_with(R"([{"name": "add"}])"));
}

TEST_CASE("The options of a template set variables and the date", "[data]") {
  const std::string source =
      "{{ strftime_now('%d %b %Y') }} {{ thinks }} {{ messages[0].content }}";
  const ChatOptions options = parse_chat_options(R"({"thinks": false})", "2026-01-31");
  const Chat chat = chat_of(R"([{"role": "assistant", "content": "c"}])");
  CHECK(show(folder_template(source, options), chat) == "31 Jan 2026 False [c]");
  CHECK(folder_template(source, options).fingerprint() != folder_template(source).fingerprint());
  CHECK_THAT(user_error_of([] { parse_chat_options("[1]", ""); }), contains_text("JSON object"));
  CHECK_THAT(user_error_of([] { parse_chat_options("", "tomorrow"); }),
             contains_text("--template-date tomorrow"));
}

TEST_CASE("The message of raise_exception() is reported with the line", "[data]") {
  const std::string refuses =
      "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
      "{% endif %}" +
      std::string(kMessages);
  CHECK_THAT(user_error_of([&] { show(folder_template(refuses), make_chat(kTwo)); }),
             contains_text("System role not supported") && contains_text("line 1"));
}
