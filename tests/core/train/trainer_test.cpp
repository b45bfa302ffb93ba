#include "core/train/loop/trainer.h"

#include "core/base/error.h"
#include "core/model/convert/upcycle.h"
#include "core/train/checkpoint/snapshot.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using World = moe::test::TrainWorld;
namespace fs = std::filesystem;

TEST_CASE("a dense folder trains, its loss falls, and the run is on disk", "[train]") {
  World world;
  const auto records = world.train();
  REQUIRE(records.size() == 12);
  CHECK(records.back().loss < 0.7 * records.front().loss);
  const fs::path run = world.settings.run;
  CHECK(fs::exists(run / "final" / "config.json"));
  CHECK(fs::exists(run / "settings.toml"));
  CHECK_FALSE(fs::exists(run / "checkpoints"));
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  std::string line;
  for (const auto& record : records) {
    REQUIRE(std::getline(lines, line));
    const Json json = parse_json(line, "metrics.jsonl");
    CHECK(json["step"] == record.step);
    CHECK(json["loss"] == record.loss);
    CHECK(json["grad_norm"] == record.grad_norm);
    CHECK(json["tokens"].get<int64_t>() == record.tokens);
    CHECK_FALSE(json.contains("load_balance_loss"));
  }
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("the same settings give the same numbers and the same bytes", "[train]") {
  World world("top1+ir+fr");
  const auto first = world.train();
  const std::string weights = read_file(world.settings.run / "final" / "model.safetensors");
  world.settings.run = world.dir / "again";
  CHECK(losses(world.train()) == losses(first));
  CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
  world.settings.run = world.dir / "other";
  world.settings.seed = 1;
  CHECK(losses(world.train()) != losses(first));
}

TEST_CASE(
    "upcycled models train with every router, their losses fall and their counters stand in the "
    "metrics",
    "[train]") {
  for (const char* router : {"top1", "top2:cf=inf", "top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO(router);
    World world(router);
    const auto records = world.train();
    CHECK(records.back().loss < 0.8 * records.front().loss);
    const auto& record = records.front();
    REQUIRE(record.layer_counters.size() == 2);
    CHECK(record.moe_layers == std::vector<int64_t>{0, 2});
    CHECK(record.layer_counters[0].tokens == record.tokens);
    const OrderedJson json = to_json(record);
    CHECK(json["layers"].size() == 2);
    CHECK(json["layers"][1]["layer"] == 2);
    CHECK(json["layers"][0]["load"].size() == 4);
    CHECK(json["experts_per_token"].get<double>() > 0);
    CHECK(json.contains("load_balance_loss") == (std::string(router).rfind("relu", 0) != 0));
    CHECK(json.contains("lambda") == (std::string(router).rfind("relu", 0) == 0));
  }
}

// The biases of the folder's routers, a row a MoE layer.
std::vector<std::vector<float>> biases_of(const fs::path& folder) {
  std::vector<std::vector<float>> all;
  for (const auto& bias : model::Llama::load(io::Checkpoint(folder)).router_biases()) {
    all.emplace_back(bias.data_ptr<float>(), bias.data_ptr<float>() + bias.numel());
  }
  return all;
}

TEST_CASE("the bias of each expert follows the requests of whole steps, and the folder has it",
          "[train]") {
  World world("top2:bias=0.01");
  world.settings.global_batch = 8;  // two micro-batches a step
  std::string said;
  std::vector<StepRecord> records;
  TrainCallbacks callbacks;
  callbacks.on_start = [&](const RunPlan& plan) { said = plan.losses; };
  callbacks.on_step = [&](const StepRecord& record) { records.push_back(record); };
  train::train(world.settings, callbacks);
  CHECK(said ==
        "language model; load balance (of first choices) is off (coefficient 0); a bias of the "
        "choice balances, by 0.01 a step");
  std::vector<std::vector<float>> expected(2, std::vector<float>(4, 0));  // by plain loops
  for (const auto& record : records) {
    float largest = 0;
    for (const auto& layer : expected) {
      for (const float bias : layer) {
        largest = std::max(largest, std::abs(bias));
      }
    }
    CHECK(*record.bias_max == largest);
    for (size_t layer = 0; layer < 2; ++layer) {
      const auto& requests = record.layer_counters.at(layer).requests_per_expert;
      REQUIRE(requests.size() == 4);
      int64_t sum = 0;
      for (const int64_t load : requests) {
        sum += load;
      }
      CHECK(sum == 2 * record.tokens);
      for (size_t expert = 0; expert < 4; ++expert) {
        expected[layer][expert] += 4 * requests[expert] < sum   ? 0.01F
                                   : 4 * requests[expert] > sum ? -0.01F
                                                                : 0;
      }
    }
  }
  const fs::path trained = world.settings.run / "final";
  CHECK((biases_of(trained) == expected));
  const Json config = read_json(trained / "config.json");
  CHECK(config["model_type"] == "moe_biased");
  CHECK(config["moe"]["router"]["bias_rate"] == 0.01);
  const OrderedJson line = to_json(records[3]);
  CHECK(line["bias_max"].get<double>() > 0);
  CHECK(line["layers"][1]["requests_per_expert"].size() == 4);
  const io::Checkpoint folder(trained);
  CHECK(folder.info("model.layers.0.mlp.gate.e_score_correction_bias").dtype == io::DType::kF32);

  // Another run goes on from it; bias=0 keeps it where it is, a router that names none drops it.
  world.settings.model = trained;
  world.settings.steps = 2;
  world.settings.run = world.dir / "on";
  CHECK(world.train()[0].bias_max > 0);
  CHECK_FALSE((biases_of(world.dir / "on/final") == expected));
  world.settings.run = world.dir / "still";
  world.settings.router.router = "top2:bias=0";
  world.train();
  CHECK((biases_of(world.dir / "still/final") == expected));
  world.settings.run = world.dir / "frozen";
  world.settings.router.router = "";
  world.settings.trained = {"experts"};
  world.train();
  CHECK((biases_of(world.dir / "frozen/final") == expected));
  world.settings.trained.clear();
  world.settings.run = world.dir / "without";
  world.settings.router.router = "top2";
  CHECK_FALSE(world.train()[0].bias_max);
  CHECK(biases_of(world.dir / "without/final").empty());
  CHECK(read_json(world.dir / "without/final/config.json")["model_type"] == "qwen2_moe");
}

TEST_CASE("a router that is given a bias begins with zeros, and its loss of balance is off",
          "[train]") {
  World world("top2");
  world.settings.steps = 3;
  const auto plain = world.train();
  world.settings.run = world.dir / "still";
  world.settings.router.router = "top2:bias=0";
  world.settings.lb_coef = 0.01;
  CHECK(losses(world.train()) == losses(plain));
  world.settings.run = world.dir / "moves";
  world.settings.router.router = "top2:bias=0.125";
  world.settings.lb_coef.reset();
  const auto moved = world.train();
  CHECK(moved[0].loss == plain[0].loss);
  CHECK(*moved[0].bias_max == 0);
  CHECK(*moved[1].bias_max == 0.125);
  CHECK(*moved[0].auxiliary == 0);
}

TEST_CASE("a step that moves no weight moves no bias", "[train]") {
  World world("top2:bias=0.125");
  world.settings.steps = 4;
  world.settings.lr = 1e30;  // the second step's loss is no number
  world.settings.clip = 0;
  std::vector<StepRecord> records;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepRecord& record) { records.push_back(record); };
  try {
    train::train(world.settings, callbacks);
  } catch (const std::runtime_error&) {  // several in a row
  }
  REQUIRE(records.size() >= 3);
  REQUIRE(records[1].skipped);
  CHECK(*records[1].bias_max == 0.125);
  CHECK(*records[2].bias_max == 0.125);
}

TEST_CASE("lambda of a ReLU router follows the sparsity of each step", "[train]") {
  World world("relu:k=1");
  const auto records = world.train();
  double lambda = 1e-8;
  for (const auto& record : records) {
    CHECK(*record.lambda == lambda);
    lambda = *record.sparsity < 0.75 ? lambda * 1.2 : lambda / 1.2;
  }
}

TEST_CASE("lambda keeps its value while the routers are frozen", "[train]") {
  World world("relu:k=1");
  world.settings.trained = {"experts"};
  world.settings.steps = 12;
  world.settings.lambda = 0.25;
  std::string said;
  TrainCallbacks callbacks;
  callbacks.on_start = [&](const RunPlan& plan) { said = plan.losses; };
  callbacks.on_step = [](const StepRecord& record) { CHECK(*record.lambda == 0.25); };
  train::train(world.settings, callbacks);
  CHECK(said.find("lambda stays 0.25, as no router is trained") != std::string::npos);
  CHECK(read_json(world.settings.run / "final/config.json")["moe"]["lambda"] == 0.25);
}

TEST_CASE("only the biases of routers that train follow the load", "[train]") {
  World world("top2:bias=0.125");
  world.settings.trained = {"model.layers.0.*"};  // the other MoE layer is frozen
  world.settings.steps = 3;
  world.train();
  const auto biases = biases_of(world.settings.run / "final");
  REQUIRE(biases.size() == 2);
  CHECK_FALSE(biases[0] == std::vector<float>(4, 0));
  CHECK(biases[1] == std::vector<float>(4, 0));
}

TEST_CASE("lambda goes on from the folder that was trained, and from where it is told", "[train]") {
  World world("relu:k=1");
  const auto first = world.train();
  const double sparsity = *first.back().sparsity, lambda = *first.back().lambda;
  const double next = sparsity < 0.75 ? lambda * 1.2 : lambda / 1.2;
  const fs::path trained = world.settings.run / "final";
  CHECK(read_json(trained / "config.json")["moe"]["lambda"].get<double>() == next);
  world.settings.model = trained;
  world.settings.run = world.dir / "on";
  const auto second = world.train();
  CHECK(*second.front().lambda == next);
  CHECK(read_file(world.dir / "on/settings.toml").find(fmt::format("lambda = {}\n", next)) !=
        std::string::npos);
  world.settings.steps = 1;
  world.settings.run = world.dir / "anew";
  world.settings.router.router = "relu:k=1,lambda0=1e-4";
  CHECK(*world.train().front().lambda == 1e-4);
  world.settings.run = world.dir / "told";
  world.settings.lambda = 0.5;
  CHECK(*world.train().front().lambda == 0.5);
}

TEST_CASE("a run with a forced gate goes on without force, which would begin anew", "[train]") {
  World world("top2");
  world.settings.router.router = "top2:gate=none";
  CHECK(test::user_error_of([&] { world.train(); }).find("add --force if that is meant") !=
        std::string::npos);
  world.settings.force = true;
  TrainCallbacks callbacks;
  int64_t done = 0;
  callbacks.on_step = [&](const StepRecord& record) { done = record.step; };
  callbacks.stop_requested = [&] { return done == 3; };
  CHECK_THROWS_AS(train::train(world.settings, callbacks), Interrupted);
  world.settings.force = false;
  CHECK(world.train().size() == 9);  // steps 4 to 12
}

TEST_CASE("the folder stores the coefficients that it was trained with", "[train]") {
  World world("topp:0.4");
  world.settings.steps = 1;
  world.settings.lb_coef = 0.125;
  world.settings.entropy_coef = 0;
  world.train();
  Json moe = read_json(world.settings.run / "final" / "config.json")["moe"];
  CHECK(moe["lb_coef"] == 0.125);
  CHECK(moe["entropy_coef"] == 0.0);
  CHECK_FALSE(moe.contains("lambda"));
  world.settings.model = world.settings.run / "final";
  world.settings.run = world.dir / "top";
  world.settings.router.router = "top1";
  world.settings.lb_coef.reset();
  world.settings.entropy_coef.reset();
  world.train();
  moe = read_json(world.settings.run / "final" / "config.json")["moe"];
  CHECK(moe["lb_coef"] == 0.01);  // another family: its default
  CHECK(moe["entropy_coef"] == 0.0);
}

TEST_CASE(
    "z-loss and balance within sequences stand in the metrics and the folder where they are in "
    "force, and nowhere else",
    "[train]") {
  World world("top2+ir");
  world.settings.steps = 2;
  const auto silent = world.train();
  CHECK_FALSE(to_json(silent[0]).contains("z_loss"));
  CHECK_FALSE(to_json(silent[0]).contains("sequence_balance_loss"));
  const Json before = read_json(world.settings.run / "final" / "config.json")["moe"];
  CHECK_FALSE(before.contains("z_coef"));
  CHECK_FALSE(before.contains("seq_lb_coef"));
  CHECK(read_file(world.settings.run / "settings.toml").find("z-coef") == std::string::npos);

  world.settings.run = world.dir / "both";
  world.settings.z_coef = 0.125;
  world.settings.seq_lb_coef = 0.0625;
  const auto records = world.train();
  const OrderedJson line = to_json(records[0]);
  CHECK(line["z_loss"].get<double>() > 0);
  CHECK(line["sequence_balance_loss"].get<double>() > 0);
  CHECK(*records[0].auxiliary ==
        Approx(0.01 * *records[0].load_balance_loss + 0.125 * *records[0].z_loss +
               0.0625 * *records[0].sequence_balance_loss));
  CHECK(records[0].load_balance_loss == silent[0].load_balance_loss);
  const Json moe = read_json(world.settings.run / "final" / "config.json")["moe"];
  CHECK(moe["z_coef"] == 0.125);
  CHECK(moe["seq_lb_coef"] == 0.0625);
  const std::string toml = read_file(world.settings.run / "settings.toml");
  CHECK(toml.find("z-coef = 0.125\nseq-lb-coef = 0.0625\n") != std::string::npos);

  // The folder's coefficients are the next run's, until it is told otherwise.
  world.settings.model = world.settings.run / "final";
  world.settings.run = world.dir / "on";
  world.settings.z_coef.reset();
  world.settings.seq_lb_coef = 0;
  const auto on = world.train();
  CHECK(on[0].z_loss);
  CHECK_FALSE(on[0].sequence_balance_loss);
  const Json after = read_json(world.settings.run / "final" / "config.json")["moe"];
  CHECK(after["z_coef"] == 0.125);
  CHECK_FALSE(after.contains("seq_lb_coef"));
}

TEST_CASE("a z-loss keeps the normaliser of the router smaller than a run without one does",
          "[train]") {
  World world("top2");
  world.settings.steps = 12;
  world.settings.z_coef = 1e-9;  // to be told of it
  const auto free = world.train();
  world.settings.run = world.dir / "held";
  world.settings.z_coef = 0.5;
  const auto held = world.train();
  CHECK(*held.front().z_loss == *free.front().z_loss);
  CHECK(*held.back().z_loss < 0.9 * *free.back().z_loss);
}

TEST_CASE("the plan says what is minimised", "[train]") {
  for (const auto& [router, losses] :
       {std::pair("top1", "language model + 0.01 x load balance (of first choices)"),
        std::pair(
            "topp:0.4",
            "language model + 0.01 x load balance (of selected experts) + 0.0001 x entropy")}) {
    World world(router);
    world.settings.steps = 1;
    std::string said;
    TrainCallbacks callbacks;
    callbacks.on_start = [&](const RunPlan& plan) { said = plan.losses; };
    train::train(world.settings, callbacks);
    CHECK(said == losses);
  }
}

TEST_CASE("the router trained with is the one that the folder stores", "[train]") {
  World world("top1");
  world.settings.router = {"top1+ir+fr", "", 4};
  world.settings.steps = 1;
  world.train();
  const Json config = read_json(world.settings.run / "final" / "config.json");
  CHECK(config["moe"]["router"]["ir"] == true);
  CHECK(config["moe"]["router"]["fr"] == true);
  CHECK(config["moe"]["ep_ranks"] == 4);
  CHECK(read_file(world.settings.run / "settings.toml").find("lb-coef = 0.01\n") !=
        std::string::npos);
}

TEST_CASE("checkpoints come every so many steps and the newest stay", "[train]") {
  World world;
  world.settings.save_every = 2;
  world.settings.keep = 3;
  world.train();
  const fs::path checkpoints = world.settings.run / "checkpoints";
  for (const int step : {2, 4, 6}) {
    CHECK_FALSE(fs::exists(checkpoints / fmt::format("step-{}", step)));
  }
  for (const int step : {8, 10, 12}) {
    CHECK(fs::exists(checkpoints / fmt::format("step-{}", step) / "model.safetensors"));
  }
  CHECK(read_file(checkpoints / "step-12" / "model.safetensors") ==
        read_file(world.settings.run / "final" / "model.safetensors"));
}

TEST_CASE("a loss that is no number names the step and the last good checkpoint", "[train]") {
  World world;
  world.settings.save_every = 1;
  world.settings.lr = 1e30;
  world.settings.schedule = ScheduleKind::kConstant;
  world.settings.warmup = 4;  // step 1 takes lr / 4, which is enough
  std::string message;
  try {
    world.train();
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  INFO(message);
  CHECK(message.rfind("step 2: the ", 0) == 0);
  std::istringstream lines(read_file(world.settings.run / "metrics.jsonl"));
  std::string line;
  for (int step = 1; std::getline(lines, line); ++step) {
    const Json json = parse_json(line, "metrics.jsonl");
    CHECK(json.contains("skipped") == (step > 1));
    CHECK(json["skipped_steps"] == step - 1);
    if (step > 1) {
      CHECK(json["skipped"] == "not finite");
      CHECK(message.find(json["skipped_why"].get<std::string>()) != std::string::npos);
    }
  }
  CHECK(message.find("no checkpoint was saved before") !=
        std::string::npos);  // that of step 1 began the bad step
  CHECK_FALSE(fs::exists(world.settings.run / "final"));
  CHECK_FALSE(fs::exists(world.settings.run / "checkpoints" / "step-1"));
}

TEST_CASE("a stop finishes the step, saves it and says where", "[train]") {
  World world;
  TrainCallbacks callbacks;
  int64_t done = 0;
  callbacks.on_step = [&](const StepRecord& record) { done = record.step; };
  callbacks.stop_requested = [&] { return done == 3; };
  std::string message;
  try {
    train::train(world.settings, callbacks);
  } catch (const Interrupted& stopped) {
    message = stopped.what();
  }
  const auto saved = world.settings.run / "checkpoints" / "step-3";
  CHECK(message ==
        "stopped after step 3 of 12; saved " + saved.string() + "; run the same command to resume");
  CHECK(fs::exists(saved / "model.safetensors"));
  CHECK_FALSE(fs::exists(world.settings.run / "final"));
}

TEST_CASE("epochs become steps, rounded up", "[train]") {
  World world;
  world.settings.steps.reset();
  world.settings.epochs = 1.5;  // 24 rows, 4 a step: 9 steps
  CHECK(world.train().size() == 9);
  world.settings.run = world.dir / "again";
  world.settings.epochs = 1.01;
  CHECK(world.train().size() == 7);
}

TEST_CASE("what a user gets wrong is found before the run's folder is made", "[train]") {
  const auto error_of = [](const std::string& router, const std::function<void(World&)>& change) {
    World world(router);
    change(world);
    const std::string message = test::user_error_of([&] { world.train(); });
    CHECK_FALSE(fs::exists(world.settings.run));
    return message;
  };
  const auto contains = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  const route::RouterRequest top1{"top1", "", {}};
  contains(error_of("", [&](World& w) { w.settings.router = top1; }),
           "is a dense folder; add --upcycle N, or upcycle it first");
  contains(error_of("top1", [](World& w) { w.settings.router.ep_ranks = 3; }),
           "--ep-ranks 3 does not divide the 4 experts");
  contains(error_of("relu:k=1", [&](World& w) { w.settings.router = top1; }),
           "ReLU and softmax logits mean different things");
  contains(error_of("relu:k=1", [](World& w) { w.settings.lb_coef = 0.01; }),
           "--lb-coef 0.01: relu:k=1 has no load-balance loss");
  contains(error_of("", [](World& w) { w.settings.entropy_coef = 0.01; }),
           "which has no router to weigh a loss of");
  contains(error_of("", [](World& w) { w.settings.z_coef = 0.01; }),
           "which has no router to weigh a loss of");
  contains(error_of("", [](World& w) { w.settings.seq_len = 10; }),
           "rows.jsonl line 4: the example has 11 tokens, --seq-len is 10; raise it");
  contains(error_of("", [](World& w) { w.settings.seq_len = 129; }),
           "--seq-len 129: the model was made for 128 positions");
  contains(error_of("", [](World& w) { w.settings.model = w.dir / "nothing"; }), "nothing");
  contains(error_of("",
                    [](World& w) {
                      test::write_file(w.dir / "rows.jsonl", R"({"instruction":"a","output":"b"})");
                    }),
           "tokenizer.model");
}

TEST_CASE("a run that is there is left when finished, refused when other, replaced with force",
          "[train]") {
  World world;
  world.settings.steps = 1;
  world.train();
  CHECK(world.train().empty());
  world.settings.steps = 2;
  CHECK(test::user_error_of([&] { world.train(); }).find("steps was 1, is 2") != std::string::npos);
  world.settings.force = true;
  CHECK(world.train().size() == 2);
}

TEST_CASE("a stop while the data are read ends there and makes no run", "[train]") {
  World world;
  TrainCallbacks callbacks;
  callbacks.stop_requested = [] { return true; };
  CHECK_THROWS_WITH(train::train(world.settings, callbacks),
                    "stopped while the data were read, nothing was saved");
  CHECK_FALSE(fs::exists(world.settings.run));
}

TEST_CASE("a step says how much of its time it waited for data", "[train]") {
  World world;
  for (const auto& record : world.train()) {
    CHECK(record.data_wait_seconds > 0);  // a lock at least
    CHECK(record.data_wait_seconds <= record.seconds);
  }
  std::istringstream lines(read_file(world.settings.run / "metrics.jsonl"));
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(Json::parse(line).contains("data_wait_seconds"));
}

TEST_CASE("a run that was stopped goes on bit for bit, whatever the router and its losses",
          "[train]") {
  for (const auto& [router, with_losses] :
       {std::pair("", false), std::pair("top1+ir+fr", false), std::pair("top2+ir", true),
        std::pair("topp:0.4", false), std::pair("relu:k=1", false),
        std::pair("top2+ir+fr:bias=0.01", false)}) {
    INFO(router);
    World world(router);
    world.settings.global_batch = 8;
    if (with_losses) {
      world.settings.z_coef = world.settings.seq_lb_coef = 0.1;
    }
    world.train();
    const fs::path whole = world.settings.run;
    const std::string weights = read_file(whole / "final" / "model.safetensors");
    world.settings.run = world.dir / "stopped";
    world.settings.save_every = 5;
    train_until(world, 3);
    train_until(world, 4);   // one step after going on
    train_until(world, 11);  // over the checkpoint of step 5
    CHECK(world.train().size() == 1);
    CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
    CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
  }
}

TEST_CASE("a bf16 folder goes on from its f32 weights", "[train]") {
  World world;
  const auto as_bf16 = [&](const fs::path& folder) {
    const io::Checkpoint parent(world.dir / "dense");
    model::UpcycleSettings upcycle;
    upcycle.out = folder;
    upcycle.experts = 2;
    upcycle.router = route::parse_router("top1+ir");
    upcycle.dtype = io::DType::kBF16;
    model::upcycle(parent, model::plan_upcycle(parent, upcycle), upcycle);
  };
  as_bf16(world.dir / "bf16");
  world.settings.model = world.dir / "bf16";
  world.train();
  const std::string weights = read_file(world.settings.run / "final" / "model.safetensors");
  world.settings.run = world.dir / "stopped";
  train_until(world, 7);
  world.train();
  CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
}

TEST_CASE("a damaged checkpoint is named and the one before it is used", "[train]") {
  World world("relu:k=1");
  world.train();
  const std::string weights = read_file(world.settings.run / "final" / "model.safetensors");
  world.settings.run = world.dir / "damaged";
  world.settings.save_every = 2;
  train_until(world, 9);
  const fs::path newest = world.settings.run / "checkpoints" / "step-9" / "state.safetensors";
  fs::resize_file(newest, fs::file_size(newest) - 1);
  std::vector<std::string> notes;
  int64_t first_step = 0;
  TrainCallbacks callbacks;
  callbacks.on_start = [&](const RunPlan& plan) {
    notes = plan.notes;
    first_step = plan.first_step;
  };
  train::train(world.settings, callbacks);
  CHECK(first_step == 8);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].find("state.safetensors is not as it was written") != std::string::npos);
  CHECK(notes[1].find("resuming from step 8") == 0);
  CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
}

TEST_CASE("a checkpoint without a state is refused as a place to go on from", "[train]") {
  World world;
  const io::Checkpoint checkpoint(world.dir / "dense");
  auto model = model::Llama::load(checkpoint);
  AdamW optimizer(model.parameters(), {});
  CHECK(test::user_error_of([&] {
          restore(world.dir / "dense", model, optimizer);
        }).find("has no state.safetensors, so training cannot be resumed from it") !=
        std::string::npos);
}

TEST_CASE("only what --train names changes, and such a run goes on too", "[train]") {
  for (const std::string word : {"experts", "router", "embeddings"}) {
    INFO(word);
    World world("top2");
    world.settings.trained = {word};
    world.settings.steps = 4;
    world.train();
    const io::Checkpoint before(world.settings.model), after(world.settings.run / "final");
    int64_t changed = 0;
    for (const auto& info : before.tensors()) {
      const auto old_bytes = before.bytes(info.name), new_bytes = after.bytes(info.name);
      if (!std::equal(old_bytes.begin(), old_bytes.end(), new_bytes.begin(), new_bytes.end())) {
        ++changed;
        const bool is_expert = info.name.find(".experts.") != std::string::npos;
        const bool is_router = info.name.ends_with(".mlp.gate.weight");
        const bool is_embedding =
            info.name == "model.embed_tokens.weight" || info.name == "lm_head.weight";
        CHECK((word == "experts" ? is_expert : word == "router" ? is_router : is_embedding));
      }
    }
    CHECK(changed > 0);
    const std::string weights = read_file(world.settings.run / "final" / "model.safetensors");
    world.settings.run = world.dir / "stopped";
    train_until(world, 2);
    world.train();
    CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
  }
}

TEST_CASE("adapters train in place of weights and are merged into the saved folder", "[train]") {
  World world("top2:cf=inf");
  world.settings.lora = {4, 8, {"attention", "ffn"}};
  world.settings.steps = 6;
  const auto records = world.train();
  CHECK(records.back().loss < records.front().loss);
  const io::Checkpoint before(world.settings.model), after(world.settings.run / "final");
  for (const auto& info : before.tensors()) {
    INFO(info.name);
    const auto old_bytes = before.bytes(info.name), new_bytes = after.bytes(info.name);
    const bool same = std::equal(old_bytes.begin(), old_bytes.end(), new_bytes.begin());
    const bool is_frozen = info.name.find("norm") != std::string::npos ||
                           info.name.find("embed") != std::string::npos ||
                           info.name.find("shared_expert") != std::string::npos ||
                           info.name == "lm_head.weight";
    CHECK(same == is_frozen);  // every matrix has an adapter, and the router trains beside them
  }
  CHECK(before.tensors().size() == after.tensors().size());
  const std::string weights = read_file(world.settings.run / "final" / "model.safetensors");
  world.settings.run = world.dir / "stopped";
  train_until(world, 2);
  CHECK(read_train_state(world.settings.run / "checkpoints" / "step-2").group_tokens == 4 * 12);
  world.train();
  CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
}

TEST_CASE("runs in bf16 learn and go on bit for bit, layers computed again or not", "[train]") {
  for (const char* router : {"", "top1+ir+fr", "relu:k=1"}) {
    INFO(router);
    World world(router);
    const auto in_f32 = losses(world.train());
    world.settings.compute.precision = model::Precision::kBf16;
    world.settings.run = world.dir / "bf16";
    const auto in_bf16 = losses(world.train());
    CHECK(in_bf16 != in_f32);
    CHECK(in_bf16.front() == Approx(in_f32.front()).epsilon(0.005));
    CHECK(in_bf16.back() < 0.8 * in_bf16.front());
    const std::string weights = read_file(world.settings.run / "final" / "model.safetensors");
    world.settings.compute.recompute = model::Recompute::kLayer;
    world.settings.run = world.dir / "stopped";
    train_until(world, 7);
    world.train();
    CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
  }
}
