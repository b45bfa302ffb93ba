// The peak memory predicted by --dry-run is within 10 % of the measured peak, for models that need
// more memory than the program itself.

#include "core/base/json.h"
#include "tests/cli/commands.h"
#include "tests/support/foreign_checkpoint.h"

using namespace moe;
using namespace moe::test;

namespace {

const TinyCheckpoint kShape = {.hidden = 256,
                               .intermediate = 704,
                               .layers = 4,
                               .heads = 8,
                               .kv_heads = 8,
                               .vocab = 32000,
                               .max_positions = 512};

// Eight rows of 512 tokens and a model to train on them.
struct Fixture {
  TempDir dir;

  Fixture() {
    std::string rows;
    for (int row = 0; row < 8; ++row) {
      std::vector<int> ids(512);
      for (int t = 0; t < 512; ++t) {
        ids[static_cast<size_t>(t)] = 3 + (row * 977 + t * 131) % 3900;
      }
      rows += Json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    write_file(dir / "rows.jsonl", rows);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  void init(const OrderedJson& config, const Args& flags = {}) const {
    write_file(dir / "config.json", config.dump());
    succeed(joined({"init", path("config.json"), "-o", path("model")}, flags));
  }
  Args training(const Args& flags) const {
    return joined({"train", path("model"), "--data", path("rows.jsonl"), "--micro-batch", "4",
                   "--seq-len", "512", "--steps", "2", "--threads", "1", "-q"},
                  flags);
  }
  Json dry_run(const Args& flags) const {
    return parse_json(succeed(joined(training(flags), {"--dry-run", "--json"})).out, "--dry-run");
  }
  // Trains, checks the predicted peak and returns the prediction.
  Json check_peak(const Args& flags) const {
    CAPTURE(flags);
    const Json predicted = dry_run(flags);
    CHECK_FALSE(fs::exists(dir / "run"));
    succeed(training(joined(flags, {"-o", path("run")})));
    double peak = 0;
    for (const Json& line : json_lines(read_file(dir / "run/metrics.jsonl"))) {
      peak = line.value("peak_memory_bytes", peak);  // the line of step 0 has none
    }
    CHECK(predicted["peak_bytes"].get<double>() == Approx(peak).epsilon(0.1));
    fs::remove_all(dir / "run");
    return predicted;
  }
};

void init_mixture(const Fixture& fixture) {
  fixture.init(tiny_config(kShape), {"--experts", "8", "--router", "top2:cf=inf"});
}

const std::vector<Args> kVariants = {{"--recompute", "layer"},
                                     {"--precision", "bf16"},
                                     {"--lora", "8"},
                                     {"--save-every", "1"},
                                     {"--optimizer-state", "bf16"}};

}  // namespace

TEST_CASE("--dry-run predicts peak memory within 10 %, and its parts depend on flags", "[cli]") {
  const Fixture fixture;
  init_mixture(fixture);
  fixture.check_peak({"--recompute", "layer", "--save-every", "1"});
  for (const Args& flags : kVariants) {
    CAPTURE(flags);
    const Json predicted = fixture.dry_run(flags);
    const auto bytes = [&](const std::string& part) {
      return predicted[part + "_bytes"].get<uint64_t>();
    };
    CHECK(bytes("optimizer") == (flags[0] == "--optimizer-state" ? 1 : 2) * bytes("gradients"));
    CHECK((bytes("gradients") < bytes("weights")) == (flags[0] == "--lora"));
    CHECK((bytes("checkpoint") > 0) == (flags[0] == "--save-every"));
  }
  // With expert parallelism, each process gathers the whole model for an evaluation.
  const uint64_t whole = fixture.dry_run({})["weights_bytes"].get<uint64_t>();
  Args flags = {"--ranks", "2"};
  CHECK(fixture.dry_run(flags)["evaluation_bytes"] == 0);
  flags = joined(flags, {"--eval-data", fixture.path("rows.jsonl"), "--eval-rows", "2"});
  const Json predicted = fixture.dry_run(flags);
  CHECK(predicted["weights_bytes"].get<uint64_t>() < whole);
  CHECK(predicted["evaluation_bytes"] == whole);
}

TEST_CASE("--dry-run predicts the peak of every variant within 10 %", "[.][slow][cli]") {
  const Fixture fixture;
  SECTION("a mixture") {
    init_mixture(fixture);
    fixture.check_peak({});
    for (const Args& flags : kVariants) {
      fixture.check_peak(flags);
    }
    // The metrics of the step after an evaluation include the peak of the evaluation.
    fixture.check_peak({"--ranks", "2", "--eval-data", fixture.path("rows.jsonl"), "--eval-rows",
                        "2", "--eval-every", "1"});
  }
  SECTION("a shared expert wider than the routed experts") {
    fixture.init(foreign_config({.kind = Foreign::kQwen2Moe,
                                 .experts = 8,
                                 .expert_width = 128,
                                 .dense_layers = {1},
                                 .shared_width = 2816,
                                 .tiny = kShape}));
    for (const Args& flags : {Args{}, {"--recompute", "ffn"}, {"--lora", "8"}}) {
      fixture.check_peak(flags);
    }
  }
  SECTION("processes that shard weights") {
    write_tiny_checkpoint(fixture.dir / "model", {.hidden = 512,
                                                  .intermediate = 1408,
                                                  .layers = 10,
                                                  .heads = 8,
                                                  .kv_heads = 8,
                                                  .vocab = 4000,
                                                  .max_positions = 512});
    const Args flags = {"--ranks", "2", "--global-batch", "8", "--recompute", "layer"};
    const Json sharded = fixture.check_peak(joined(flags, {"--shard", "weights"}));
    CHECK(sharded["peak_bytes"] < fixture.dry_run(flags)["peak_bytes"]);
  }
}
