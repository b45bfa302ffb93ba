// Every fault of a data file that people meet, through the binary: exit code 2 and one sentence
// that names file and line; and what looks like a fault and is none.

#include <sys/resource.h>

#include <chrono>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

using moe::test::read_file;
using moe::test::run_moe;
using moe::test::RunResult;
using moe::test::TempDir;
using moe::test::write_file;

namespace {

const char* kPair = R"({"instruction": "Say", "output": "yes"})";

RunResult train(const TempDir& dir, const std::string& file, const std::string& objective) {
  const auto model = moe::test::source_folder() / "recipes" / "tiny" / "model";
  return run_moe({"train", model.string(), "-o", (dir / "run").string(), "--data",
                  (dir / file).string(), "--objective", objective, "--steps", "1", "--micro-batch",
                  "1", "--seq-len", "16", "--threads", "1"});
}

struct Fault {
  std::string name, text, message;
  std::string objective = "instruct";
};

void check_contains(const std::string& text, const std::string& part) {
  INFO(text.substr(0, 2000));
  INFO(part);
  CHECK(text.find(part) != std::string::npos);
}

// Largest resident memory of any child so far: cases stand in the order of their peaks.
int64_t peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace

TEST_CASE("every fault of a data file ends with code 2 and names file and line", "[cli]") {
  const std::string pair = std::string(kPair) + "\n";
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"},
 {"role": "assistant", "content": "b"}]})";
  const std::vector<Fault> faults = {
      {"a.jsonl", pair + "{\"instruction\": \"x\", \n", "a.jsonl line 2: broken JSON"},
      {"a.jsonl", pair + "\n\n{'instruction': 'x'}\n", "a.jsonl line 4: broken JSON"},
      {"a.json", "[" + pair + "," + pair, "a.json line 3: broken JSON: the file ends before its"},
      {"a.jsonl", pair + R"({"instruction": ["x"], "output": "y"})",
       "a.jsonl line 2: 'instruction' must be a string, is a list of 1"},
      {"a.jsonl", pair + R"({"instruction": "x", "output": null})",
       "a.jsonl line 2: 'output' must be a string, is null"},
      {"a.jsonl", pair + R"({"instruction": "x"})", "a.jsonl line 2: 'output' is missing"},
      {"a.jsonl", pair + "{\"instruction\": \"\xC3(\", \"output\": \"y\"}", "line 2: not UTF-8"},
      {"a.jsonl", pair + R"({"instruction": "\ud800", "output": "y"})",
       "a.jsonl line 2: broken JSON"},
      {"a.jsonl", pair + R"({"instruction": "x", "output": "\udc00 y"})",
       "a.jsonl line 2: broken JSON"},
      {"a.jsonl",
       pair + "{\"instruction\": \"\xED\xA0\x80\", \"output\": \"y\"}",  // the same in bytes
       "a.jsonl line 2: not UTF-8"},
      {"a.jsonl", pair + R"({"instruction": "x", "output": " \n\t"})",
       "a.jsonl line 2: no response: 'output' is empty"},
      {"a.jsonl", R"({"messages": [{"role": "assistant", "content": "b"}]})",
       "a.jsonl line 1, 'messages'[0]: the conversation starts with the answer"},
      {"a.jsonl",
       R"({"conversations": [{"from": "system", "value": "s"}, {"from": "gpt", "value": "b"}]})",
       "a.jsonl line 1, 'conversations'[1]: the conversation starts with the answer"},
      {"a.json", "[\r\n" + chat + ",\r\n{\"messages\": []}]",
       "a.json line 4: no response: the conversation holds no answer"},
      {"a.txt", "good\n<|endoftext|>\n\xFF\n", "a.txt line 3: the document that starts", "lm"},
      {"a.jsonl", "{\"text\": \"good\"}\n{\"text\": \"\"}\n", "line 2: the document is empty",
       "lm"},
      {"a.jsonl", "\xEF\xBB\xBF", "a.jsonl: the file is empty"},
  };
  for (const auto& fault : faults) {
    const TempDir dir;
    write_file(dir / fault.name, fault.text);
    const RunResult result = train(dir, fault.name, fault.objective);
    INFO(fault.text);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    check_contains(result.err, fault.message);
    CHECK_FALSE(std::filesystem::exists(dir / "run"));
  }
}

TEST_CASE("a byte order mark, Windows newlines, blank lines and a missing last newline are none",
          "[cli]") {
  const std::string pair = kPair, other = R"({"instruction": "Go", "output": "on"})";
  const TempDir plain;
  write_file(plain / "a.jsonl", pair + "\n" + other + "\n");
  REQUIRE(train(plain, "a.jsonl", "instruct").exit_code == 0);
  const std::string weights = read_file(plain / "run/final/model.safetensors");
  for (const std::string& text :
       {"\xEF\xBB\xBF" + pair + "\n" + other + "\n", pair + "\r\n" + other + "\r\n",
        "\n" + pair + "\n\n \t\n" + other + "\n\n", pair + "\n" + other,
        "\xEF\xBB\xBF[\r\n" + pair + ",\r\n" + other + "\r\n]"}) {
    const TempDir dir;
    write_file(dir / "a.jsonl", text);
    const RunResult result = train(dir, "a.jsonl", "instruct");
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK((read_file(dir / "run/final/model.safetensors") == weights));
  }
}

TEST_CASE("megabytes without a space are refused before the tokenizer needs gigabytes", "[cli]") {
  const TempDir dir;
  const std::string long_word(5'000'000, 'x');
  write_file(dir / "a.jsonl",
             std::string(kPair) + "\n{\"instruction\": \"" + long_word + "\", \"output\": \"y\"}");
  const RunResult result = train(dir, "a.jsonl", "instruct");
  CHECK(result.exit_code == 2);
  check_contains(result.err, "a.jsonl line 2: 5.0 MB of text without a place to cut it at");
}

TEST_CASE("a line of 100 MB is refused in a sentence, soon and in bounded memory", "[cli]") {
  for (const bool is_array : {false, true}) {
    const TempDir dir;
    {
      std::ofstream out(dir / "a.jsonl", std::ios::binary);
      out << (is_array ? "[" : "") << kPair << (is_array ? ",\n" : "\n");
      out << R"({"instruction": ")";
      const std::string block(1 << 20, 'x');
      for (int megabyte = 0; megabyte < 100; ++megabyte) {
        out << block;
      }
      out << R"(", "output": "y"})" << (is_array ? "]" : "\n");
    }
    const auto start = std::chrono::steady_clock::now();
    const RunResult result = train(dir, "a.jsonl", "instruct");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    CHECK(result.exit_code == 2);
    check_contains(result.err,
                   "a.jsonl line 2: the record that starts here is longer than 64 MiB; split it");
    // Half a second alone on the machine; reading that grows with the square takes minutes.
    CHECK(seconds.count() < 30);
    // LibTorch alone takes 200 MB; of the record at most a whole buffer and the one it grows from.
    CHECK(peak_bytes() < int64_t{600} << 20);
  }
}

TEST_CASE("a line of 60 MB is trained on in less than ten times its memory", "[cli]") {
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
  // Beside the 200 MB of LibTorch.
  CHECK(peak_bytes() < int64_t{800} << 20);
}
