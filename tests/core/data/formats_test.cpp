#include "core/data/formats.h"

#include "core/base/text.h"
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

TEST_CASE("A record's system text, history, weights and mask are read", "[data]") {
  check(
      R"({"instruction": "q", "output": "r", "system": "S", "history": [["a", "b"], ["c", "d"]]})",
      "Alpaca records", "BS\na\nbEc\ndEq\nrE", ".....bE..dE..rE");
  check(R"({"prompt": "Q", "completion": "A", "system": "S"})", "prompt pairs", "BS\nQAE",
        "....AE");
  const std::string turns =
      R"([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", KEY}, )"
      R"({"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]})";
  for (const char* key : {R"("weight": 0)", R"("train": false)"}) {
    check(R"({"system": "S", "conversations": )" + replace_all(turns, "KEY", key),
          "ShareGPT conversations", "BS\na\nbEc\ndE", ".........dE");
  }
  check(R"({"input_ids": [0, 0, 75, 76, 0], "labels": [-100, -100, 75, 76, -100], )"
        R"("attention_mask": [0, 0, 1, 1, 0], "position_ids": [0, 0, 0, 1, 0]})",
        "pre-tokenised rows", "AB", "AB");
}

TEST_CASE("A key that changes what is learned and is not supported is refused", "[data]") {
  const std::string turns =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"KEY}])";
  const auto messages = [&](const std::string& key, const std::string& more = "") {
    return R"({"messages": )" + replace_all(turns, "KEY", key) + more + "}";
  };
  check_error(messages(R"(, "reasoning_content": "hm")"), "'messages'[1]: 'reasoning_content'");
  check_error(messages(R"(, "weight": 0.5)"), "'weight' is 0.5; known are 0 and 1");
  check_error(messages(R"(, "weight": 0)"), "no answer carries loss");
  check_error(messages("", R"(, "tools": [{"name": "f"}])"), "'tools' changes what is learned");
  check_error(R"({"instruction": "q", "output": "r", "weight": 2})", "'weight' of a record");
  check_error(R"({"instruction": "q", "output": "r", "history": ["a"]})", "'history' must be");
  check_error(R"({"system_prompt": "S", "system": "T", "question": "q", "response": "r"})",
              "two system texts");
  const std::string row = R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3], )";
  check_error(row + R"("attention_mask": [1, 0, 1]})", "'attention_mask' must have a 1");
  check_error(row + R"("position_ids": [0, 1, 0]})", "'position_ids'[2] is not 2");
  check_error(row + R"("segment_ids": [0, 0, 1]})", "'segment_ids'");
  check(messages(R"(, "tool_calls": null)", R"(, "tools": "[]")"), "chat messages", "Ba\nbE",
        "...bE");
}

TEST_CASE("Keys that are not read are counted", "[data]") {
  const std::string record = R"({"id": 1, "instruction": "q", "output": "r", "rank": 3})";
  const Examples examples =
      read_bytes("a.jsonl", record + "\n" + record +
                                "\n"
                                R"({"instruction": "q", "output": "r", "x": "y"})");
  CHECK(examples.forms.at(0) == "Alpaca records; not used: 'rank' of 2 records, 'x' of 1 record");
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
  const auto unused = [](const std::string& a, const std::string& b) {
    return "; not used: '" + a + "' of 1 record, '" + b + "' of 1 record";
  };
  check(both, "Alpaca records" + unused("prompt", "response"), "Bi\noE", "...oE");
  check(both, "prompt pairs" + unused("instruction", "output"), "BprE", "..rE",
        forced(Format::kPairs));
  check(both, "Dolly records" + unused("output", "prompt"), "Bi\nrE", "...rE",
        forced(Format::kDolly));
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
