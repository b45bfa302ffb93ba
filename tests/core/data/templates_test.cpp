#include "core/data/templates.h"

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

ReadSettings with(const std::string& word) {
  ReadSettings settings;
  settings.text_template = Template::parse(word);
  return settings;
}

struct Seen {
  std::string ids, labels;
};

Seen see(const std::string& record, const std::string& word) {
  const Examples examples = read_bytes("a.jsonl", record, with(word));
  return {show_ids(examples.at(0)), show_labels(examples.at(0))};
}

// Checks that only the last tokens of `ids`, `learned`, have loss.
void check_single(const Seen& seen, const std::string& ids, const std::string& learned) {
  CHECK(seen.ids == ids);
  REQUIRE(ids.size() >= learned.size());
  CHECK(seen.labels == std::string(ids.size() - learned.size(), '.') + learned);
}

const char* kPlain = R"({"instruction": "Add", "input": "", "output": "2"})";
const char* kWithInput = R"({"instruction": "Add", "input": "1+1", "output": "2"})";
const char* kWithSystem = R"({"system_prompt": "S", "question": "Q", "response": "R"})";
const char* kTwoTurns =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q "}, )"
    R"({"role": "assistant", "content": " R"}, {"role": "user", "content": "q"}, )"
    R"({"role": "assistant", "content": "r"}]})";

}  // namespace

TEST_CASE("The Alpaca template is Stanford's, with and without an input", "[data]") {
  check_single(
      see(kPlain, "alpaca"),
      "BBelow is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nAdd\n\n### Response:2E",
      "2E");
  check_single(see(kWithInput, "alpaca"),
               "BBelow is an instruction that describes a task, paired with an input that provides "
               "further context. Write a response that appropriately completes the "
               "request.\n\n### Instruction:\nAdd\n\n### Input:\n1+1\n\n### Response:2E",
               "2E");
  check_single(see(kWithSystem, "alpaca"), "BS\n\n### Instruction:\nQ\n\n### Response:RE", "RE");
}

TEST_CASE("The llama2 template is Meta's, with BOS before every turn", "[data]") {
  check_single(see(kPlain, "llama2"), "B[INST] Add [/INST] 2 E", "2 E");
  check_single(see(kWithInput, "llama2"), "B[INST] Add\n1+1 [/INST] 2 E", "2 E");
  const Seen seen = see(kTwoTurns, "llama2");
  CHECK(seen.ids == "B[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] R EB[INST] q [/INST] r E");
  const auto dots = [](std::string_view text) { return std::string(text.size(), '.'); };
  CHECK(seen.labels == dots("B[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] ") + "R E" +
                           dots("B[INST] q [/INST] ") + "r E");
}

TEST_CASE("A template of the user surrounds instruction and response", "[data]") {
  check_single(see(kPlain, R"(U: {instruction}\nA: {response})"), "BU: Add\nA: 2E", "2E");
  check_single(see(kWithInput, R"(\{{instruction}\}\t\\{response};)"), "B{Add\n1+1}\t\\2;E", "2;E");
  check_single(see(kPlain, "{a b} {instruction}{response}"), "B{a b} Add2E", "2E");
  check_single(see(kPlain, "U {instruction}\n{response}"), "BU Add\n2E", "2E");
  const Seen turns = see(kTwoTurns, "<{instruction}>{response}");
  CHECK(turns.ids == "B<S\nQ > RE<q>rE");
  CHECK(turns.labels == "....... RE...rE");
}

TEST_CASE("An invalid template is refused with the placeholder or escape", "[data]") {
  for (const auto& [word, fact] : std::vector<std::pair<const char*, const char*>>{
           {"U: {instruction}", "'U: {instruction}': {response} is missing"},
           {"{response}", "{instruction} is missing"},
           {"{instruction}{response}{response}", "{response} stands there more than once"},
           {"{response}{instruction}", "{response} stands before {instruction}"},
           {"{instruction}{input}{response}", "'{input}' is no placeholder"},
           {R"({instruction}\r{response})", R"('\r' is no escape; known: \n, \t)"},
           {"alpacca", "'alpacca' is unknown, did you mean 'alpaca'?; known: paper, alpaca,"},
           {"{instruction}\xFF{response}", "is not UTF-8"}}) {
    CHECK_THAT(user_error_of([text = word] { Template::parse(text); }),
               contains_text("--template") && contains_text(fact));
  }
}

TEST_CASE("A template adds no space where the tokenizer puts one before the text", "[data]") {
  const auto spacing = [] {
    TextCodec codec = byte_codec();
    codec.encode = [encode = codec.encode](std::string_view text) {
      return encode(" " + std::string(text));
    };
    codec.leading_space = true;
    return codec;
  };
  const TempDir dir;
  write_file(dir / "a.jsonl", kPlain);
  const auto ids_with = [&](const std::string& word) {
    const auto examples = read_examples({{dir / "a.jsonl"}}, with(word), kVocab, spacing);
    return show_ids(examples.at(0));
  };
  CHECK(ids_with("A: {instruction} B: {response}") == "B A: Add B: 2E");
  CHECK(ids_with("llama2") == "B [INST] Add [/INST] 2 E");
  CHECK(ids_with("paper") == "B Add\n 2E");
}

TEST_CASE("With sentencepiece the llama2 template gives the ids of Meta's joint encoding",
          "[data]") {
  const auto strip = [](std::string text) {
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    return text.erase(text.find_last_not_of(" \t\r\n") + 1);
  };
  auto file = source_folder() / "recipes/tiny/instruct.jsonl";
  for (const auto& folder : sentencepiece_folders()) {
    const auto tokenizer = io::Tokenizer::load(folder, 0);
    if (tokenizer.word_rule() != io::WordRule::kKeeps) {
      continue;  // removes spaces
    }
    const auto codec = [&] {
      return TextCodec{[&](std::string_view text) { return tokenizer.encode(text); },
                       tokenizer.bos_id(), tokenizer.eos_id(), true};
    };
    const auto examples = read_examples({{file}}, with("llama2"), tokenizer.vocab_size(), codec);
    std::ifstream in(file);
    int64_t index = 0;
    for (std::string line; index < 2000 && std::getline(in, line); ++index) {
      const Json record = Json::parse(line);
      const std::string input = record["input"], output = record["output"];
      const std::string content =
          record["instruction"].get<std::string>() + (input.empty() ? "" : "\n" + input);
      const auto joint =
          tokenizer.encode("[INST] " + strip(content) + " [/INST] " + strip(output) + " ");
      std::vector<int32_t> expected = {1};
      expected.insert(expected.end(), joint.begin(), joint.end());
      expected.push_back(2);
      INFO(line);
      REQUIRE((examples.at(index).ids == expected));
    }
    CHECK(index == 2000);
    file = shared_data() / "instruct/alpaca_2000.jsonl";  // for the published tokenizer
  }
}

TEST_CASE("The form of a chat template is recognized by its special tokens", "[data]") {
  const TempDir dir;
  for (const auto& [text, form] : std::vector<std::pair<std::string, std::string>>{
           {"{{ '<|im_start|>' + role }}", "chatml"},
           {"'<|start_header_id|>' + role + '<|end_header_id|>'", "llama3"},
           {"'[INST] ' + '<<SYS>>' + content + ' [/INST]'", "llama2"},
           {"' [INST] ' + system_message + ' [/INST]'", "mistral"},
           {"bos_token '[INST] ' + content + ' [/INST]'", "mistral-v0"},
           {"\"[INST] \" + content + \"[/INST]\"", "mistral-v3"},
           {"\"[INST]\" + content + \"[/INST]\"", "mistral-tekken"},
           {"'[SYSTEM_PROMPT]' '[INST]' + content", "mistral-v7"},
           {"'<|user|>\\n' + content + eos_token", "zephyr"}}) {
    CAPTURE(text);
    write_file(dir / "chat_template.jinja", text);
    CHECK(named_template("auto", dir.path()) == form);
  }
  for (const char* text : {"'<|user|>\\n' + content + '<|end|>' eos_token", "{{ messages }}", ""}) {
    write_file(dir / "chat_template.jinja", text);
    CHECK_FALSE(user_error_of([&] { named_template("auto", dir.path()); }).empty());
  }
}

TEST_CASE("A chat template is read from chat_template.jinja or tokenizer_config.json", "[data]") {
  const TempDir dir;
  const auto form = [&] { return named_template("auto", dir.path()); };
  const auto write_config = [&](const Json& chat_template) {
    write_file(dir / "tokenizer_config.json", Json{{"chat_template", chat_template}}.dump());
  };
  const std::string chatml = "<|im_start|>", llama3 = "<|start_header_id|>";
  CHECK_THAT(user_error_of(form), contains_text("has no chat template") &&
                                      contains_text("--template: llama3, chatml, zephyr"));
  write_config(chatml);
  CHECK(form() == "chatml");
  write_config({{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", llama3}}});
  CHECK(form() == "llama3");
  write_config({{{"name", "rag"}, {"template", llama3}}, 7, {{"name", 1}}});
  CHECK_THAT(user_error_of(form), contains_text("has no chat template"));
  write_config("{{ a date }}");
  CHECK_THAT(user_error_of(form), contains_text("tokenizer_config.json: the chat template is of"));
  write_file(dir / "chat_template.jinja", chatml);
  CHECK(form() == "chatml");
  CHECK(named_template("paper", dir.path()) == "paper");
}
