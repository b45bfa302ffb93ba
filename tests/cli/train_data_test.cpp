// Data of moe train: the format and share of each file, weights and templates in settings.toml, the
// token cache, --show-samples.

#include "core/base/json.h"
#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

namespace {

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
    write_tiny_checkpoint(dir / "dense");
    write_file(dir / "a.jsonl", rows(12, 6));
    write_file(dir / "b.jsonl", rows(4, 9));
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  Words training(const Words& flags) const {
    return joined({"train", path("dense"), "--threads", "1"}, flags);
  }
};

}  // namespace

TEST_CASE("mixed files are printed with format and share, and settings.toml repeats the mix",
          "[cli]") {
  const World world;
  const auto result =
      succeed(world.training({"-o", world.path("run"), "--data", world.path("a.jsonl") + ":1",
                              world.path("b.jsonl") + ":3", "--steps", "3", "--loss-on", "last",
                              "--template", "U: {instruction}\\nA: {response}"}));
  check_has(result.err,
            {world.path("a.jsonl") + ": pre-tokenised rows; 12 examples, 25 % of those drawn\n",
             world.path("b.jsonl") + ": pre-tokenised rows; 4 examples, 75 % of those drawn\n"});
  check_has(read_file(world.dir / "run/settings.toml"),
            {"b.jsonl:3\"]\n", "template = \"U: {instruction}\\\\nA: {response}\"\n",
             "loss-on = \"last\"\n"});
  succeed(
      {"train", "--config", world.path("run/settings.toml"), "-o", world.path("again"), "--quiet"});
  CHECK(read_file(world.dir / "again/final/model.safetensors") ==
        read_file(world.dir / "run/final/model.safetensors"));
}

TEST_CASE("tokens are cached in the folder of --cache without changing a loss", "[cli]") {
  const World world;
  const std::string folder = world.path("cache");
  const auto check = [&](const std::string& run, const std::string& cache,
                         const std::string& fact) {
    check_has(succeed(world.training({"-o", world.path(run), "--data", world.path("a.jsonl"),
                                      world.path("b.jsonl"), "--steps", "2", "--cache", cache}))
                  .err,
              {fact});
    return read_file(world.dir / run / "final/model.safetensors");
  };
  const std::string weights = check("first", folder, "\ntokens cached in " + folder + "/");
  CHECK((check("second", folder, "\ntokens from the cache " + folder + "/") == weights));
  CHECK((check("third", "off", "\ntokens in a temporary file in /") == weights));
  check_has(read_file(world.dir / "first/settings.toml"), {"cache = \"" + folder + "\"\n"});
  check("first", "off", "already complete");  // the cache is not a setting that a resume compares
  check_refused(world.training({"-o", world.path("bad"), "--data", world.path("a.jsonl"), "--cache",
                                world.path("b.jsonl")}),
                "--cache " + world.path("b.jsonl") + ": cannot be created");
  CHECK_FALSE(std::filesystem::exists(world.dir / "bad"));
}

TEST_CASE("--show-samples prints tokens with their loss from each file, and writes nothing",
          "[cli]") {
  const World world;
  const auto result = succeed(world.training(
      {"--data", world.path("a.jsonl"), world.path("b.jsonl"), "--show-samples", "3"}));
  CHECK(result.err.empty());
  const std::string a = world.path("a.jsonl"), b = world.path("b.jsonl");
  CHECK(result.out == a + ": pre-tokenised rows\n" + b + ": pre-tokenised rows\n\n" + a +
                          " line 1: 4 tokens, 2 with loss\n5 6 ⟦7 8⟧\n\n" + b +
                          " line 1: 4 tokens, 2 with loss\n5 9 ⟦7 8⟧\n\n" + a +
                          " line 2: 4 tokens, 2 with loss\n5 6 ⟦7 9⟧\n");
  CHECK(std::distance(std::filesystem::directory_iterator(world.dir.path()), {}) == 3);
}

TEST_CASE("moe train refuses invalid flags of its data by name", "[cli]") {
  const World world;
  const std::string a = world.path("a.jsonl"), b = world.path("b.jsonl");
  for (const auto& [flags, fact] : std::vector<std::pair<Words, std::string>>{
           {{a, "--format", "alpacca"}, "--format 'alpacca' is unknown, did you mean"},
           {{a, "--format", "alpaca"}, "a.jsonl line 1: 'instruction' is missing"},
           {{a, "--template", "{response}"}, "{instruction} is missing"},
           {{a, "--loss-on", "first"}, "--loss-on"},
           {{a + ":1", b}, "b.jsonl: has no weight, others have"},
           {{a + ":9999", b + ":1"}, "draws none of its examples in an epoch of 16"}}) {
    check_refused(world.training(joined({"-o", world.path("run"), "--data"}, flags)), fact);
    CHECK_FALSE(std::filesystem::exists(world.dir / "run"));
  }
  check_refused(world.training({"--data", a}), "--out is required");
}
