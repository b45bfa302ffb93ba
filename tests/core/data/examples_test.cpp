#include "core/data/examples.h"

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/records.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

Examples read(const std::filesystem::path& file, Objective objective = Objective::kInstruct) {
  return read_examples({file}, objective, kVocab, byte_codec);
}

Examples read_text(const std::string& name, const std::string& text,
                   Objective objective = Objective::kInstruct) {
  const TempDir dir;
  write_file(dir / name, text);
  return read(dir / name, objective);
}

// The message of reading `text` as file `name`, with the folder's name cut off.
std::string error_of(const std::string& name, const std::string& text,
                     Objective objective = Objective::kInstruct) {
  const TempDir dir;
  write_file(dir / name, text);
  try {
    read(dir / name, objective);
  } catch (const UserError& error) {
    std::string message = error.what();
    for (auto at = message.find(dir.path().string()); at != std::string::npos;
         at = message.find(dir.path().string())) {
      message.erase(at, dir.path().string().size() + 1);
    }
    return message;
  }
  return "no error";
}

void check_contains(const std::string& message, const std::string& part) {
  INFO(message);
  CHECK(message.find(part) != std::string::npos);
}

const char* kPair = R"({"instruction": "Say", "input": "", "output": "yes"})";

}  // namespace

TEST_CASE("Alpaca records become BOS instruct response EOS with the loss on the response",
          "[data]") {
  const auto examples =
      read_text("a.jsonl", std::string(kPair) + "\n\n" +
                               R"({"instruction": "Add", "input": "1+1", "output": "2", "id": 7})" +
                               "\n" + R"({"instruction": "Hi", "output": "Ho"})");
  REQUIRE(examples.size() == 3);
  CHECK(show_ids(examples.at(0)) == "BSay\nyesE");
  CHECK(show_labels(examples.at(0)) == ".....yesE");
  CHECK(show_ids(examples.at(1)) == "BAdd\n1+1\n2E");
  CHECK(show_labels(examples.at(1)) == ".........2E");
  CHECK(show_ids(examples.at(2)) == "BHi\nHoE");
  CHECK(examples.at(1).line == 3);
  CHECK_FALSE(examples.all_rows);
  CHECK(examples.tokens() == 9 + 11 + 7);
}

TEST_CASE("a JSON array holds the same records, with the lines where they start", "[data]") {
  const auto examples =
      read_text("a.json",
                "\xEF\xBB\xBF \n[\n  {\n \"instruction\": \"a } \\\" { ]\",\n \"input\": null,\n "
                "\"output\": \"b\" }\n, {\"instruction\":\"c\",\"output\":\"d\"} ]\n\n");
  REQUIRE(examples.size() == 2);
  CHECK(show_ids(examples.at(0)) == "Ba } \" { ]\nbE");
  CHECK(examples.at(0).line == 3);
  CHECK(show_ids(examples.at(1)) == "Bc\ndE");
  CHECK(examples.at(1).line == 7);
}

TEST_CASE("prompt pairs take the prompt as it stands", "[data]") {
  const auto first = read_text("a.jsonl", R"({"prompt": "Q:", "response": "A"})");
  CHECK(show_ids(first.at(0)) == "BQ:AE");
  CHECK(show_labels(first.at(0)) == "...AE");
  CHECK(show_ids(read_text("a.jsonl", R"({"prompt": "Q:", "completion": "A"})").at(0)) == "BQ:AE");
}

TEST_CASE("rows are taken as given and need no tokenizer", "[data]") {
  const TempDir dir;
  write_file(dir / "rows.jsonl", "{\"input_ids\": [1, 5, 299], \"labels\": [-100, -100, 299]}\n");
  const auto no_codec = []() -> TextCodec { throw UserError("no tokenizer"); };
  for (const auto objective : {Objective::kInstruct, Objective::kLm}) {
    const auto examples = read_examples({dir / "rows.jsonl"}, objective, kVocab, no_codec);
    CHECK(examples.at(0).ids == std::vector<int32_t>{1, 5, 299});
    CHECK(examples.at(0).labels == std::vector<int32_t>{-100, -100, 299});
    CHECK(examples.all_rows);
  }
}

TEST_CASE("text is cut into documents at <|endoftext|> lines, the loss falls on all but BOS",
          "[data]") {
  const auto examples =
      read_text("t.txt", "\n  one\ntwo \r\n<|endoftext|>\r\n\n<|endoftext|>\nthree\n<|endoftext|>",
                Objective::kLm);
  REQUIRE(examples.size() == 2);
  CHECK(show_ids(examples.at(0)) == "Bone\ntwoE");
  CHECK(show_labels(examples.at(0)) == ".one\ntwoE");
  CHECK(examples.at(0).line == 2);
  CHECK(show_ids(examples.at(1)) == "BthreeE");
  CHECK(examples.at(1).line == 7);
  CHECK(show_ids(read_text("t.txt", "{a", Objective::kLm).at(0)) ==
        "B{aE");  // .txt is text, whatever it begins with
  CHECK(show_ids(read_text("t.jsonl", R"({"text": "x"})", Objective::kLm).at(0)) == "BxE");
}

TEST_CASE("several files are joined, each in a form of its own", "[data]") {
  const TempDir dir;
  write_file(dir / "a.jsonl", kPair);
  write_file(dir / "b.jsonl", R"({"input_ids": [1, 3], "labels": [1, 3]})");
  const auto examples =
      read_examples({dir / "a.jsonl", dir / "b.jsonl"}, Objective::kInstruct, kVocab, byte_codec);
  REQUIRE(examples.size() == 2);
  CHECK_FALSE(examples.all_rows);
  CHECK(examples.where(1) == (dir / "b.jsonl").string() + " line 1");
}

TEST_CASE("every error of a data file names the file, the line and the mend", "[data]") {
  const std::string pair = std::string(kPair) + "\n";
  check_contains(error_of("a.jsonl", pair + "{\"instruction\": \"x\", \n"),
                 "a.jsonl line 2: broken JSON");
  check_contains(error_of("a.jsonl", pair + pair + "[1]\n"),
                 "a.jsonl line 3: a JSON object {...} is expected");
  check_contains(error_of("a.jsonl", R"({"instruction": "x"})"),
                 "a.jsonl line 1: 'output' is missing");
  check_contains(error_of("a.jsonl", pair + R"({"output": "x"})"),
                 "a.jsonl line 2: 'instruction' is missing");
  check_contains(error_of("a.jsonl", pair + R"({"instruction": 3, "output": "x"})"),
                 "a.jsonl line 2: 'instruction' must be a string");
  check_contains(error_of("a.jsonl", R"({"instruction": "x", "output": ["x"]})"),
                 "a.jsonl line 1: 'output' must be a string");
  check_contains(error_of("a.jsonl", R"({"prompt": "x"})"),
                 "a.jsonl line 1: 'response' is missing");
  check_contains(error_of("a.jsonl", pair + R"({"instruction": "x", "output": " \n"})"),
                 "a.jsonl line 2: no response: 'output' is empty; remove the record");
  check_contains(error_of("a.jsonl", pair + R"({"prompt": "x", "response": "y"})"),
                 "a.jsonl line 2: mixed forms: the file began with Alpaca records, this is one of "
                 "the prompt pairs");
  check_contains(
      error_of("a.jsonl", R"({"dialogue": [], "id": "x"})"),
      "a.jsonl line 1: no known form: its keys are 'dialogue', 'id'; known are instruction");
  check_contains(error_of("a.jsonl", pair + "{\"instruction\": \"\xFF\", \"output\": \"y\"}"),
                 "a.jsonl line 2: not UTF-8");
  check_contains(error_of("a.jsonl", ""), "a.jsonl: the file is empty");
  check_contains(error_of("a.jsonl", " \n\n"), "a.jsonl: the file is empty");
  check_contains(error_of("a.json", "[]"), "a.json: the file holds no example");
  check_contains(error_of("a.txt", "\n<|endoftext|>\n", Objective::kLm),
                 "a.txt: the file holds no example");
}

TEST_CASE("a broken JSON array names the line", "[data]") {
  const std::string pair = kPair;
  check_contains(error_of("a.json", "[\n" + pair + ",\n" + pair),
                 "a.json line 3: broken JSON: the file ends before its ']'");
  check_contains(error_of("a.json", "[\n" + pair + "\n" + pair + "]"),
                 "a.json line 3: broken JSON: a comma or ']' is missing");
  check_contains(error_of("a.json", "[" + pair + ",\n]"),
                 "a.json line 2: broken JSON: a comma before the ']'");
  check_contains(error_of("a.json", "[" + pair + "]\nx"),
                 "a.json line 2: text after the end of the JSON array");
  check_contains(error_of("a.json", "[\n{\"instruction\": \"x"),
                 "a.json line 2: broken JSON: the element that starts here is not closed");
  check_contains(error_of("a.json", "[\n3]"), "a.json line 2: broken JSON: an array of objects");
  check_contains(error_of("a.json", "[\n{\"instruction\" \"x\"}]"), "a.json line 2: broken JSON");
  check_contains(
      error_of("a.json", "["),
      "a.json line 1: broken JSON: an array of objects {...} is expected; the file ends");
}

TEST_CASE("every error of a row names the line and the entry", "[data]") {
  const auto row = [](const std::string& ids, const std::string& labels) {
    return error_of("r.jsonl", "\n{\"input_ids\": " + ids + ", \"labels\": " + labels + "}");
  };
  check_contains(row("[1, 300]", "[1, 2]"),
                 "r.jsonl line 2: 'input_ids'[1] is 300, outside the model's vocabulary of 300");
  check_contains(row("[1, -1]", "[1, 2]"), "'input_ids'[1] is -1");
  check_contains(row("[1, 2]", "[1, 400]"), "'labels'[1] is 400");
  check_contains(row("[1, 2]", "[1]"), "'input_ids' has 2 entries, 'labels' has 1");
  check_contains(row("[1, 2]", "[2, -100]"),
                 "no response: no label after the first is other than -100");
  check_contains(row("[]", "[]"), "no response");
  check_contains(row("[1, 2.5]", "[1, 2]"), "must be a whole number");
  check_contains(row("[1, 99999999999999999999]", "[1, 2]"), "input_ids");
  check_contains(row("7", "[1, 2]"), "'input_ids' must be a list");
  check_contains(error_of("r.jsonl", R"({"input_ids": [1, 2]})"),
                 "r.jsonl line 1: 'labels' is missing");
}

TEST_CASE("several threads make the same examples in the same order, and tell the first fault",
          "[data]") {
  const TempDir dir;
  std::string text;
  for (int line = 1; line <= 30000; ++line) {  // several pieces of work
    text +=
        R"({"prompt": "Question )" + std::to_string(line) + R"(", "response": "Answer"})" + "\n";
  }
  REQUIRE(text.size() > size_t{5} << 18);
  write_file(dir / "a.jsonl", text);
  write_file(dir / "b.jsonl", std::string(kPair) + "\n");
  const std::vector<Source> sources = {{dir / "a.jsonl"}, {dir / "b.jsonl"}, {dir / "a.jsonl"}};
  ReadSettings settings;
  const Examples one = read_examples(sources, settings, kVocab, byte_codec);
  settings.threads = 3;
  const Examples several = read_examples(sources, settings, kVocab, byte_codec);
  REQUIRE(one.size() == 60001);
  REQUIRE(several.size() == one.size());
  for (int64_t index = 0; index < one.size(); ++index) {
    const Example a = one.at(index), b = several.at(index);
    REQUIRE((a.ids == b.ids && a.labels == b.labels && a.line == b.line && a.file == b.file));
  }
  settings.most_per_file = 20000;
  CHECK(read_examples(sources, settings, kVocab, byte_codec).size() == 40001);
  settings.most_per_file = 0;
  // A fault in the middle, and behind it one that the reader itself meets sooner.
  write_file(dir / "a.jsonl", text + "{\"prompt\": 1, \"response\": \"x\"}\n" + kPair + "\n{\n");
  check_contains(user_error_of([&] { read_examples(sources, settings, kVocab, byte_codec); }),
                 "a.jsonl line 30001: 'prompt' must be a string");
  write_file(dir / "a.jsonl", text + std::string((size_t{65} << 20), ' ') + "\n");
  check_contains(user_error_of([&] { read_examples(sources, settings, kVocab, byte_codec); }),
                 "a.jsonl line 30001: the record that starts here is longer");
}

TEST_CASE("a form that does not fit the objective is refused", "[data]") {
  check_contains(error_of("a.jsonl", kPair, Objective::kLm),
                 "a.jsonl line 1: Alpaca records are for --objective instruct");
  check_contains(error_of("a.txt", "hello"),
                 "a.txt line 1: plain text has no responses to learn; use --objective lm");
  check_contains(error_of("a.jsonl", R"({"text": "x"})"), "use --objective lm");
  check_contains(error_of("a.jsonl", R"({"text": " "})", Objective::kLm),
                 "a.jsonl line 1: the document is empty");
  check_contains(error_of("a.txt", "ok\n<|endoftext|>\n\xC3(", Objective::kLm),
                 "a.txt line 3: the document that starts here is not valid UTF-8");
}

TEST_CASE("files that are no files are refused", "[data]") {
  const TempDir dir;
  CHECK_THROWS_WITH(read(dir / "none.jsonl"),
                    (dir / "none.jsonl").string() + ": no such file; give a data file to --data");
  CHECK_THROWS_WITH(read(dir.path()),
                    dir.path().string() + " is a folder; give its files to --data");
}

TEST_CASE("a line beyond the limit is refused before it fills the memory", "[data]") {
  const TempDir dir;
  {
    std::ofstream out(dir / "long.jsonl", std::ios::binary);
    out << kPair << "\n{\"instruction\": \"";
    const std::string block(1 << 20, 'x');
    for (int i = 0; i < 100; ++i) {
      out << block;
    }
  }
  try {
    read(dir / "long.jsonl");
    FAIL("no error");
  } catch (const UserError& error) {
    check_contains(error.what(),
                   "line 2: the record that starts here is longer than 64 MiB; split it");
  }
}

TEST_CASE("a tokenizer without EOS is refused, and one beyond the model too", "[data]") {
  const TempDir dir;
  write_file(dir / "a.jsonl", kPair);
  const auto no_bos = [] { return TextCodec{byte_codec().encode, -1, kEos}; };
  const auto no_eos = [] { return TextCodec{byte_codec().encode, kBos, -1}; };
  const auto message = [&](int64_t vocab, const std::function<TextCodec()>& codec) {
    try {
      read_examples({dir / "a.jsonl"}, Objective::kInstruct, vocab, codec);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  check_contains(message(kVocab, no_eos), "no EOS within the model's vocabulary of 300; name");
  check_contains(message(1, byte_codec), "no BOS within the model's vocabulary of 1; name");
  CHECK(message(kVocab, no_bos) == "no error");
  const auto examples = read_examples({dir / "a.jsonl"}, Objective::kInstruct, kVocab, no_bos);
  const auto with_bos = read_examples({dir / "a.jsonl"}, Objective::kInstruct, kVocab, byte_codec);
  CHECK("B" + show_ids(examples.at(0)) == show_ids(with_bos.at(0)));
  check_contains(message(100, byte_codec),
                 "line 1: the tokenizer gives id 107, outside the model's vocabulary of 100");
}

TEST_CASE("real files give as many examples as their README says, real stories the reference ids",
          "[data]") {
  MOE_NEED_SHARED_DATA();
  const auto data = moe::test::shared_data();
  CHECK(read(data / "instruct" / "alpaca_2000.jsonl").size() == 2000);
  CHECK(read(data / "instruct" / "alpaca_en_demo.json").size() == 999);
  const auto tokenizer = io::Tokenizer::load(data / "stories260K-hf", 512);
  const auto codec = [&] {
    return TextCodec{[&](std::string_view text) { return tokenizer.encode(text); },
                     tokenizer.bos_id(), tokenizer.eos_id()};
  };
  const auto stories =
      read_examples({data / "text" / "tinystories_v2_train_head.txt"}, Objective::kLm, 512, codec);
  CHECK(stories.size() == 1728);
  const Json reference = read_json(data / "stories260K-hf" / "reference.json");
  auto expected = reference["first_story"]["ids_with_bos"].get<std::vector<int32_t>>();
  expected.push_back(2);
  CHECK(stories.at(0).ids == expected);
}
