#include "core/data/examples.h"

#include <tuple>

#include "core/data/example_set.h"
#include "core/data/records.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/byte_codec.h"
#include "tests/support/data.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

ReadSettings with(Objective objective) {
  ReadSettings settings;
  settings.objective = objective;
  return settings;
}

const ReadSettings kLm = with(Objective::kLm);
const std::string kPair = R"({"instruction": "Say", "input": "", "output": "yes"})";

// Checks the error of reading `text` as a file `name`.
void check_error(const std::string& name, const std::string& text, const std::string& fact,
                 const ReadSettings& settings = {}) {
  CHECK_THAT(error_of_reading(name, text, settings), contains_text(fact));
}

std::string show(std::vector<int32_t> ids, std::vector<int32_t> labels, bool colour) {
  const auto piece = [](int64_t id) {
    return id == 1   ? "<s>"
           : id == 2 ? "</s>"
           : id == 9 ? "\033[2J"
                     : "\u2581w" + std::to_string(id);
  };
  const Example example{std::move(ids), std::move(labels), 0, 3};
  return show_example(example, "a.jsonl line 3", piece, colour);
}

}  // namespace

TEST_CASE("An Alpaca record becomes BOS prompt response EOS with loss on the response", "[data]") {
  const auto examples = read_bytes(
      "a.jsonl", kPair + "\n\n" +
                     R"({"instruction": "Add", "input": "1+1", "output": "2", "id": 7})" + "\n" +
                     R"({"instruction": "Hi", "output": "Ho"})");
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

TEST_CASE("The records of a JSON array have the lines where they begin", "[data]") {
  const auto examples =
      read_bytes("a.json",
                 "\xEF\xBB\xBF \n[\n  {\n \"instruction\": \"a } \\\" { ]\",\n \"input\": null,\n "
                 "\"output\": \"b\" }\n, {\"instruction\":\"c\",\"output\":\"d\"} ]\n\n");
  REQUIRE(examples.size() == 2);
  CHECK(show_ids(examples.at(0)) == "Ba } \" { ]\nbE");
  CHECK(examples.at(0).line == 3);
  CHECK(show_ids(examples.at(1)) == "Bc\ndE");
  CHECK(examples.at(1).line == 7);
}

TEST_CASE("Pre-tokenized rows are used unchanged, without a tokenizer", "[data]") {
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

TEST_CASE("Text is split at <|endoftext|> lines, with loss on all tokens but BOS", "[data]") {
  const auto examples = read_bytes(
      "t.txt", "\n  one\ntwo \r\n<|endoftext|>\r\n\n<|endoftext|>\nthree\n<|endoftext|>", kLm);
  REQUIRE(examples.size() == 2);
  CHECK(show_ids(examples.at(0)) == "Bone\ntwoE");
  CHECK(show_labels(examples.at(0)) == ".one\ntwoE");
  CHECK(examples.at(0).line == 2);
  CHECK(show_ids(examples.at(1)) == "BthreeE");
  CHECK(examples.at(1).line == 7);
  CHECK(show_ids(read_bytes("t.txt", "{a", kLm).at(0)) == "B{aE");  // .txt is never JSON
}

TEST_CASE("A text that begins with BOS or ends with EOS gets no second one", "[data]") {
  const TempDir dir;
  write_file(dir / "a.jsonl", "{\"text\": \"Bon, aE\"}\n{\"text\": \"E a\"}");
  write_file(dir / "c.jsonl", "{\"text\": \"BE\"}");
  write_file(dir / "b.jsonl", R"({"prompt": "a", "response": "bE"})");
  for (const bool are_tokens : {true, false}) {  // false: BOS and EOS are read as characters
    const auto codec = [&] {
      const auto marked = [](std::string_view text) {
        std::vector<int64_t> ids = byte_codec().encode(text);
        std::ranges::replace(ids, 10 + 'B', kBos);
        std::ranges::replace(ids, 10 + 'E', kEos);
        return ids;
      };
      TextCodec codec{byte_codec().encode, kBos, kEos, false, "B", "E"};
      codec.encode = are_tokens ? marked : codec.encode;
      codec.encode_template = [=](const FilledText& filled) { return marked(filled.text); };
      return codec;
    };
    const auto read = read_examples({{dir / "a.jsonl"}}, kLm, kVocab, codec);
    CHECK(show_labels(read.at(0)) + show_ids(read.at(1)) == ".on, aEBE aE");
    CHECK_THAT(read.forms.at(0), contains_text("BOS, given no second one: 1; texts that end"));
    CHECK_THAT(user_error_of([&] { read_examples({{dir / "c.jsonl"}}, kLm, kVocab, codec); }),
               contains_text("line 1: the document is empty"));
    CHECK_THAT(read_examples({{dir / "b.jsonl"}}, {}, kVocab, codec).forms.at(0),
               contains_text("turns with BOS or EOS in a field, read as characters: 1"));
  }
}

TEST_CASE("Files of different forms are joined", "[data]") {
  const TempDir dir;
  write_file(dir / "a.jsonl", kPair);
  write_file(dir / "b.jsonl", R"({"input_ids": [1, 3], "labels": [1, 3]})");
  const auto examples =
      read_examples({dir / "a.jsonl", dir / "b.jsonl"}, Objective::kInstruct, kVocab, byte_codec);
  REQUIRE(examples.size() == 2);
  CHECK_FALSE(examples.all_rows);
  CHECK(examples.where(1) == (dir / "b.jsonl").string() + " line 1");
}

TEST_CASE("An invalid record is refused with file, line and field", "[data]") {
  const std::string pair = kPair + "\n";
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {pair + "{\"instruction\": \"x\", \n", "a.jsonl line 2: broken JSON"},
           {pair + pair + "[1]\n", "a.jsonl line 3: a JSON object {...} is expected"},
           {R"({"instruction": "x"})", "a.jsonl line 1: 'output' is missing"},
           {pair + R"({"output": "x"})", "a.jsonl line 2: 'instruction' is missing"},
           {pair + R"({"instruction": 3, "output": "x"})",
            "line 2: 'instruction' must be a string"},
           {R"({"instruction": "x", "output": ["x"]})", "line 1: 'output' must be a string"},
           {R"({"prompt": "x"})", "a.jsonl line 1: 'response' is missing"},
           {pair + R"({"instruction": "x", "output": " \n"})", "line 2: no response: 'output' is"},
           {pair + R"({"prompt": "x", "response": "y"})",
            "a.jsonl line 2: mixed forms: the file began with Alpaca records, this is one of the "
            "prompt pairs"},
           {R"({"dialogue": [], "id": "x"})",
            "line 1: no known form: its keys are 'dialogue', 'id'"},
           {pair + "{\"instruction\": \"\xFF\", \"output\": \"y\"}", "a.jsonl line 2: not UTF-8"},
           {"", "a.jsonl: the file is empty"},
           {" \n\n", "a.jsonl: the file is empty"},
           {R"({"text": "x"})", "use --objective lm"}}) {
    check_error("a.jsonl", text, fact);
  }
  check_error("a.json", "[]", "a.json: the file holds no example");
  check_error("a.txt", "\n<|endoftext|>\n", "a.txt: the file holds no example", kLm);
  check_error("a.txt", "hello", "a.txt line 1: plain text has no responses to learn");
  check_error("a.jsonl", kPair, "line 1: Alpaca records are for --objective instruct", kLm);
  check_error("a.jsonl", R"({"text": " "})", "a.jsonl line 1: the document is empty", kLm);
  check_error("a.txt", "ok\n<|endoftext|>\n\xC3(", "a.txt line 3: not UTF-8 at byte 0 (0xC3)", kLm);
}

TEST_CASE("A broken JSON array is refused with its line", "[data]") {
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {"[\n" + kPair + ",\n" + kPair, "line 3: broken JSON: the file ends before its ']'"},
           {"[\n" + kPair + "\n" + kPair + "]", "line 3: broken JSON: a comma or ']' is missing"},
           {"[" + kPair + ",\n]", "line 2: broken JSON: a comma before the ']'"},
           {"[" + kPair + "]\nx", "line 2: text after the end of the JSON array"},
           {"[\n{\"instruction\": \"x", "line 2: broken JSON: the element that starts here"},
           {"[\n3]", "line 2: broken JSON: an array of objects"},
           {"[\n{\"instruction\" \"x\"}]", "line 2: broken JSON"},
           {"[", "line 1: broken JSON: an array of objects {...} is expected; the file ends"}}) {
    check_error("a.json", text, "a.json " + fact);
  }
}

TEST_CASE("JSON objects of several lines, in \"data\", and tables are read", "[data]") {
  const std::string row = R"({"instruction": "a", "output": "b"})";
  const std::string wide = "{\n  \"instruction\": \"a\",\n  \"output\": \"b\"\n}\n";
  for (const auto& [name, text, line] : std::vector<std::tuple<std::string, std::string, int>>{
           {"a.json", wide + "\n" + wide, 6},
           {"a.json", "{\"data\": [" + row + ",\n" + row + "]}", 2},
           {"a.json", "{\n\"data\": [\n" + row + "," + row + "], \"x\": [{}]}\n", 3},
           {"a.csv", "instruction,output\r\na,b\r\n\r\na,b\r\n", 4},
           {"a.csv", "output,instruction\n\"b\",\"a\"\nb,a", 3},
           {"a.tsv", "instruction\toutput\na\tb\na\tb\n", 3},
           {"a.tsv", "\tinstruction\toutput\n0\ta\tb\n1\ta\tb\n", 3}}) {
    INFO(text);
    const auto examples = read_bytes(name, text);
    REQUIRE(examples.size() == 2);
    CHECK(show_ids(examples.at(1)) == "Ba\nbE");
    CHECK(examples.at(1).line == line);
  }
  CHECK(show_ids(read_bytes("a.csv", "prompt,response\n\"a,\"\"\nb\",c\n").at(0)) == "Ba,\"\nbcE");
  check_error("a.csv", "prompt,response\na\n", "a.csv line 2: 1 fields, but the header has 2");
  check_error("a.csv", "prompt,response\n\"a,b\n", "a.csv line 2: a quoted field of this row");
  check_error("a.csv", "prompt,response\n\"a\"x,b\n", "a.csv line 2: text after a closing quote");
  check_error("a.csv", "prompt,prompt\na,b\n", "two columns are named 'prompt'");
  check_error("a.json", wide + "x", "a.json line 5: broken JSON");
  check_error("a.json", "{\"data\": [" + row + "]", "a.json line 1: broken JSON");
  // A line that is cut short is an error of that line.
  check_error("a.jsonl", "{\"prompt\": \"a\",\n" + row + "\n", "a.jsonl line 1: broken JSON");
}

TEST_CASE("All bad records are counted; --bad-records skip leaves them out", "[data]") {
  std::string text = "{\"instruction\": \"x\"}\n" + kPair + "\n";
  for (int i = 0; i < 3000; ++i) {
    text += i % 500 == 7 ? "{broken\n" : kPair + "\n";
  }
  ReadSettings settings;
  std::vector<std::string> skipped;
  settings.on_bad = [&](const BadRecord& bad) { skipped.push_back(bad.record.text); };
  for (const int threads : {1, 3}) {
    settings.threads = threads;
    settings.bad_records = BadRecords::kError;
    const std::string error = error_of_reading("a.jsonl", text, settings);
    CHECK_THAT(error, contains_text("7 records cannot be used: a.jsonl line 1: 'output' is"));
    CHECK_THAT(error,
               contains_text("a.jsonl line 1510: broken JSON") && !contains_text("line 2010"));
    settings.bad_records = BadRecords::kSkip;
    skipped.clear();
    const auto examples = read_bytes("a.jsonl", text, settings);
    CHECK(examples.size() == 2995);
    CHECK(skipped.size() == 7);
    CHECK(skipped.back() == "{broken");
    CHECK(examples.forms.at(0) == "Alpaca records; records skipped: 7");
    CHECK_THAT(error_of_reading("a.jsonl", "{broken\n", settings),
               contains_text("a.jsonl: no record can be used; a.jsonl line 1: broken JSON"));
  }
}

TEST_CASE("--overlong drops or truncates long examples", "[data]") {
  const std::string text = R"({"prompt": "a", "response": "bc"}
{"prompt": "a", "response": "bcd"}
{"prompt": "abcd", "response": "e"})";
  ReadSettings settings;
  settings.max_tokens = 5;
  CHECK(read_bytes("a.jsonl", text, settings).size() == 3);
  settings.overlong = Overlong::kDrop;
  const Examples dropped = read_bytes("a.jsonl", text, settings);
  CHECK(dropped.size() == 1);
  CHECK(dropped.forms.at(0) == "prompt pairs; examples of more than 5 tokens, dropped: 2");
  settings.overlong = Overlong::kTruncate;  // the third example has no target in 5 tokens
  const Examples truncated = read_bytes("a.jsonl", text, settings);
  REQUIRE(truncated.size() == 2);
  CHECK(show_ids(truncated.at(1)) == "Babcd");
  settings.max_tokens = 2;
  CHECK_THAT(error_of_reading("a.jsonl", text, settings), contains_text("all examples are too"));
}

TEST_CASE("An invalid row is refused with its line and entry", "[data]") {
  struct Case {
    std::string ids, labels, fact;
  };
  for (const auto& [ids, labels, fact] : std::vector<Case>{
           {"[1, 300]", "[1, 2]", "'input_ids'[1] is 300, outside the model's vocabulary of 300"},
           {"[1, -1]", "[1, 2]", "'input_ids'[1] is -1"},
           {"[1, 2]", "[1, 400]", "'labels'[1] is 400"},
           {"[1, 2]", "[1]", "'input_ids' has 2 entries, 'labels' has 1"},
           {"[1, 2]", "[2, -100]", "no response: no label after the first is other than -100"},
           {"[]", "[]", "no response"},
           {"[1, 2.5]", "[1, 2]", "must be a whole number"},
           {"[1, 99999999999999999999]", "[1, 2]", "input_ids"},
           {"7", "[1, 2]", "'input_ids' must be a list"}}) {
    CHECK_THAT(
        error_of_reading("r.jsonl", "\n{\"input_ids\": " + ids + ", \"labels\": " + labels + "}"),
        contains_text("r.jsonl line 2: ") && contains_text(fact));
  }
  check_error("r.jsonl", R"({"input_ids": [1, 2]})", "r.jsonl line 1: 'labels' is missing");
}

TEST_CASE("Several threads give the same examples, order and first error as one", "[data]") {
  const TempDir dir;
  std::string text;
  for (int line = 1; line <= 30000; ++line) {  // several pieces of work
    text += fmt::format("{{\"prompt\": \"Question {}\", \"response\": \"Answer\"}}\n", line);
  }
  REQUIRE(text.size() > size_t{5} << 18);
  write_file(dir / "a.jsonl", text);
  write_file(dir / "b.jsonl", kPair + "\n");
  const std::vector<Source> sources = {{dir / "a.jsonl"}, {dir / "b.jsonl"}, {dir / "a.jsonl"}};
  ReadSettings settings;
  const auto read = [&] { return read_examples(sources, settings, kVocab, byte_codec); };
  const Examples one = read();
  settings.threads = 3;
  const Examples several = read();
  REQUIRE(one.size() == 60001);
  CHECK(same_examples(several, one));
  settings.max_per_file = 20000;
  CHECK(read().size() == 40001);
  settings.max_per_file = 0;
  // The second error is one that the reader itself finds earlier.
  write_file(dir / "a.jsonl", text + "{\"prompt\": 1, \"response\": \"x\"}\n" + kPair + "\n{\n");
  CHECK_THAT(user_error_of(read), contains_text("a.jsonl line 30001: 'prompt' must be a string"));
}

TEST_CASE("A missing file, a folder and a line of more than 64 MiB are refused", "[data]") {
  const TempDir dir;
  {
    std::ofstream out(dir / "long.jsonl", std::ios::binary);
    out << kPair << "\n{\"instruction\": \"";
    const std::string block(1 << 20, 'x');
    for (int i = 0; i < 66; ++i) {
      out << block;
    }
  }
  for (const auto& [file, fact] :
       {std::pair(dir / "none.jsonl", "none.jsonl: no such file"),
        std::pair(dir.path(), " is a folder"),
        std::pair(dir / "long.jsonl",
                  "line 2: the record that starts here is longer than 64 MiB")}) {
    CHECK_THAT(user_error_of([&path = file] {
                 read_examples({path}, Objective::kInstruct, kVocab, byte_codec);
               }),
               contains_text(fact));
  }
}

TEST_CASE("A tokenizer without EOS, or with ids beyond the model, is refused", "[data]") {
  const TempDir dir;
  write_file(dir / "a.jsonl", kPair);
  const auto codec = [](int64_t bos, int64_t eos) {
    return [=] { return TextCodec{byte_codec().encode, bos, eos}; };
  };
  const auto read = [&](int64_t vocab, const std::function<TextCodec()>& make_codec) {
    return read_examples({dir / "a.jsonl"}, Objective::kInstruct, vocab, make_codec);
  };
  struct Case {
    int64_t vocab, eos;
    const char* fact;
  };
  for (const auto& [vocab, eos, fact] :
       {Case{kVocab, -1, "no EOS within the model's vocabulary of 300"},
        {1, kEos, "no BOS within the model's vocabulary of 1"},
        {100, kEos, "line 1: the tokenizer gives id 107, outside the model's vocabulary of 100"}}) {
    CHECK_THAT(user_error_of([&, vocab = vocab, eos = eos] { read(vocab, codec(kBos, eos)); }),
               contains_text(fact));
  }
  CHECK("B" + show_ids(read(kVocab, codec(-1, kEos)).at(0)) ==
        show_ids(read(kVocab, byte_codec).at(0)));
}

TEST_CASE("An example is shown with its loss in brackets or in green", "[data]") {
  const std::vector<int32_t> ids = {1, 5, 6, 2, 7, 8, 2}, labels = {-100, -100, 6, 2, -100, 8, 2};
  const std::string head = "a.jsonl line 3: 7 tokens, 4 with loss\n<s> ▁w5 ";
  CHECK(show(ids, labels, false) == head + "⟦▁w6 </s>⟧ ▁w7 ⟦▁w8 </s>⟧\n");
  CHECK(show(ids, labels, true) == head + "\033[32m▁w6 </s>\033[0m ▁w7 \033[32m▁w8 </s>\033[0m\n");
  // The first token has no loss, other labels follow an arrow, and control characters are replaced.
  CHECK(show({5, 6, 9}, {5, 7, 9}, false) ==
        "a.jsonl line 3: 3 tokens, 2 with loss\n▁w5 ⟦▁w6→▁w7 ?[2J⟧\n");
}

TEST_CASE("The weight of a source follows its last colon", "[data]") {
  const TempDir dir;
  write_file(dir / "a:0.5", "x");
  const std::string path = dir / "a:0.5";
  struct Case {
    std::string word, file;
    double weight;
  };
  for (const auto& [word, file, weight] :
       std::vector<Case>{{"dir/b.jsonl", "dir/b.jsonl", 0},
                         {"a.jsonl:0.7", "a.jsonl", 0.7},
                         {"b:c.jsonl:3e-1", "b:c.jsonl", 0.3},
                         {"c:2", "c", 2},
                         {"s3:bucket", "s3:bucket", 0},  // no number
                         {path, path, 0},                // a file of that name exists
                         {path + ":0.25", path, 0.25}}) {
    CAPTURE(word);
    const Source source = parse_sources({word}).at(0);
    CHECK(source.file == file);
    CHECK(source.weight == weight);
  }
  CHECK(parse_sources({"a.jsonl", "dir/b.jsonl"}).size() == 2);
}

TEST_CASE("Invalid weights, and weights of some sources only, are refused", "[data]") {
  const auto error = [](const std::vector<std::filesystem::path>& words) {
    return user_error_of([&] { parse_sources(words); });
  };
  for (const char* weight : {"0", "-1", "nan", "inf", "1e999"}) {
    const std::string word = std::string("a.jsonl:") + weight;
    CHECK_THAT(error({word}), contains_text("--data " + word + ": the weight after the colon"));
  }
  CHECK_THAT(error({"a.jsonl:1", "b.jsonl"}), contains_text("--data b.jsonl: has no weight"));
  CHECK_THAT(error({"a.jsonl", "b.jsonl:1"}), contains_text("--data a.jsonl: has no weight"));
}
