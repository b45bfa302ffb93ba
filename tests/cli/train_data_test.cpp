// Training data of moe train: formats, weights, templates, the token cache, --show-samples, and
// invalid files.

#include <sys/resource.h>

#include <fstream>

#include "core/base/json.h"
#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

namespace {

// Returns JSON lines of `count` rows of four tokens, the second of which is `token`.
std::string rows(int count, int token) {
  std::string text;
  for (int row = 0; row < count; ++row) {
    const std::vector<int> ids = {5, token, 7, 8 + row % 3}, labels = {-100, -100, 7, 8 + row % 3};
    text += OrderedJson{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
  }
  return text;
}

struct Fixture {
  TempDir dir;

  Fixture() {
    write_tiny_checkpoint(dir / "dense");
    write_file(dir / "a.jsonl", rows(12, 6));
    write_file(dir / "b.jsonl", rows(4, 9));
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  Args training(const Args& flags) const {
    return joined({"train", path("dense"), "--threads", "1"}, flags);
  }
};

const char* kPair = R"({"instruction": "Say", "output": "yes"})";

RunResult train(const TempDir& dir, const std::string& file, const std::string& objective) {
  return run_moe({"train", tiny("model"), "-o", dir / "run", "--data", dir / file, "--objective",
                  objective, "--steps", "1", "--micro-batch", "1", "--seq-len", "16", "--threads",
                  "1"});
}

struct Fault {
  std::string name, text, message;
  std::string objective = "instruct";
};

// Returns the maximum resident memory of all child processes so far.
int64_t peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace

TEST_CASE("moe train prints format and share of each file, and settings.toml repeats the run") {
  const Fixture fixture;
  const auto result =
      succeed(fixture.training({"-o", fixture.path("run"), "--data", fixture.path("a.jsonl") + ":1",
                                fixture.path("b.jsonl") + ":3", "--steps", "3", "--loss-on", "last",
                                "--template", "U: {instruction}\\nA: {response}"}));
  check_contains(
      result.err,
      {fixture.path("a.jsonl") + ": pre-tokenised rows; 12 examples, 25 % of those drawn\n",
       fixture.path("b.jsonl") + ": pre-tokenised rows; 4 examples, 75 % of those drawn\n"});
  check_contains(read_file(fixture.dir / "run/settings.toml"),
                 {"b.jsonl:3\"]\n", "template = \"U: {instruction}\\\\nA: {response}\"\n",
                  "loss-on = \"last\"\n"});
  succeed({"train", "--config", fixture.path("run/settings.toml"), "-o", fixture.path("again"),
           "--quiet"});
  CHECK(read_file(fixture.dir / "again/final/model.safetensors") ==
        read_file(fixture.dir / "run/final/model.safetensors"));
}

TEST_CASE("--cache stores tokens in a folder and does not change the trained model") {
  const Fixture fixture;
  const std::string folder = fixture.path("cache");
  const auto check = [&](const std::string& run, const std::string& cache,
                         const std::string& fact) {
    check_contains(
        succeed(fixture.training({"-o", fixture.path(run), "--data", fixture.path("a.jsonl"),
                                  fixture.path("b.jsonl"), "--steps", "2", "--cache", cache}))
            .err,
        {fact});
    return read_file(fixture.dir / run / "final/model.safetensors");
  };
  const std::string weights = check("first", folder, "\ntokens cached in " + folder + "/");
  CHECK((check("second", folder, "\ntokens from the cache " + folder + "/") == weights));
  CHECK((check("third", "off", "\ntokens in a temporary file in /") == weights));
  check_contains(read_file(fixture.dir / "first/settings.toml"), {"cache = \"" + folder + "\"\n"});
  check("first", "off", "already complete");  // resuming does not compare --cache
  check_refused(fixture.training({"-o", fixture.path("bad"), "--data", fixture.path("a.jsonl"),
                                  "--cache", fixture.path("b.jsonl")}),
                "--cache " + fixture.path("b.jsonl") + ": cannot be created");
  CHECK_FALSE(fs::exists(fixture.dir / "bad"));
}

TEST_CASE("--show-samples prints examples of each file with the tokens with loss marked") {
  const Fixture fixture;
  const auto result = succeed(fixture.training(
      {"--data", fixture.path("a.jsonl"), fixture.path("b.jsonl"), "--show-samples", "3"}));
  CHECK(result.err.empty());
  const std::string a = fixture.path("a.jsonl"), b = fixture.path("b.jsonl");
  CHECK(result.out == a + ": pre-tokenised rows\n" + b + ": pre-tokenised rows\n\n" + a +
                          " line 1: 4 tokens, 2 with loss\n5 6 ⟦7 8⟧\n\n" + b +
                          " line 1: 4 tokens, 2 with loss\n5 9 ⟦7 8⟧\n\n" + a +
                          " line 2: 4 tokens, 2 with loss\n5 6 ⟦7 9⟧\n");
  CHECK(std::distance(fs::directory_iterator(fixture.dir.path()), {}) == 3);
  fs::remove(fixture.dir / "dense/model.safetensors");  // not needed
  CHECK(succeed({"tokenize", fixture.path("dense"), "--chat", b})
            .out.starts_with("\n" + b + " line 1: 4 tokens, 2 with loss\n5 9 ⟦7 8⟧\n\n" + b));
}

TEST_CASE("--add-tokens adds the marks of a template, resumes, and stays in the outputs") {
  const TempDir dir;
  const Args chatml = {"train",     tiny("model"), "--data",         tiny("instruct.jsonl"),
                       "-o",        dir / "run",   "--template",     "chatml",
                       "--steps",   "2",           "--cache",        "off",
                       "--threads", "1",           "--save-every=1", "--global-batch=16"};
  check_refused(joined(chatml, {"--quiet"}), "moe train adds it with --add-tokens auto");
  const Args training = joined(chatml, {"--add-tokens", "auto"});
  check_contains(succeed(training).err, {"<|im_end|> 1025; vocabulary 1024 -> 1026"});
  const std::string weights = read_file(dir / "run/final/model.safetensors");
  CHECK(read_json(dir / "run/checkpoints/step-1/added_tokens.json")["<|im_end|>"] == 1025);
  fs::remove_all(dir / "run/final");
  fs::remove_all(dir / "run/checkpoints/step-2");
  check_refused(joined(chatml, {"--quiet", "--add-tokens", "<|im_end|>,<|im_start|>"}),
                "add-tokens was");
  succeed(joined(training, {"--ranks", "2"}));
  CHECK((read_file(dir / "run/final/model.safetensors") == weights));
}

TEST_CASE("moe train refuses invalid flags of its data by name") {
  const Fixture fixture;
  const std::string a = fixture.path("a.jsonl"), b = fixture.path("b.jsonl");
  for (const auto& [flags, fact] : std::vector<std::pair<Args, std::string>>{
           {{a, "--format", "alpacca"}, "--format 'alpacca' is unknown, did you mean"},
           {{a, "--format", "alpaca"}, "a.jsonl line 1: 'instruction' is missing"},
           {{a, "--template", "{response}"}, "{instruction} is missing"},
           {{a, "--loss-on", "first"}, "--loss-on"},
           {{a + ":1", b}, "b.jsonl: has no weight, others have"},
           {{a + ":9999", b + ":1"}, "draws none of its examples in an epoch of 16"}}) {
    check_refused(fixture.training(joined({"-o", fixture.path("run"), "--data"}, flags)), fact);
    CHECK_FALSE(fs::exists(fixture.dir / "run"));
  }
  check_refused(fixture.training({"--data", a}), "--out is required");
}

// tests/core/data tests all faults of data files.

TEST_CASE("an invalid data file is refused with exit code 2, naming file and line") {
  const std::string pair = std::string(kPair) + "\n";
  const std::vector<Fault> faults = {
      {"a.jsonl", pair + "\n\n{'instruction': 'x'}\n", "a.jsonl line 4: broken JSON"},
      {"a.json", "[" + pair + "," + pair, "a.json line 3: broken JSON: the file ends before its"},
      {"a.jsonl", pair + R"({"instruction": "\ud800", "output": "y"})",
       "a.jsonl line 2: broken JSON"},
      {"a.jsonl",
       pair + "{\"instruction\": \"" + std::string(5'000'000, 'x') + "\", \"output\": \"y\"}",
       "a.jsonl line 2: 5.0 MB of text that cannot be cut at spaces"},
      {"a.txt", "good\n<|endoftext|>\n\xFF\n", "a.txt line 3: not UTF-8 at byte 0", "lm"},
  };
  for (const auto& fault : faults) {
    const TempDir dir;
    write_file(dir / fault.name, fault.text);
    const RunResult result = train(dir, fault.name, fault.objective);
    INFO(fault.message);
    check_refused(result, fault.message);
    CHECK_FALSE(fs::exists(dir / "run"));
  }
}

TEST_CASE("a byte-order mark, CRLF, blank lines and a missing last newline are accepted") {
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

TEST_CASE("training on a line of 60 MB needs less than 600 MB", "[.][slow]") {
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
  // LibTorch needs 200 MB in addition.
  CHECK(peak_bytes() < int64_t{800} << 20);
}
