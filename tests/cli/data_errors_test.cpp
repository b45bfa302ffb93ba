// Faults of data files end moe train with exit code 2 and a message that names file and line.
// tests/core/data has every fault.

#include <sys/resource.h>

#include <fstream>

#include "tests/cli/commands.h"

using namespace moe::test;

namespace {

const char* kPair = R"({"instruction": "Say", "output": "yes"})";

RunResult train(const TempDir& dir, const std::string& file, const std::string& objective) {
  return run_moe({"train", tiny("model"), "-o", (dir / "run").string(), "--data",
                  (dir / file).string(), "--objective", objective, "--steps", "1", "--micro-batch",
                  "1", "--seq-len", "16", "--threads", "1"});
}

struct Fault {
  std::string name, text, message;
  std::string objective = "instruct";
};

// Returns the largest resident memory of any child so far.
int64_t peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace

TEST_CASE("a fault of a data file ends with code 2 and names file and line", "[cli]") {
  const std::string pair = std::string(kPair) + "\n";
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"},
 {"role": "assistant", "content": "b"}]})";
  const std::vector<Fault> faults = {
      {"a.jsonl", pair + "\n\n{'instruction': 'x'}\n", "a.jsonl line 4: broken JSON"},
      {"a.json", "[" + pair + "," + pair, "a.json line 3: broken JSON: the file ends before its"},
      {"a.jsonl", pair + R"({"instruction": "x", "output": null})",
       "a.jsonl line 2: 'output' must be a string, is null"},
      {"a.jsonl", pair + "{\"instruction\": \"\xC3(\", \"output\": \"y\"}", "line 2: not UTF-8"},
      {"a.jsonl", pair + R"({"instruction": "\ud800", "output": "y"})",
       "a.jsonl line 2: broken JSON"},
      {"a.json", "[\r\n" + chat + ",\r\n{\"messages\": []}]",
       "a.json line 4: no response: the conversation holds no answer"},
      {"a.txt", "good\n<|endoftext|>\n\xFF\n", "a.txt line 3: the document that starts", "lm"},
  };
  for (const auto& fault : faults) {
    const TempDir dir;
    write_file(dir / fault.name, fault.text);
    const RunResult result = train(dir, fault.name, fault.objective);
    INFO(fault.text);
    check_refused(result, fault.message);
    CHECK_FALSE(std::filesystem::exists(dir / "run"));
  }
}

TEST_CASE("a byte-order mark, CRLF, blank lines and a missing last newline are accepted", "[cli]") {
  const std::string pair = kPair, other = R"({"instruction": "Go", "output": "on"})";
  const TempDir plain;
  write_file(plain / "a.jsonl", pair + "\n" + other + "\n");
  REQUIRE(train(plain, "a.jsonl", "instruct").exit_code == 0);
  const std::string weights = read_file(plain / "run/final/model.safetensors");
  for (const std::string& text :
       {"\xEF\xBB\xBF" + pair + "\r\n" + other + "\r\n", "\n" + pair + "\n\n \t\n" + other,
        "\xEF\xBB\xBF[\r\n" + pair + ",\r\n" + other + "\r\n]"}) {
    const TempDir dir;
    write_file(dir / "a.jsonl", text);
    const RunResult result = train(dir, "a.jsonl", "instruct");
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK((read_file(dir / "run/final/model.safetensors") == weights));
  }
}

TEST_CASE("a word of megabytes is refused before the tokenizer allocates gigabytes", "[cli]") {
  const TempDir dir;
  const std::string long_word(5'000'000, 'x');
  write_file(dir / "a.jsonl",
             std::string(kPair) + "\n{\"instruction\": \"" + long_word + "\", \"output\": \"y\"}");
  check_refused(train(dir, "a.jsonl", "instruct"),
                "a.jsonl line 2: 5.0 MB of text without a place to cut it at");
}

TEST_CASE("training on a line of 60 MB takes less than 600 MB", "[.][slow][cli]") {
  const TempDir dir;
  {
    std::ofstream out(dir / "a.jsonl", std::ios::binary);
    out << R"({"text": ")";
    std::string block;
    while (block.size() < 1'000'000) {
      block += "one two three and four ";
    }
    for (int megabyte = 0; megabyte < 60; ++megabyte) {
      out << block;
    }
    out << R"("})";
  }
  const RunResult result = train(dir, "a.jsonl", "lm");
  INFO(result.err);
  CHECK(result.exit_code == 0);
  // In addition to the 200 MB of LibTorch.
  CHECK(peak_bytes() < int64_t{800} << 20);
}
