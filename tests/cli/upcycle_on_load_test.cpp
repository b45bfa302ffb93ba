// A dense folder that commands take as a mixture, beside the same of a folder that moe upcycle
// wrote.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe {
namespace {

using test::contains_text;
using test::read_file;
using test::run_moe;
using test::RunResult;

// A dense folder, the mixture that is written of it, and rows to train on.
struct World {
  test::TempDir dir;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    test::write_training_rows(dir / "rows.jsonl");
    REQUIRE(run_moe({"upcycle", path("dense"), "-o", path("written"), "--experts", "4", "--layers",
                     "all", "--seed", "3", "--router", "top1+ir+fr", "--quiet"})
                .exit_code == 0);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  RunResult train(const std::string& model, const std::string& run,
                  const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {
        "train",     path(model), "-o",   path(run), "--data", path("rows.jsonl"),
        "--threads", "1",         "--lr", "1e-2",    "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words);
  }
  std::string weights(const std::string& run) const {
    return read_file(dir / run / "final/model.safetensors");
  }
};

const std::vector<std::string> kTaken = {"--upcycle",      "4", "--layers", "all",
                                         "--upcycle-seed", "3", "--router", "top1+ir+fr"};

std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("training a dense folder as a mixture is training the written mixture", "[cli]") {
  const World world;
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--steps", "6", "--pack", "none"},
        {"--steps", "4", "--ranks", "2"},
        {"--steps", "4", "--lora", "2"}}) {
    const std::string name = flags[2] + flags.back();
    INFO(name);
    const auto taken = world.train("dense", "taken" + name, joined(kTaken, flags));
    INFO(taken.err);
    REQUIRE(taken.exit_code == 0);
    REQUIRE(world.train("written", "plain" + name, flags).exit_code == 0);
    CHECK(world.weights("taken" + name) == world.weights("plain" + name));
    CHECK(read_file(world.dir / ("taken" + name) / "final/config.json") ==
          read_file(world.dir / ("plain" + name) / "final/config.json"));
  }
  CHECK_THAT(read_file(world.dir / "taken--packnone/settings.toml"),
             contains_text("upcycle = 4\n") && contains_text("layers = \"all\"\n") &&
                 contains_text("upcycle-seed = 3\n"));
}

TEST_CASE("processes that shard weights write the model of processes that do not", "[cli]") {
  const World world;
  const std::vector<std::string> three = {"--steps",        "3", "--micro-batch", "2",
                                          "--global-batch", "6", "--ranks",       "3"};
  for (const std::string folder : {"dense", "written"}) {
    INFO(folder);
    const auto flags = folder == "dense" ? three : joined(three, {"--replicas", "3"});
    const auto whole = world.train(folder, folder + "-whole", flags);
    INFO(whole.err);
    REQUIRE(whole.exit_code == 0);
    const auto sharded =
        world.train(folder, folder + "-sharded", joined(flags, {"--shard", "weights"}));
    INFO(sharded.err);
    REQUIRE(sharded.exit_code == 0);
    CHECK(world.weights(folder + "-sharded") == world.weights(folder + "-whole"));
  }
  const auto unknown = world.train("dense", "none", {"--shard", "experts"});
  CHECK(unknown.exit_code == 2);
  CHECK_THAT(unknown.err, contains_text("--shard 'experts' is unknown; known: optimizer, weights"));
}

TEST_CASE(
    "a dense folder taken with a shared expert is the written one, and is refused without "
    "--upcycle",
    "[cli]") {
  const World world;
  REQUIRE(run_moe({"upcycle", world.path("dense"), "-o", world.path("shared"), "--experts", "4",
                   "--shared-expert", "--router", "top1+ir+fr", "--quiet"})
              .exit_code == 0);
  const std::vector<std::string> taken_as = {"--upcycle", "4", "--shared-expert", "--router",
                                             "top1+ir+fr"};
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--steps", "4"}, {"--steps", "3", "--ranks", "2"}}) {
    const std::string name = "taken" + flags.back();
    const auto taken = world.train("dense", name, joined(taken_as, flags));
    INFO(taken.err);
    REQUIRE(taken.exit_code == 0);
    REQUIRE(world.train("shared", "plain" + name, flags).exit_code == 0);
    CHECK(world.weights(name) == world.weights("plain" + name));
    CHECK_THAT(read_file(world.dir / name / "settings.toml"),
               contains_text("shared-expert = true\n"));
  }
  const auto refused = world.train("shared", "run", {"--steps", "1", "--shared-expert"});
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("--shared-expert: is of a dense folder that is taken as a "
                                        "mixture; add --upcycle N, or leave it out"));
  CHECK_FALSE(std::filesystem::exists(world.dir / "run"));
  const auto bench =
      run_moe({"bench", "train", world.path("dense"), "--upcycle", "4", "--shared-expert",
               "--repeats", "1", "--rows", "1", "--seq-len", "8", "--threads", "1", "--json"});
  INFO(bench.err);
  REQUIRE(bench.exit_code == 0);
  const auto plain = run_moe({"bench", "train", world.path("dense"), "--upcycle", "4", "--repeats",
                              "1", "--rows", "1", "--seq-len", "8", "--threads", "1", "--json"});
  // Two layers, three matrices [16, 24] and the gate [16] of the shared expert.
  CHECK(parse_json(bench.out, "bench").at("parameters").get<int64_t>() -
            parse_json(plain.out, "bench").at("parameters").get<int64_t>() ==
        2 * (3 * 16 * 24 + 16));
}

TEST_CASE("a run that upcycled goes on, and its settings make it again", "[cli]") {
  const World world;
  const std::vector<std::string> more = {"--steps", "6", "--save-every", "2"};
  REQUIRE(world.train("dense", "whole", joined(kTaken, more)).exit_code == 0);
  REQUIRE(world.train("dense", "cut", joined(kTaken, more)).exit_code == 0);
  std::filesystem::remove_all(world.dir / "cut/final");
  const auto again = world.train("dense", "cut", joined(kTaken, more));
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(world.weights("cut") == world.weights("whole"));
  const auto by_settings = run_moe({"train", "--config", world.path("whole/settings.toml"), "-o",
                                    world.path("copy"), "--quiet"});
  INFO(by_settings.err);
  REQUIRE(by_settings.exit_code == 0);
  CHECK(world.weights("copy") == world.weights("whole"));
  auto other = joined(kTaken, more);
  other[1] = "2";
  const auto refused = world.train("dense", "cut", other);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("upcycle was 4, is 2"));
}

TEST_CASE("finer experts are taken as they are written: --router counts whole ones", "[cli]") {
  const World world;
  const std::vector<std::string> flags = {"--layers", "all",       "--granularity", "2",
                                          "--router", "top2:cf=1", "--ep-ranks",    "2"};
  REQUIRE(run_moe(joined({"upcycle", world.path("dense"), "-o", world.path("fine"), "--experts",
                          "4", "--seed", "3", "--quiet"},
                         flags))
              .exit_code == 0);
  const auto taken_flags = joined({"--upcycle", "4", "--upcycle-seed", "3"}, flags);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--steps", "6"}, {"--steps", "4", "--ranks", "2"}}) {
    const std::string name = fmt::format("{}", more.size());
    const auto taken = world.train("dense", "taken" + name, joined(taken_flags, more));
    INFO(taken.err);
    REQUIRE(taken.exit_code == 0);
    REQUIRE(world.train("fine", "plain" + name, more).exit_code == 0);
    CHECK(world.weights("taken" + name) == world.weights("plain" + name));
    CHECK(read_file(world.dir / ("taken" + name) / "final/config.json") ==
          read_file(world.dir / ("plain" + name) / "final/config.json"));
  }
  CHECK_THAT(read_file(world.dir / "taken2/settings.toml"), contains_text("granularity = 2\n") &&
                                                                contains_text("router = \"top2:") &&
                                                                contains_text("cf=1,"));
  // Training goes on as with any mixture: the groups, alike at the start, have come apart.
  const auto trained =
      run_moe({"inspect", world.path("taken2/final"), "--json", "--against", world.path("dense")});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const Json json = parse_json(trained.out, "stdout");
  CHECK(json["moe"]["granularity"] == 2);
  CHECK(json["moe"]["experts"] == 8);
  CHECK(json["against"]["layers"][0]["cosine_between_experts"].get<double>() < 0.9999);
  const auto start =
      run_moe({"inspect", world.path("fine"), "--json", "--against", world.path("dense")});
  CHECK(parse_json(start.out, "stdout")["against"]["layers"][0]["cosine_between_experts"]
            .get<double>() == Approx(1).margin(1e-12));

  const auto by_settings = run_moe({"train", "--config", world.path("taken2/settings.toml"), "-o",
                                    world.path("copy"), "--quiet"});
  INFO(by_settings.err);
  REQUIRE(by_settings.exit_code == 0);
  CHECK(world.weights("copy") == world.weights("taken2"));
  const auto again = world.train("dense", "taken2", joined(taken_flags, {"--steps", "6"}));
  INFO(again.err);
  CHECK(again.exit_code == 0);
  auto other = joined(taken_flags, {"--steps", "6"});
  other[7] = "4";
  const auto refused = world.train("dense", "taken2", other);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("granularity was 2, is 4"));
  const auto measured = run_moe(joined({"bench", "train", world.path("dense"), "--rows", "2",
                                        "--seq-len", "8", "--repeats", "1", "--json"},
                                       taken_flags));
  INFO(measured.err);
  CHECK(measured.exit_code == 0);
  CHECK_THAT(measured.out, contains_text("\"granularity\": \"2\"") && contains_text("top4:cf=2"));
}

TEST_CASE("an evaluation takes a dense folder as a mixture and says so", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const test::TempDir dir;
  const std::string dense = (test::shared_data() / "stories260K-hf").string();
  const std::string moe = (dir / "moe").string(), requests = (dir / "r.jsonl").string();
  test::write_file(requests, R"({"context": "Lily has a", "continuation": " dog"})"
                             "\n"
                             R"({"context": "Once upon a", "continuation": " time there"})"
                             "\n");
  const std::vector<std::string> router = {"--router", "top2+ir+fr:cf=0.5", "--ep-ranks", "2"};
  REQUIRE(run_moe(joined({"upcycle", dense, "-o", moe, "--quiet"}, router)).exit_code == 0);
  // moe upcycle writes the tokenizer_config.json that this dense folder lacks, which asks for a
  // BOS.
  const auto written = run_moe({"eval", moe, "--requests", requests, "--quiet", "--bos", "on"});
  const auto taken = run_moe(joined(
      {"eval", dense, "--upcycle", "8", "--requests", requests, "--quiet", "--bos", "on"}, router));
  INFO(taken.err);
  REQUIRE((written.exit_code == 0 && taken.exit_code == 0));
  CHECK(taken.out == written.out);

  const auto finer = joined(router, {"--granularity", "4", "--force"});
  REQUIRE(run_moe(joined({"upcycle", dense, "-o", moe, "--quiet"}, finer)).exit_code == 0);
  const auto fine = run_moe({"eval", moe, "--requests", requests, "--quiet", "--bos", "on"});
  const auto taken_fine = run_moe(joined(
      {"eval", dense, "--upcycle", "8", "--requests", requests, "--quiet", "--bos", "on"}, finer));
  INFO(taken_fine.err);
  REQUIRE((fine.exit_code == 0 && taken_fine.exit_code == 0));
  CHECK(taken_fine.out == fine.out);
  CHECK(fine.out != taken.out);

  test::write_file(dir / "quiz.jsonl",
                   R"({"question": "Who?", "choices": [" Tim", " Lily"], "answer": 1})"
                   "\n");
  REQUIRE(run_moe({"eval", dense, "--upcycle", "8", "--tasks", (dir / "quiz.jsonl").string(), "-o",
                   (dir / "scores").string(), "--quiet"})
              .exit_code == 0);
  CHECK_THAT(read_file(dir / "scores/results.json"), contains_text("\"upcycle\""));
}

TEST_CASE("what cannot be taken as a mixture is refused by name", "[cli]") {
  const World world;
  const auto check = [&](const std::string& model, const std::vector<std::string>& flags,
                         const std::string& sentence) {
    const auto result = world.train(model, "run", joined({"--steps", "1"}, flags));
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, contains_text(sentence));
    CHECK_FALSE(std::filesystem::exists(world.dir / "run"));
  };
  check("written", {"--upcycle", "4"}, "is a mixture of experts already");
  check("dense", {"--upcycle", "0"}, "--upcycle 0: must be");
  check("dense", {"--upcycle", "2", "--router", "top3"}, "asks for 3 experts");
  check("written", {"--granularity", "2"}, "--granularity 2: cuts the experts of a dense folder");
  check("dense", {"--upcycle", "2", "--granularity", "5"}, "--granularity 5: the feed-forward is");
  check("dense", {"--upcycle", "2", "--granularity", "2", "--router", "top4"},
        "asks for 4 experts per token, the layers have 2");
  check("dense", {"--router", "top1"}, "add --upcycle N, or upcycle it first");
}

}  // namespace
}  // namespace moe
