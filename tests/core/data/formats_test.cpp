#include "core/data/formats.h"

#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

// One record, read under its recognised form: what it was called, its ids and its labels.
struct Seen {
  std::string form, ids, labels;
};

Seen see(const std::string& record, const ReadSettings& settings = {}) {
  const Examples examples = read_bytes("a.jsonl", record + "\n", settings);
  REQUIRE(examples.size() == 1);
  return {examples.forms.at(0), show_ids(examples.at(0)), show_labels(examples.at(0))};
}

void check_seen(const Seen& seen, const Seen& expected) {
  CHECK(seen.form == expected.form);
  CHECK(seen.ids == expected.ids);
  CHECK(seen.labels == expected.labels);
}

void check_error(const std::string& record, const std::string& part) {
  const std::string message = error_of_reading("a.jsonl", "\n" + record);
  INFO(message);
  CHECK(message.find("a.jsonl line 2") == 0);
  CHECK(message.find(part) != std::string::npos);
}

ReadSettings only_last() {
  ReadSettings settings;
  settings.loss_on = LossOn::kLast;
  return settings;
}

ReadSettings forced(Format format) {
  ReadSettings settings;
  settings.format = format;
  return settings;
}

const char* kTwoTurns = R"({"id": "x", "conversations": [{"from": "system", "value": "S"},
{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"},
{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}, {"from": "human", "value": "end"}]})";

std::string one_line(std::string text) {
  for (auto at = text.find('\n'); at != std::string::npos; at = text.find('\n')) {
    text[at] = ' ';
  }
  return text;
}

}  // namespace

TEST_CASE("each form is told from its keys and becomes these tokens with this loss", "[data]") {
  check_seen(see(R"({"instruction": "Add", "input": "1+1", "output": "2"})"),
             {"Alpaca records", "BAdd\n1+1\n2E", ".........2E"});
  check_seen(see(R"({"instruction": "Add", "context": "1+1", "response": "2", "category": "qa"})"),
             {"Dolly records", "BAdd\n1+1\n2E", ".........2E"});
  check_seen(see(R"({"instruction": "Add", "context": "", "response": "2"})"),
             {"Dolly records", "BAdd\n2E", ".....2E"});
  check_seen(
      see(R"({"id": "niv.1", "system_prompt": "Be brief", "question": "Why?", "response": "So"})"),
      {"OpenOrca records", "BBe brief\nWhy?\nSoE", "...............SoE"});
  check_seen(see(R"({"system_prompt": "", "question": "Why?", "response": "So"})"),
             {"OpenOrca records", "BWhy?\nSoE", "......SoE"});
  check_seen(see(R"({"prompt": "Q:", "response": "A"})"), {"prompt pairs", "BQ:AE", "...AE"});
  check_seen(see(R"({"prompt": "Q:", "completion": "A"})"), {"prompt pairs", "BQ:AE", "...AE"});
  check_seen(see(R"({"input_ids": [1, 75, 76], "labels": [-100, -100, 76]})"),
             {"pre-tokenised rows", "BAB", "..B"});
  ReadSettings lm;
  lm.objective = Objective::kLm;
  check_seen(see(R"({"text": "abc"})", lm), {"text documents", "BabcE", ".abcE"});
}

TEST_CASE("a conversation carries loss on every response and its EOS, or on the last", "[data]") {
  const std::string record = one_line(kTwoTurns);
  check_seen(see(record), {"ShareGPT conversations", "BS\nHi\nYoEQ\nAE", "......YoE..AE"});
  check_seen(see(record, only_last()),
             {"ShareGPT conversations", "BS\nHi\nYoEQ\nAE", "...........AE"});
  const std::string chat = R"({"messages": [{"role": "system", "content": "S"},
 {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"},
 {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]})";
  check_seen(see(one_line(chat)), {"chat messages", "BS\nHi\nYoEQ\nAE", "......YoE..AE"});
}

TEST_CASE("neighbouring forms are told apart", "[data]") {
  const auto form_of = [](const char* record, Objective objective = Objective::kInstruct) {
    const auto format = recognise(parse_json(record, "test"), objective);
    return std::string(format ? format_name(*format) : "none");
  };
  CHECK(form_of(R"({"prompt": "p", "prompt_id": "i", "messages": []})") ==
        "messages");  // UltraChat
  CHECK(form_of(R"({"instruction": "i", "input": "", "output": "o", "text": "t"})") == "alpaca");
  CHECK(form_of(R"({"instruction": "i", "output": "o", "text": "t"})", Objective::kLm) == "text");
  CHECK(form_of(R"({"question": "q", "response": "r"})") == "openorca");
  CHECK(form_of(R"({"instruction": "i"})") == "alpaca");  // the reader names what is missing
  CHECK(form_of(R"({"question": "q"})") == "openorca");
  CHECK(form_of(R"({"a": 1})") == "none");
}

TEST_CASE("--format wins over the first record", "[data]") {
  const std::string both = R"({"instruction": "i", "output": "o", "prompt": "p", "response": "r"})";
  CHECK(see(both).form == "Alpaca records");
  check_seen(see(both, forced(Format::kPairs)), {"prompt pairs", "BprE", "..rE"});
  check_seen(see(both, forced(Format::kDolly)), {"Dolly records", "Bi\nrE", "...rE"});
  CHECK(error_of_reading("a.jsonl", both, forced(Format::kMessages)) ==
        "a.jsonl line 1: 'messages' is missing");
  CHECK(error_of_reading("a.txt", "hello", forced(Format::kAlpaca)) ==
        "a.txt line 1: --format alpaca: the file is plain text, it begins with neither { nor [");
  CHECK(parse_format("sharegpt") == Format::kShareGpt);
  CHECK(user_error_of([] { parse_format("alpacca"); }) ==
        "--format 'alpacca' is unknown, did you mean 'alpaca'?; known: rows, alpaca, dolly, pairs, "
        "messages, sharegpt, openorca, text");
}

TEST_CASE("a conversation that cannot be learned from names the line and the message", "[data]") {
  const auto chat = [](const std::string& messages) {
    return "{\"messages\": [" + messages + "]}";
  };
  const std::string user = R"({"role": "user", "content": "q"})";
  const std::string answer = R"({"role": "assistant", "content": "a"})";
  check_error(chat(answer + "," + user),
              "'messages'[0]: the conversation starts with the answer; remove the record");
  check_error(chat(user + "," + answer + "," + answer), "'messages'[2]: two answers in a row");
  check_error(chat(user + "," + user), "'messages'[1]: two questions in a row");
  check_error(chat(user), "no response: the conversation holds no answer");
  check_error(chat(""), "no response: the conversation holds no answer");
  check_error(chat(user + R"(,{"role": "tool", "content": "x"})"),
              "'messages'[1]: 'role' is 'tool', an unknown role; known: system, user, assistant");
  check_error(chat(user + R"(,{"role": "system", "content": "x"})"),
              "'messages'[1]: a system text may only stand first");
  check_error(chat(user + R"(,{"role": "assistant", "content": " \n"})"),
              "'messages'[1]: no response: 'content' is empty");
  check_error(chat(user + R"(,{"role": "assistant", "content": null})"),
              "'messages'[1]: 'content' must be a string, is null");
  check_error(chat(R"({"role": "user", "content": [{"type": "text"}]})"),
              "'messages'[0]: 'content' must be a string, is a list of 1");
  check_error(chat(R"({"role": 3, "content": "x"})"), "'messages'[0]: 'role' must be a string");
  check_error(chat(R"({"content": "x"})"), "'messages'[0]: 'role' is missing");
  check_error(chat("7"), R"('messages'[0]: a message {"role", "content"} is expected)");
  check_error(R"({"messages": {"role": "user"}})", "'messages' must be a list of messages");
  check_error(R"({"conversations": [{"from": "bot", "value": "x"}]})",
              "'conversations'[0]: 'from' is 'bot', an unknown role; known: system, human, gpt");
  check_error(R"({"conversations": [{"from": "gpt", "value": "x"}]})", "starts with the answer");
}

TEST_CASE("a single turn that cannot be learned from names the line and the field", "[data]") {
  check_error(R"({"question": "q", "response": ""})", "no response: 'response' is empty");
  check_error(R"({"system_prompt": 1, "question": "q", "response": "r"})",
              "'system_prompt' must be a string");
  check_error(R"({"question": "q"})", "'response' is missing");
  check_error(R"({"instruction": "q", "context": "c"})", "'response' is missing");
  check_error(R"({"instruction": "q", "context": [], "response": "r"})",
              "'context' must be a string");
  check_error(R"({"prompt": "q", "response": "\ud800"})", "broken JSON");  // a lone surrogate
  check_error("{\"prompt\": \"q\", \"response\": \"\xED\xA0\x80\"}", "not UTF-8 at byte");
}
