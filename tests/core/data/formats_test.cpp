#include "core/data/formats.h"

#include <zlib.h>
#include <zstd.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/examples.h"
#include "core/data/records.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/byte_codec.h"
#include "tests/support/data.h"
#include "tests/support/training_rows.h"

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

struct Text {
  std::string prompt, response;
};
using Texts = std::vector<Text>;  // the turns of a record

TextCodec codec_of_ids(const io::Tokenizer& tokenizer) {
  return {[&](std::string_view text) { return tokenizer.encode(text); }, tokenizer.bos_id(),
          tokenizer.eos_id()};
}

// Decodes the runs of tokens without and with loss.
Texts decode(const io::Tokenizer& tokenizer, const Example& example) {
  Texts texts;
  std::vector<int64_t> prompt, response;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool with_loss = example.labels[t] != kNoLoss;
    REQUIRE((!with_loss || example.labels[t] == example.ids[t]));
    if (!with_loss && !response.empty()) {
      texts.push_back({tokenizer.decode(prompt), tokenizer.decode(response)});
      prompt.clear();
      response.clear();
    }
    (with_loss ? response : prompt).push_back(example.ids[t]);
  }
  texts.push_back({tokenizer.decode(prompt), tokenizer.decode(response)});
  return texts;
}

std::vector<Json> records_of(const fs::path& file) {
  if (file.extension() == ".json") {
    return read_json(file).get<std::vector<Json>>();
  }
  return json_lines(read_file(file));
}

// Reads a record by its keys: Alpaca, prompt pairs or ShareGPT.
Texts texts_of(const Json& record) {
  if (record.contains("instruction")) {
    const std::string input = record.at("input");
    return {
        {record.at("instruction").get<std::string>() + (input.empty() ? "" : "\n" + input) + "\n",
         record.at("output")}};
  }
  if (record.contains("prompt")) {
    return {{record.at("prompt"), record.value("response", record.value("completion", ""))}};
  }
  Texts texts;
  const Json& messages = record.at("conversations");
  for (size_t i = 0; i + 1 < messages.size(); i += 2) {
    texts.push_back(
        {messages[i].at("value").get<std::string>() + "\n", messages[i + 1].at("value")});
  }
  return texts;
}

void check_file(const io::Tokenizer& tokenizer, const fs::path& file, const std::string& form) {
  const Examples examples = read_examples({file}, Objective::kInstruct, tokenizer.vocab_size(),
                                          [&] { return codec_of_ids(tokenizer); });
  const std::vector<Json> records = records_of(file);
  CHECK(examples.forms.at(0) == form);
  REQUIRE(examples.size() == static_cast<int64_t>(records.size()));
  for (size_t index = 0; index < records.size(); ++index) {
    const Texts expected = texts_of(records[index]);
    const Texts texts = decode(tokenizer, examples.at(static_cast<int64_t>(index)));
    INFO(examples.where(static_cast<int64_t>(index)));
    REQUIRE(texts.size() == expected.size());
    for (size_t turn = 0; turn < expected.size(); ++turn) {
      REQUIRE(texts[turn].prompt == expected[turn].prompt);
      REQUIRE(texts[turn].response == expected[turn].response);
    }
  }
}

std::string golden(const std::string& name) {
  return read_file(moe::test::source_folder() / "tests" / "golden" / name);
}

bool has_parquet() {
  const std::string error = error_of_reading("a.parquet", golden("orca.parquet"));
  return error.find("MOE_PARQUET") == std::string::npos;
}

// One gzip member.
std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// One zstd frame with a checksum.
std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  }
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  // Streamed: the frame contains its window and not its size.
  ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue);
  REQUIRE(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) == 0);
  packed.resize(out.pos);
  ZSTD_freeCCtx(context);
  return packed;
}

std::string records(int count) {
  std::string text;
  uint32_t noise = 1;
  for (int i = 0; i < count; ++i) {
    noise = noise * 1664525 + 1013904223;  // compresses like text
    text += fmt::format(R"({{"prompt": "Q{} {:x}", "response": "A{}"}})", i, noise, i) + "\n";
  }
  return text;
}

void check_error(const std::string& name, const std::string& bytes, const std::string& fact) {
  CHECK_THAT(error_of_reading(name, bytes), contains_text(fact));
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
  CHECK_THAT(error_of_reading("a.jsonl", messages(R"(, "weight": 0)"), only_last()),
             contains_text("no answer carries loss"));
  CHECK_THAT(
      error_of_reading(
          "a.jsonl",
          R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, )"
          R"({"from": "human", "value": "c"}, {"from": "gpt", "value": "d", "train": false}]})",
          only_last()),
      contains_text("the last answer carries no loss"));
  check_error(messages("", R"(, "tools": [{"name": "f"}])"), "'tools' changes what is learned");
  check_error(R"({"instruction": "q", "output": "r", "weight": 2})", "'weight' of a record");
  check_error(R"({"instruction": "q", "output": "r", "history": ["a"]})", "'history' must be");
  check_error(R"({"system_prompt": "S", "system": "T", "question": "q", "response": "r"})",
              "two system texts");
  const std::string row = R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3], )";
  check_error(row + R"("attention_mask": [1, 0, 1]})", "'attention_mask' must have a 1");
  for (const auto& [keys, fact] : std::vector<std::pair<std::string, std::string>>{
           {R"("position_ids": [0, 1, 3]})", "'position_ids'[2] is 3; positions must begin at 0"},
           {R"("position_ids": [1, 2, 3]})", "'position_ids'[0] is 1"},
           {R"("position_ids": [0, 1]})", "'position_ids' covers 2 tokens, 'input_ids' has 3"},
           {R"("position_ids": [0, 1, 2, 3]})", "'position_ids' covers 4 tokens"},
           {R"("sequence_lengths": [1, 3]})", "'sequence_lengths' has 3"},
           {R"("sequence_lengths": [2]})", "'sequence_lengths' covers 2 tokens"},
           {R"("segment_ids": [1, 1, 2], "position_ids": [0, 1, 2]})", "into other documents"},
           {R"("weight": 0.5})", "'weight' of a record"},
           {R"("loss_mask": [1, 1, 0]})", "'loss_mask' changes what is learned"}}) {
    check_error(row + keys, fact);
  }
  check(messages(R"(, "tool_calls": null)", R"(, "tools": "[]")"), "chat messages", "Ba\nbE",
        "...bE");
}

TEST_CASE("A row of several documents is an example for each", "[data]") {
  const std::string row = R"({"input_ids": [0, 75, 76, 77, 78, 79, 80], "labels": )";
  for (const char* keys :
       {R"("attention_mask": [0, 1, 1, 1, 1, 1, 1], "segment_ids": [0, 1, 1, 2, 2, 2, 2])",
        R"("attention_mask": [0, 1, 1, 1, 1, 1, 1], "position_ids": [1, 0, 1, 0, 1, 2, 3])",
        R"("attention_mask": [0, 1, 1, 1, 1, 1, 1], "sequence_lengths": [2, 4])"}) {
    const Examples examples =
        read_bytes("a.jsonl", row + "[-100, 75, 76, -100, 78, 79, 80], " + keys + "}");
    REQUIRE(examples.size() == 2);
    CHECK(show_ids(examples.at(0)) == "AB");
    CHECK(show_ids(examples.at(1)) == "CDEF");
    CHECK(show_labels(examples.at(1)) == ".DEF");
    CHECK_THAT(examples.forms.at(0), contains_text("rows of several documents, each of which"));
  }
  // A document without a target is left out.
  CHECK(
      read_bytes("a.jsonl",
                 row + R"([0, 75, -100, -100, 78, 79, 80], "segment_ids": [0, 0, 0, 1, 1, 1, 1]})")
          .size() == 2);
  CHECK(read_bytes(
            "a.jsonl",
            row + R"([0, -100, -100, -100, 78, 79, 80], "segment_ids": [0, 0, 0, 1, 1, 1, 1]})")
            .size() == 1);
}

TEST_CASE("Prompt and answer may be lists of messages, content a list of text parts", "[data]") {
  const std::string question = R"({"role": "user", "content": "q"})";
  const std::string answer =
      R"({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"text": "b"}]})";
  const std::string earlier =
      R"({"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}, )";
  check(R"({"prompt": [)" + earlier + question + R"(], "completion": [)" + answer + "]}",
        "prompt pairs", "Bp\nrEq\nabE", ".......abE");
  check(R"({"prompt": [)" + question + R"(], "chosen": [)" + answer + R"(], "rejected": [7]})",
        "chosen answers; not used: 'rejected' of 1 record", "Bq\nabE", "...abE");
  check(R"({"prompt": "q", "chosen": [)" + question + "," + answer + "]}", "chosen answers",
        "Bq\nabE", "...abE");
  check(R"({"prompt": "q", "completion": [)" + answer + "]}", "prompt pairs", "Bq\nabE", "...abE");
  check(R"({"prompt": "q", "chosen": "a", "rejected": "b"})",
        "chosen answers; not used: 'rejected' of 1 record", "BqaE", "..aE");
  check(R"({"question": "q", "answer": "a"})", "questions and answers", "Bq\naE", "...aE");
  check(R"({"input": "q", "output": "a"})", "inputs and outputs", "Bq\naE", "...aE");
  check_error(R"({"prompt": "q", "completion": [{"role": "assistant", "thinking": "r"}]})",
              "'completion'[0]: 'thinking' changes what is learned");
  check_error(R"({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]})",
              R"('messages'[0]: 'content' has the part {"type":"image","url":"x"})");
}

TEST_CASE("--columns renames keys", "[data]") {
  ReadSettings settings;
  settings.columns = parse_columns("q=instruction,a=output");
  check(R"({"q": "x", "a": "y"})", "Alpaca records", "Bx\nyE", "...yE", settings);
  CHECK_THAT(
      error_of_reading("a.jsonl", R"({"q": "x", "b": "y"})", settings),
      contains_text("line 1: --columns a=output: the record has no 'a', its keys are 'b', "));
  CHECK_THAT(error_of_reading("a.jsonl", R"({"q": "x", "a": "y", "output": "z"})", settings),
             contains_text("--columns a=output: the record has both"));
  CHECK_THAT(user_error_of([] { parse_columns("a=b,c"); }), contains_text("--columns a=b,c"));
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
              R"('messages'[0]: 'content' has the part {"type":"text"})");
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

// Whole instruction files, tokenized and decoded again: the decoded tokens without loss are the
// prompts of the file, those with loss its responses, and there are no others.

TEST_CASE("Generated instruction files of each form are decoded to their texts", "[data]") {
  const io::Tokenizer tokenizer = io::Tokenizer::load(tiny_model_folder(), 0);
  const TempDir dir;
  const std::vector<std::string> texts = {
      "Once", "two  spaces", "a\nb\tc", "\u65E5\u672C \U0001F600", "<s> </s>", "\"quoted\" \\ {x}"};
  std::string alpaca, pairs, completions;
  Json conversations = Json::array();
  for (const auto& text : texts) {
    const std::string answer = "so " + text;
    alpaca += Json{{"instruction", text}, {"input", ""}, {"output", answer}}.dump() + "\n" +
              Json{{"instruction", text}, {"input", text}, {"output", answer}}.dump() + "\n";
    pairs += Json{{"prompt", text}, {"response", answer}}.dump() + "\n";
    completions += Json{{"prompt", text}, {"completion", answer}}.dump() + "\n";
    const Json question = {{"from", "human"}, {"value", text}};
    const Json reply = {{"from", "gpt"}, {"value", answer}};
    conversations.push_back({{"conversations", {question, reply, question, reply}}});
  }
  write_file(dir / "alpaca.jsonl", alpaca);
  write_file(dir / "pairs.jsonl", pairs);
  write_file(dir / "completions.jsonl", completions);
  write_file(dir / "conversations.json", conversations.dump(2));
  check_file(tokenizer, dir / "alpaca.jsonl", "Alpaca records");
  check_file(tokenizer, dir / "pairs.jsonl", "prompt pairs");
  check_file(tokenizer, dir / "completions.jsonl", "prompt pairs");
  check_file(tokenizer, dir / "conversations.json", "ShareGPT conversations");
  check_file(tokenizer, source_folder() / "recipes/tiny/instruct.jsonl", "Alpaca records");
}

TEST_CASE("Published instruction files are decoded to their texts, with LLaMA's ids", "[data]") {
  MOE_NEED_SHARED_DATA();
  const io::Tokenizer llama = io::Tokenizer::load(shared_data() / "llama-tokenizer", 32000);
  const auto folder = shared_data() / "instruct";
  check_file(llama, folder / "alpaca_2000.jsonl", "Alpaca records");
  check_file(llama, folder / "alpaca_en_demo.json", "Alpaca records");
  check_file(llama, folder / "dolly_hhrlhf_train_small.jsonl", "prompt pairs");
  check_file(llama, folder / "sharegpt_dummy_conversation.json", "ShareGPT conversations");
  for (const auto& entry : fs::directory_iterator(folder / "t0_sample")) {
    check_file(llama, entry.path(), "prompt pairs");
  }
  const io::Tokenizer tokenizer = io::Tokenizer::load(shared_data() / "stories260K-hf", 512);
  const auto stories = read_examples({shared_data() / "text" / "tinystories_v2_train_head.txt"},
                                     Objective::kLm, 512, [&] { return codec_of_ids(tokenizer); });
  CHECK(stories.size() == 1728);
  const Json reference = read_json(shared_data() / "stories260K-hf" / "reference.json");
  auto expected = reference["first_story"]["ids_with_bos"].get<std::vector<int32_t>>();
  expected.push_back(2);
  CHECK(stories.at(0).ids == expected);
}

TEST_CASE("Without Arrow a Parquet file is refused with the command that converts it", "[data]") {
  if (has_parquet()) {
    MOE_SKIP("this build reads Parquet");
  }
  CHECK_THAT(error_of_reading("orca.parquet", golden("orca.parquet")),
             contains_text("orca.parquet: a Parquet file") && contains_text("recipes/setup.sh") &&
                 contains_text("p.ParquetFile('orca.parquet').iter_batches() for r in "
                               "b.to_pylist()]\" > data.jsonl"));
}

TEST_CASE("Parquet rows give the same examples as JSON lines", "[data]") {
  if (!has_parquet()) {
    MOE_SKIP("no pyarrow where this was built");
  }
  const Examples orca = read_bytes("a.parquet", golden("orca.parquet"));
  CHECK(orca.forms.at(0) == "OpenOrca records, Parquet");
  REQUIRE(orca.size() == 3);
  CHECK(show_ids(orca.at(0)) == "BQ?\nRE");
  CHECK(show_ids(orca.at(1)) == "BS\n\xC3\xA9\nrE");
  CHECK(show_labels(orca.at(1)) == "......rE");
  CHECK(orca.at(2).line == 3);
  CHECK(show_ids(read_bytes("a", golden("chat.parquet")).at(0)) == "Bq\naE");
  CHECK(show_labels(read_bytes("a", golden("rows.parquet")).at(0)) == "..B");
}

TEST_CASE("A truncated Parquet file is refused, and a damaged one does not crash", "[data]") {
  if (!has_parquet()) {
    MOE_SKIP("no pyarrow where this was built");
  }
  const std::string whole = golden("orca.parquet");
  CHECK_THAT(error_of_reading("a.parquet", "PAR1\x15\x04xyzPAR1"),
             contains_text("a.parquet: the Parquet data"));
  for (size_t length = 4; length < whole.size(); ++length) {
    CHECK_FALSE(error_of_reading("a.parquet", whole.substr(0, length)).empty());
  }
  for (size_t at = 4; at < whole.size(); ++at) {  // no checksums: an error, or other records
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    error_of_reading("a.parquet", damaged);
  }
}

TEST_CASE("gzip and zstd are recognized by their bytes and give the same examples", "[data]") {
  const std::string text = records(20000);  // several blocks of the reader
  REQUIRE(text.size() > (size_t{8} << 16));
  const Examples plain = read_bytes("a.jsonl", text);
  const Examples gz = read_bytes("a.jsonl", gzip(text)), zst = read_bytes("a.dat", zstd(text));
  CHECK(same_examples(gz, plain));
  CHECK(same_examples(zst, plain));
  CHECK(plain.forms.at(0) == "prompt pairs");
  CHECK(gz.forms.at(0) == "prompt pairs, gzip");
  CHECK(zst.forms.at(0) == "prompt pairs, zstd");
}

TEST_CASE("Consecutive gzip members or zstd frames are one text", "[data]") {
  const std::string text = records(300);
  const Examples plain = read_bytes("a.jsonl", text);
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  for (const size_t cut : {size_t{1}, size_t{100}, text.size() - 1}) {
    const std::string head = text.substr(0, cut), tail = text.substr(cut);
    CHECK(same_examples(read_bytes("a.gz", gzip(head) + gzip("") + gzip(tail)), plain));
    CHECK(
        same_examples(read_bytes("a.zst", skippable + zstd(head) + zstd("") + zstd(tail)), plain));
  }
}

TEST_CASE("A compressed text keeps the form of its name and loses its byte order mark", "[data]") {
  ReadSettings lm;
  lm.objective = Objective::kLm;
  CHECK(show_ids(read_bytes("a.txt.gz", gzip("{x"), lm).at(0)) == "B{xE");
  CHECK(show_ids(read_bytes("a.zst", zstd("\xEF\xBB\xBFhey"), lm).at(0)) == "BheyE");
  CHECK(show_ids(read_bytes("a.gz", gzip("\xEF\xBB\xBFhey"), lm).at(0)) == "BheyE");
  CHECK(read_bytes("a.gz", gzip("\xEF\xBC\x81"), lm).at(0).ids.size() == 5);  // another character
  check_error("a.gz", gzip(""), "a.gz: the file is empty");
  check_error("a.gz", gzip("\xEF\xBB\xBF"), "a.gz: the file is empty");
}

TEST_CASE("A compressed file truncated at any byte is refused", "[data]") {
  const std::string text = records(20);
  for (const std::string& packed : {gzip(text), zstd(text)}) {
    for (size_t length = 4; length < packed.size(); ++length) {
      CAPTURE(length);
      check_error("a.jsonl", packed.substr(0, length),
                  "data end in the middle: the file is cut short");
    }
  }
  const std::string packed = gzip(records(20000));
  const std::string message = error_of_reading("a.jsonl", packed.substr(0, packed.size() / 2));
  INFO(message);
  const int64_t line = std::atoll(message.c_str() + std::string("a.jsonl line ").size());
  CHECK((line > 9000 && line < 11000));  // half of the bytes are half of the lines
}

TEST_CASE("A damaged compressed file is refused unless the damaged bit has no meaning", "[data]") {
  const std::string text = records(20);
  const Examples plain = read_bytes("a.jsonl", text);
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    size_t refused = 0;
    for (size_t at = 10; at < whole.size(); ++at) {
      std::string packed = whole;
      packed[at] = static_cast<char>(packed[at] ^ 0x10);
      INFO(at);
      if (error_of_reading("a.jsonl", packed).empty()) {  // padding
        CHECK(same_examples(read_bytes("a.jsonl", packed), plain));
      } else {
        ++refused;
      }
    }
    CHECK(refused + 10 > whole.size() - 10);
  }
  check_error("a.gz", gzip(text) + "junk", "a.gz line 21: the gzip data are damaged");
  check_error("a.zst", zstd(text) + "junk", "a.zst line 21: the zstd data are damaged");
}

TEST_CASE("A file that decompresses to gigabytes is refused in bounded memory", "[data]") {
  check_error("a.gz", gzip("{\"prompt\": \"" + std::string(size_t{66} << 20, 'x')),
              "a.gz line 1: the record that starts here is longer than 64 MiB");
  // Blank lines, of which no record grows: only the ratio reveals it.
  const std::string blank = gzip(std::string(size_t{32} << 20, '\n'));
  std::string bomb = gzip(records(1));
  for (int i = 0; i < 9; ++i) {
    bomb += blank;
  }
  check_error("a.gz", bomb, "unpacks to more than 500 times its size");
  // The window of zstd is limited to 128 MiB.
  check_error("a.zst", zstd(records(9), 28), "a.zst line 1: the zstd data need a window of more");
  CHECK(read_bytes("a.zst", zstd(records(9), 27)).size() == 9);
}

TEST_CASE("Other kinds of files are refused with the program that unpacks them", "[data]") {
  check_error("a.json", "PK\x03\x04zip", "a.json: is a zip archive; unpack it");
  check_error("a.bz2", "BZh91AY", "packed with bzip2; unpack it (bunzip2)");
  check_error("a.xz", std::string("\xFD") + "7zXZ", "packed with xz; unpack it (unxz)");
  check_error("a.arrow", "ARROW1xx", "is an Arrow file");
  check_error("a.arrow", "\xFF\xFF\xFF\xFF\x10", "is an Arrow stream");
  check_error("a.db", "SQLite format 3", "is an SQLite database");
  check_error("a.jsonl", "\xFF\xFE{", "is UTF-16; convert it: iconv");
  check_error("a.jsonl", std::string("\xFF\xFE\0\0{", 5), "is UTF-32");
  check_error("a.jsonl", "<!DOCTYPE html><html>", "is an HTML page");
  check_error("a.parquet", "version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS");
  check_error("a.gz", gzip("\xFE\xFF"), "a.gz line 1: the unpacked data are UTF-16");
}
