#include "core/train/config/settings.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;

namespace {

TrainSettings with_data() {
  TrainSettings settings;
  settings.model = "model";
  settings.run = "run";
  settings.data = {"a.jsonl"};
  return settings;
}

model::ModelConfig config_of(int64_t positions) {
  model::ModelConfig config;
  config.max_position_embeddings = positions;
  return config;
}

data::Examples rows(bool all_rows) {
  data::Examples examples;
  examples.all_rows = all_rows;
  return examples;
}

template <typename Change>
std::string error_after(Change change) {
  TrainSettings settings = with_data();
  change(settings);
  return test::user_error_of([&] { resolve(settings, config_of(512), rows(false)); });
}

}  // namespace

TEST_CASE("what is open gets the papers' values, or what model and data allow", "[train]") {
  const auto settings = resolve(with_data(), config_of(512), rows(false));
  CHECK(settings.seq_len == 512);
  CHECK(resolve(with_data(), config_of(4096), rows(false)).seq_len == 2048);
  CHECK(settings.micro_batch == 8);
  CHECK(settings.global_batch == 8);
  CHECK(settings.min_lr.value() == Approx(1e-6));
  CHECK(settings.epochs == 1);
  CHECK(settings.pack == data::Pack::kStream);
  CHECK(resolve(with_data(), config_of(512), rows(true)).pack == data::Pack::kNone);
}

TEST_CASE("micro-batches divide the global batch", "[train]") {
  TrainSettings settings = with_data();
  settings.global_batch = 36;
  CHECK(resolve(settings, config_of(512), rows(false)).micro_batch == 6);
  settings.global_batch = 7;
  CHECK(resolve(settings, config_of(512), rows(false)).micro_batch == 7);
  settings.micro_batch = 2;
  CHECK(test::user_error_of([&] { resolve(settings, config_of(512), rows(false)); }) ==
        "--global-batch 7 is no multiple of --micro-batch 2; a step is a whole number of "
        "micro-batches");
}

TEST_CASE("every number out of range is refused by its flag", "[train]") {
  using S = TrainSettings;
  CHECK(error_after([](S& s) { s.steps = 0; }) ==
        "--steps 0: must be a whole number of at least 1");
  CHECK(error_after([](S& s) { s.steps = 1, s.epochs = 1; }) ==
        "--steps and --epochs: give one of them");
  CHECK(error_after([](S& s) { s.epochs = -1; }) == "--epochs -1: must be a positive number");
  CHECK(error_after([](S& s) { s.micro_batch = -2; }) ==
        "--micro-batch -2: must be a whole number of at least 1");
  CHECK(error_after([](S& s) { s.seq_len = 1; }) ==
        "--seq-len 1: must be a whole number of at least 2");
  CHECK(error_after([](S& s) { s.seq_len = 513; }) ==
        "--seq-len 513: the model was made for 512 positions (max_position_embeddings in "
        "config.json); give at most that");
  CHECK(error_after([](S& s) { s.warmup = -1; }) ==
        "--warmup -1: must be a whole number of at least 0");
  CHECK(error_after([](S& s) { s.lr = -1; }) == "--lr -1: must be 0 or a positive number");
  CHECK(error_after([](S& s) { s.lr = 1e-3, s.min_lr = 1e-2; }) ==
        "--min-lr 0.01 is above --lr 0.001; the rate falls from the one to the other");
  CHECK(error_after([](S& s) { s.adamw.beta2 = 1; }) == "--beta2 1: must lie in [0, 1)");
  CHECK(error_after([](S& s) { s.clip = std::nan(""); }) ==
        "--clip nan: must be 0 or a positive number");
  for (const double z : {0.0, 0.5, -6.0, std::nan("")}) {
    CHECK(error_after([z](S& s) { s.skip_outliers = z; }) ==
          fmt::format("--skip-outliers {}: must be a number of standard deviations of at least 1; "
                      "6 is usual",
                      z));
  }
  CHECK(error_after([](S& s) { s.save_every = 0; }) ==
        "--save-every 0: must be a whole number of at least 1");
  CHECK(error_after([](S& s) { s.keep = 0; }) == "--keep 0: must be a whole number of at least 1");
  CHECK(error_after([](S& s) { s.lora.rank = -1; }) ==
        "--lora -1: the rank must lie in 1 .. 65536 (0: no adapters)");
  CHECK(error_after([](S& s) { s.lora.alpha = 2; }) ==
        "--lora-alpha without --lora: say the rank of the adapters");
  CHECK(error_after([](S& s) {
          s.lora = {4, -1, {"ffn"}};
        }) == "--lora-alpha -1: must be a positive number");
  CHECK(error_after([](S& s) {
          s.lora = {4, 0, {"mlp"}};
        }) == "--lora-on 'mlp' is unknown; known: attention, ffn");
  CHECK(error_after([](S& s) {
          s.compute.precision = model::Precision::kTf32;
        }).find("--precision tf32: CUDA GPUs alone") == 0);
}

TEST_CASE("settings.toml is the run as a recipe", "[train]") {
  TrainSettings settings = with_data();
  settings.data = {"a \"b\".jsonl", "c.jsonl"};
  settings.steps = 20;
  settings.router = {"top1+ir:cf=1.5", "1.5", 8};
  settings.lb_coef = 0.01;
  settings.seed = 7;
  settings.lr = 1e-3;
  settings.format = data::Format::kPairs;
  settings.text_template = "{instruction}\\n{response}";
  settings.loss_on = data::LossOn::kLast;
  settings.compute.recompute = model::Recompute::kLayer;
  settings.lora = {8, 16, {"ffn"}};
  const std::string toml = to_toml(resolve(settings, config_of(512), rows(false)));
  CHECK(toml ==
        "# moe 0.1.0: again with `moe train --config FILE --force`, or another -o\n[train]\nmodel "
        "= \"model\"\nout = \"run\"\n"
        "data = [\"a \\\"b\\\".jsonl\", \"c.jsonl\"]\nformat = \"pairs\"\ntemplate = "
        "\"{instruction}\\\\n"
        "{response}\"\nloss-on = \"last\"\nobjective = \"instruct\"\npack = "
        "\"stream\"\npack-mask = \"causal\"\nshuffle = \"on\"\n"
        "seq-len = 512\nmicro-batch = 8\nglobal-batch = 8\nsteps = 20\nprecision = "
        "\"fp32\"\nrecompute = \"layer\"\nlora = 8\nlora-alpha = 16\nlora-on = "
        "[\"ffn\"]\nlr = 0.001\nmin-lr = "
        "0.0001\nschedule = \"cosine\"\n"
        "warmup = 0\nweight-decay = 0\n"
        "decay-embeddings = \"on\"\nbeta1 = 0.9\nbeta2 = 0.999\neps = 1e-08\nclip = 1\n"
        "optimizer-state = \"fp32\"\n"
        "router = \"" +
            settings.router.router +
            "\"\ncf = \"1.5\"\nep-ranks = 8\nlb-coef = 0.01\nkeep = 2\nseed = 7\n");
}
