#include "core/data/templates.h"

#include "core/tokenizer/tokenizer.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"

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

// `learned` stands at the end of `ids`, everything before it is without loss.
void check_single(const Seen& seen, const std::string& ids, const std::string& learned) {
  CHECK(seen.ids == ids);
  REQUIRE(ids.size() >= learned.size());
  CHECK(seen.labels == std::string(ids.size() - learned.size(), '.') + learned);
}

std::string error_of(const std::string& word) {
  return user_error_of([&] { Template::parse(word); });
}

const char* kPlain = R"({"instruction": "Add", "input": "", "output": "2"})";
const char* kWithInput = R"({"instruction": "Add", "input": "1+1", "output": "2"})";
const char* kWithSystem = R"({"system_prompt": "S", "question": "Q", "response": "R"})";
const char* kTwoTurns =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q "},
 {"role": "assistant", "content": " R"}, {"role": "user", "content": "q"},
 {"role": "assistant", "content": "r"}]})";

std::string two_turns() {
  std::string text = kTwoTurns;
  text[text.find('\n')] = ' ';
  text[text.find('\n')] = ' ';
  return text;
}

}  // namespace

TEST_CASE("the Alpaca template is Stanford's, with and without an input", "[data]") {
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

TEST_CASE("the llama2 template is Meta's, a BOS before every turn", "[data]") {
  check_single(see(kPlain, "llama2"), "B[INST] Add [/INST] 2 E", "2 E");
  check_single(see(kWithInput, "llama2"), "B[INST] Add\n1+1 [/INST] 2 E", "2 E");
  const Seen seen = see(two_turns(), "llama2");
  CHECK(seen.ids == "B[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] R EB[INST] q [/INST] r E");
  const auto dots = [](std::string_view text) { return std::string(text.size(), '.'); };
  CHECK(seen.labels == dots("B[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] ") + "R E" +
                           dots("B[INST] q [/INST] ") + "r E");
}

TEST_CASE("the user's own template surrounds instruction and response", "[data]") {
  check_single(see(kPlain, R"(U: {instruction}\nA: {response})"), "BU: Add\nA: 2E", "2E");
  check_single(see(kWithInput, R"(\{{instruction}\}\t\\{response};)"), "B{Add\n1+1}\t\\2;E", "2;E");
  check_single(see(kPlain, "{a b} {instruction}{response}"), "B{a b} Add2E", "2E");
  check_single(see(kPlain, "U {instruction}\n{response}"), "BU Add\n2E", "2E");
  const Seen turns = see(two_turns(), "<{instruction}>{response}");
  CHECK(turns.ids == "B<S\nQ > RE<q>rE");
  CHECK(turns.labels == "....... RE...rE");
}

TEST_CASE("a template that lacks something says what", "[data]") {
  CHECK(error_of("U: {instruction}") ==
        "--template 'U: {instruction}': {response} is missing; it must stand there once");
  CHECK(error_of("{response}") ==
        "--template '{response}': {instruction} is missing; it must stand there once");
  CHECK(
      error_of("{instruction}{response}{response}") ==
      "--template '{instruction}{response}{response}': {response} stands there more than once; it "
      "must stand there once");
  CHECK(error_of("{response}{instruction}") ==
        "--template '{response}{instruction}': {response} stands before {instruction}");
  CHECK(error_of("{instruction}{input}{response}") ==
        "--template '{instruction}{input}{response}': '{input}' is no placeholder; known: "
        "{instruction} and {response} (write \\{ for a brace)");
  CHECK(
      error_of(R"({instruction}\r{response})") ==
      R"(--template '{instruction}\r{response}': '\r' is no escape; known: \n, \t, \\, \{ and \})");
  CHECK(
      error_of("alpacca") ==
      "--template 'alpacca' is unknown, did you mean 'alpaca'?; known: paper, alpaca, llama2, "
      "llama3, chatml, zephyr, mistral, mistral-v0, mistral-v3, mistral-tekken, mistral-v7, auto, "
      "or a text with {instruction} and {response}");
  CHECK(error_of("{instruction}\xFF{response}").find("is not UTF-8") != std::string::npos);
}

TEST_CASE("a tokenizer that brings the space before the response gets none from the template",
          "[data]") {
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

TEST_CASE("with LLaMA's tokenizer the llama2 form gives the ids of Meta's joint encoding",
          "[data]") {
  MOE_NEED_SHARED_DATA();
  const auto folder = shared_data();
  const auto tokenizer = io::Tokenizer::load(folder / "llama-tokenizer", 32000);
  const auto codec = [&] {
    return TextCodec{[&](std::string_view text) { return tokenizer.encode(text); },
                     tokenizer.bos_id(), tokenizer.eos_id(), true};
  };
  const auto file = folder / "instruct" / "alpaca_2000.jsonl";
  const auto examples = read_examples({{file}}, with("llama2"), 32000, codec);
  const auto strip = [](std::string text) {
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    return text.erase(text.find_last_not_of(" \t\r\n") + 1);
  };
  std::ifstream in(file);
  size_t index = 0;
  for (std::string line; std::getline(in, line); ++index) {
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
}
