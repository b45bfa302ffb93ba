#include "core/data/formats.h"

#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

// Checks the name of the form of a record, its ids and its labels.
void check(const std::string& record, const std::string& form, const std::string& ids,
           const std::string& labels, const ReadSettings& settings = {}) {
  const Examples examples = read_bytes("a.jsonl", record + "\n", settings);
  REQUIRE(examples.size() == 1);
  CHECK(examples.forms.at(0) == form);
  CHECK(show_ids(examples.at(0)) == ids);
  CHECK(show_labels(examples.at(0)) == labels);
}

void check_error(const std::string& record, const std::string& fact) {
  CHECK_THAT(error_of_reading("a.jsonl", "\n" + record),
             contains_text("a.jsonl line 2") && contains_text(fact));
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

}  // namespace

TEST_CASE("Each form is recognized by its keys and has loss on the response", "[data]") {
  check(R"({"instruction": "Add", "input": "1+1", "output": "2"})", "Alpaca records",
        "BAdd\n1+1\n2E", ".........2E");
  check(R"({"instruction": "Add", "context": "1+1", "response": "2", "category": "qa"})",
        "Dolly records", "BAdd\n1+1\n2E", ".........2E");
  check(R"({"instruction": "Add", "context": "", "response": "2"})", "Dolly records", "BAdd\n2E",
        ".....2E");
  check(R"({"id": "niv.1", "system_prompt": "Be brief", "question": "Why?", "response": "So"})",
        "OpenOrca records", "BBe brief\nWhy?\nSoE", "...............SoE");
  check(R"({"system_prompt": "", "question": "Why?", "response": "So"})", "OpenOrca records",
        "BWhy?\nSoE", "......SoE");
  check(R"({"prompt": "Q:", "response": "A"})", "prompt pairs", "BQ:AE", "...AE");
  check(R"({"prompt": "Q:", "completion": "A"})", "prompt pairs", "BQ:AE", "...AE");
  check(R"({"input_ids": [1, 75, 76], "labels": [-100, -100, 76]})", "pre-tokenised rows", "BAB",
        "..B");
  ReadSettings lm;
  lm.objective = Objective::kLm;
  check(R"({"text": "abc"})", "text documents", "BabcE", ".abcE", lm);
}

TEST_CASE("A conversation has loss on every response and its EOS, or on the last", "[data]") {
  const std::string turns = R"({"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}, )"
                            R"({"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"})";
  const std::string sharegpt =
      R"({"id": "x", "conversations": [{"from": "system", "value": "S"}, )" + turns +
      R"(, {"from": "human", "value": "end"}]})";
  check(sharegpt, "ShareGPT conversations", "BS\nHi\nYoEQ\nAE", "......YoE..AE");
  check(sharegpt, "ShareGPT conversations", "BS\nHi\nYoEQ\nAE", "...........AE", only_last());
  check(R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, )"
        R"({"role": "assistant", "content": "Yo"}, {"role": "user", "content": "Q"}, )"
        R"({"role": "assistant", "content": "A"}]})",
        "chat messages", "BS\nHi\nYoEQ\nAE", "......YoE..AE");
}

TEST_CASE("Records with the keys of several forms get one form", "[data]") {
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

TEST_CASE("--format overrides the form of the first record", "[data]") {
  const std::string both = R"({"instruction": "i", "output": "o", "prompt": "p", "response": "r"})";
  check(both, "Alpaca records", "Bi\noE", "...oE");
  check(both, "prompt pairs", "BprE", "..rE", forced(Format::kPairs));
  check(both, "Dolly records", "Bi\nrE", "...rE", forced(Format::kDolly));
  CHECK_THAT(error_of_reading("a.jsonl", both, forced(Format::kMessages)),
             contains_text("a.jsonl line 1: 'messages' is missing"));
  CHECK_THAT(error_of_reading("a.txt", "hello", forced(Format::kAlpaca)),
             contains_text("a.txt line 1: --format alpaca: the file is plain text"));
  CHECK(parse_format("sharegpt") == Format::kShareGpt);
  CHECK_THAT(user_error_of([] { parse_format("alpacca"); }),
             contains_text("'alpacca' is unknown, did you mean 'alpaca'?; known: rows, alpaca,"));
}

TEST_CASE("An invalid conversation is refused with its line and message", "[data]") {
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

TEST_CASE("An invalid single turn is refused with its line and field", "[data]") {
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
