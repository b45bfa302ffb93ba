// --upcycle N of moe train and eval: results equal those of the folder that moe upcycle writes.

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

struct World : TrainingWorld {
  // Trains "dense" with `opened` and `written` with `flags` alone, and checks that both final
  // models have equal bytes.
  void check_equal(const Words& opened, const std::string& written, const Words& flags) const {
    CAPTURE(opened, flags);
    const Words all = joined(flags, {"--lr", "1e-2", "--quiet", "--force"});
    succeed(training(joined(opened, all), "dense", "opened"));
    succeed(training(all, written, "plain"));
    CHECK(weights("opened") == weights("plain"));
    CHECK(read("opened/final/config.json") == read("plain/final/config.json"));
  }
};

const Words kOpened = {"--upcycle",      "4", "--layers", "all",
                       "--upcycle-seed", "3", "--router", "top1+ir+fr"};

TEST_CASE("train --upcycle gives the bits of training the upcycled folder", "[cli]") {
  const World world;
  world.upcycle("written", {"--layers", "all", "--seed", "3", "--router", "top1+ir+fr"});
  world.check_equal(kOpened, "written", {"--steps", "2", "--pack", "none", "--lora", "2"});
  world.check_equal(kOpened, "written", {"--steps", "2", "--ranks", "2"});
  check_has(world.read("opened/settings.toml"),
            {"upcycle = 4\n", "layers = \"all\"\n", "upcycle-seed = 3\n"});
}

TEST_CASE("--shard weights trains to the bits of unsharded weights", "[cli]") {
  const World world;
  const Words flags = {"--steps", "2", "--micro-batch", "2", "--global-batch", "4",
                       "--ranks", "2", "--replicas",    "2", "--quiet"};
  world.upcycle("moe", {"--router", "top1+ir+fr"});
  succeed(world.training(flags, "moe", "whole"));
  succeed(world.training(joined(flags, {"--shard", "weights"}), "moe", "sharded"));
  CHECK(world.weights("sharded") == world.weights("whole"));
  check_refused(world.train({"--shard", "experts"}),
                "--shard 'experts' is unknown; known: optimizer, weights");
}

TEST_CASE("train --upcycle --shared-expert equals training the upcycled folder", "[cli]") {
  const World world;
  world.upcycle("shared", {"--shared-expert", "--router", "top1+ir+fr"});
  world.check_equal({"--upcycle", "4", "--shared-expert", "--router", "top1+ir+fr"}, "shared",
                    {"--steps", "2", "--ranks", "2"});
  CHECK_THAT(world.read("opened/settings.toml"), contains_text("shared-expert = true\n"));
  check_refused(world.train({"--steps", "1", "--shared-expert"}, "shared"),
                "--shared-expert: is of a dense folder");
  CHECK_FALSE(std::filesystem::exists(world.dir / "run"));
  const auto parameters = [&](const Words& more) {
    const auto bench =
        succeed(joined({"bench", "train", world.path("dense"), "--upcycle", "4", "--repeats", "1",
                        "--rows", "1", "--seq-len", "8", "--threads", "1", "--json"},
                       more));
    return parse_json(bench.out, "bench").at("parameters").get<int64_t>();
  };
  // Two layers, three matrices [16, 24] and the gate [16] of the shared expert.
  CHECK(parameters({"--shared-expert"}) - parameters({}) == 2 * (3 * 16 * 24 + 16));
}

TEST_CASE("train --upcycle --granularity equals training the upcycled folder, and resumes",
          "[cli]") {
  const World world;
  const Words flags = {"--layers", "all",       "--granularity", "2",
                       "--router", "top2:cf=1", "--ep-ranks",    "2"};
  world.upcycle("fine", joined({"--seed", "3"}, flags));
  const Words opened = joined({"--upcycle", "4", "--upcycle-seed", "3"}, flags);
  world.check_equal(opened, "fine", {"--steps", "4", "--save-every", "2"});
  check_has(world.read("opened/settings.toml"), {"granularity = 2\n", "router = \"top2:", "cf=1,"});
  const auto compared = [&](const std::string& model) {
    return parse_json(
        succeed({"inspect", world.path(model), "--json", "--against", world.path("dense")}).out,
        "stdout");
  };
  const Json trained = compared("opened/final");
  CHECK(trained["moe"]["granularity"] == 2);
  CHECK(trained["moe"]["experts"] == 8);
  // The copies are equal at the start and diverge in training.
  const auto cosine = [](const Json& json) {
    return json["against"]["layers"][0]["cosine_between_experts"].get<double>();
  };
  CHECK(cosine(trained) < 0.9999);
  CHECK(cosine(compared("fine")) == Approx(1).margin(1e-12));

  const std::string whole = world.weights("opened");
  succeed({"train", "--config", world.path("opened/settings.toml"), "-o", world.path("copy"),
           "--quiet"});
  CHECK(world.weights("copy") == whole);
  std::filesystem::remove_all(world.dir / "opened/final");
  std::filesystem::remove_all(world.dir / "opened/checkpoints/step-4");
  Words again = joined(opened, {"--steps", "4", "--save-every", "2", "--lr", "1e-2", "--quiet"});
  succeed(world.training(again, "dense", "opened"));
  CHECK(world.weights("opened") == whole);
  again[1] = "2";
  again[7] = "4";
  const auto refused = world.train(again, "dense", "opened");
  CHECK(refused.exit_code == 2);
  check_has(refused.err, {"upcycle was 4, is 2", "granularity was 2, is 4"});
}

TEST_CASE("eval --upcycle opens a dense folder as a mixture and notes it", "[cli]") {
  const TempDir dir;
  const std::string dense = tiny("model"), moe = (dir / "moe").string(),
                    requests = (dir / "r.jsonl").string();
  write_file(requests, R"({"context": "The opposite of", "continuation": " big"})"
                       "\n"
                       R"({"context": "One two", "continuation": " three four"})"
                       "\n");
  const Words flags = {"--router", "top2+ir+fr:cf=0.5", "--ep-ranks", "2", "--granularity", "4"};
  succeed(joined({"upcycle", dense, "-o", moe, "--quiet"}, flags));
  const Words eval = {"--requests", requests, "--quiet", "--bos", "on"};
  const auto written = succeed(joined({"eval", moe}, eval));
  const auto opened = succeed(joined({"eval", dense, "--upcycle", "8"}, joined(eval, flags)));
  CHECK(std::count(opened.out.begin(), opened.out.end(), '\n') == 2);
  CHECK(opened.out == written.out);
  succeed({"eval", dense, "--upcycle", "8", "--tasks", tiny("quiz.jsonl"), "--limit", "1", "-o",
           (dir / "scores").string(), "--quiet"});
  CHECK_THAT(read_file(dir / "scores/results.json"), contains_text("\"upcycle\""));
}

TEST_CASE("a folder that --upcycle cannot open is refused by name", "[cli]") {
  const World world;
  world.upcycle("written");
  for (const auto& [model, flags, fact] : std::vector<std::tuple<std::string, Words, std::string>>{
           {"written", {"--upcycle", "4"}, "is a mixture of experts already"},
           {"dense", {"--upcycle", "2", "--router", "top3"}, "asks for 3 experts"},
           {"written",
            {"--granularity", "2"},
            "--granularity 2: cuts the experts of a dense folder"},
           {"dense", {"--upcycle", "2", "--granularity", "5"}, "--granularity 5: the feed-forward"},
           {"dense",
            {"--upcycle", "2", "--granularity", "2", "--router", "top4"},
            "asks for 4 experts per token, the layers have 2"}}) {
    CAPTURE(model, flags);
    check_refused(world.train(flags, model), fact);
    CHECK_FALSE(std::filesystem::exists(world.dir / "run"));
  }
}

}  // namespace
}  // namespace moe
