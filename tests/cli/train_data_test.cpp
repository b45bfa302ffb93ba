// Data as people have it, through the binary: what the file was taken for is said, weights and
// templates survive in settings.toml, --show-samples shows and stops.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using moe::test::read_file;
using moe::test::run_moe;
using moe::test::RunResult;
using moe::test::TempDir;
using moe::test::write_file;

namespace {

void check_contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

std::string rows(int count, int token) {
  std::string text;
  for (int row = 0; row < count; ++row) {
    const std::vector<int> ids = {5, token, 7, 8 + row % 3}, labels = {-100, -100, 7, 8 + row % 3};
    text += OrderedJson{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
  }
  return text;
}

struct World {
  TempDir dir;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    write_file(dir / "a.jsonl", rows(12, 6));
    write_file(dir / "b.jsonl", rows(4, 9));
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  RunResult train(const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {"train", path("dense"), "--threads", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words);
  }
};

}  // namespace

TEST_CASE("mixed files are named with their form and share, and settings.toml mixes them again",
          "[cli]") {
  const World world;
  const auto result = world.train({"-o", world.path("run"), "--data", world.path("a.jsonl") + ":1",
                                   world.path("b.jsonl") + ":3", "--steps", "3", "--loss-on",
                                   "last", "--template", "U: {instruction}\\nA: {response}"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  check_contains(result.err, world.path("a.jsonl") +
                                 ": pre-tokenised rows; 12 examples, 25 % of those drawn\n");
  check_contains(result.err,
                 world.path("b.jsonl") + ": pre-tokenised rows; 4 examples, 75 % of those drawn\n");
  const std::string toml = read_file(world.dir / "run/settings.toml");
  check_contains(toml, "b.jsonl:3\"]\n");
  check_contains(toml, "template = \"U: {instruction}\\\\nA: {response}\"\n");
  check_contains(toml, "loss-on = \"last\"\n");
  const auto again = run_moe(
      {"train", "--config", world.path("run/settings.toml"), "-o", world.path("again"), "--quiet"});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(read_file(world.dir / "again/final/model.safetensors") ==
        read_file(world.dir / "run/final/model.safetensors"));
}

TEST_CASE("tokens are kept where --cache says, and change no number", "[cli]") {
  const World world;
  const auto train = [&](const std::string& run, const std::string& cache) {
    const auto result = world.train({"-o", world.path(run), "--data", world.path("a.jsonl"),
                                     world.path("b.jsonl"), "--steps", "3", "--cache", cache});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result.err;
  };
  const std::string folder = world.path("cache");
  check_contains(train("first", folder), "\ntokens cached in " + folder + "/");
  check_contains(train("second", folder), "\ntokens from the cache " + folder + "/");
  check_contains(train("third", "off"), "\ntokens in a temporary file in /");
  const std::string weights = read_file(world.dir / "first/final/model.safetensors");
  CHECK((read_file(world.dir / "second/final/model.safetensors") == weights));
  CHECK((read_file(world.dir / "third/final/model.safetensors") == weights));
  check_contains(read_file(world.dir / "first/settings.toml"), "cache = \"" + folder + "\"\n");
  check_contains(train("first", "off"), "already complete");  // the place is no other setting
  const auto bad = world.train(
      {"-o", world.path("bad"), "--data", world.path("a.jsonl"), "--cache", world.path("b.jsonl")});
  CHECK(bad.exit_code == 2);
  check_contains(bad.err, "--cache " + world.path("b.jsonl") + ": cannot be made");
  check_contains(bad.err, "give another folder, or off");
  CHECK_FALSE(std::filesystem::exists(world.dir / "bad"));
}

TEST_CASE("--show-samples prints tokens with their loss, taking turns, and writes nothing",
          "[cli]") {
  const World world;
  const auto result =
      world.train({"--data", world.path("a.jsonl"), world.path("b.jsonl"), "--show-samples", "3"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  const std::string a = world.path("a.jsonl"), b = world.path("b.jsonl");
  CHECK(result.out == a + ": pre-tokenised rows\n" + b + ": pre-tokenised rows\n\n" + a +
                          " line 1: 4 tokens, 2 with loss\n5 6 ⟦7 8⟧\n\n" + b +
                          " line 1: 4 tokens, 2 with loss\n5 9 ⟦7 8⟧\n\n" + a +
                          " line 2: 4 tokens, 2 with loss\n5 6 ⟦7 9⟧\n");
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(world.dir.path())) {
    ++entries;
  }
  CHECK(entries == 3);
}

TEST_CASE("--show-samples shows real records through the real tokenizer", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const auto data = test::shared_data();
  const auto result = run_moe({"train", (data / "stories260K-hf").string(), "--data",
                               (data / "instruct" / "sharegpt_dummy_conversation.json").string(),
                               "--template", "llama2", "--show-samples", "1"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  check_contains(result.out, "sharegpt_dummy_conversation.json: ShareGPT conversations\n");
  check_contains(result.out, "\n<s> ");
  size_t turns = 0;
  for (size_t at = result.out.find("</s>⟧"); at != std::string::npos;
       at = result.out.find("</s>⟧", at + 1)) {
    ++turns;
  }
  CHECK(turns == 2);
}

TEST_CASE("what a user gets wrong about data ends with code 2 and a sentence", "[cli]") {
  const World world;
  const auto check_error = [&](std::vector<std::string> flags, const std::string& part) {
    flags.insert(flags.end(), {"-o", world.path("run")});
    const auto result = world.train(flags);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    check_contains(result.err, part);
    CHECK_FALSE(std::filesystem::exists(world.dir / "run"));
  };
  const std::string a = world.path("a.jsonl"), b = world.path("b.jsonl");
  check_error({"--data", a, "--format", "alpacca"}, "--format 'alpacca' is unknown, did you mean");
  check_error({"--data", a, "--format", "alpaca"}, "a.jsonl line 1: 'instruction' is missing");
  check_error({"--data", a, "--template", "{response}"}, "{instruction} is missing");
  check_error({"--data", a, "--loss-on", "first"}, "--loss-on");
  check_error({"--data", a, "--show-samples", "0"}, "--show-samples");
  check_error({"--data", a + ":1", b}, "b.jsonl: has no weight, others have");
  check_error({"--data", a + ":9999", b + ":1"}, "draws none of its examples in an epoch of 16");
  const auto no_out = world.train({"--data", a});
  CHECK(no_out.exit_code == 2);
  check_contains(no_out.err, "--out is required; see moe train --help");
}
