#include "core/train/config/settings.h"

#include <functional>

#include "core/route/route.h"
#include "core/train/loop/plan.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using route::parse_router;

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

model::MoeConfig folder(const std::string& router) {
  model::MoeConfig moe;
  moe.router = parse_router(router);
  moe.experts = 8;
  moe.lb_coef = 0.5;
  moe.entropy_coef = 0.25;
  return moe;
}

TrainSettings resolved(const std::string& stored, const std::string& router,
                       TrainSettings settings = {}, std::optional<double> lambda = {}) {
  model::MoeConfig moe = folder(stored);
  moe.lambda = lambda;
  route::ResolvedRouter run{parse_router(router), 1, {}, false};
  run.sets_lambda0 = router.find("lambda0") != std::string::npos;
  resolve_coefficients(settings, moe, run);
  return settings;
}

std::string described(const std::string& router, TrainSettings settings = {}) {
  return describe_losses(resolved(router, router, std::move(settings)), parse_router(router), 8);
}

// Reference: the share of requests that capacity refuses, over all choices of k of E experts by
// `tokens` tokens.
double counted_share(int64_t tokens, int64_t experts, int64_t k, int64_t slots) {
  std::vector<int64_t> sets;  // of k experts, as bits
  for (int64_t set = 0; set < (int64_t{1} << experts); ++set) {
    if (__builtin_popcountll(static_cast<uint64_t>(set)) == k) {
      sets.push_back(set);
    }
  }
  int64_t ways = 0, refused = 0;
  std::vector<int64_t> load(static_cast<size_t>(experts));
  const std::function<void(int64_t)> choose = [&](int64_t token) {
    if (token == tokens) {
      ++ways;
      for (const int64_t requests : load) {
        refused += std::max<int64_t>(0, requests - slots);
      }
      return;
    }
    for (const int64_t set : sets) {
      for (int64_t expert = 0; expert < experts; ++expert) {
        load[static_cast<size_t>(expert)] += set >> expert & 1;
      }
      choose(token + 1);
      for (int64_t expert = 0; expert < experts; ++expert) {
        load[static_cast<size_t>(expert)] -= set >> expert & 1;
      }
    }
  };
  choose(0);
  return static_cast<double>(refused) / static_cast<double>(ways * tokens * k);
}

// Returns true if sum(w * U) with random U has a gradient in the logits.
bool has_gradient(const std::string& router, int64_t tokens, int64_t experts) {
  const auto settings = route::parse_router(router);
  const at::Tensor logits = at::randn({tokens, experts}).requires_grad_(true);
  const auto routing = route::route(logits, settings, route::partition_tokens(tokens, 1));
  (routing.combine * at::randn({tokens, experts})).sum().backward();
  // Gradients that cancel leave the rounding of a softmax, 1e-7 of numbers around 1.
  return logits.grad().abs().max().item<double>() > 1e-5;
}

// Checks that `facts` have one warning, with `part`.
void check_warning(const RunFacts& facts, const std::string& part) {
  const auto warnings = known_failures(facts);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], contains_text(part));
}

RunFacts run_facts(const std::string& router, int64_t experts, int64_t rank_tokens) {
  RunFacts facts;
  facts.router = route::parse_router(router);
  facts.experts = experts;
  facts.rank_tokens = rank_tokens;
  facts.balance_loss = true;
  return facts;
}

}  // namespace

TEST_CASE("settings that are not given get defaults from the papers, the model and the data") {
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

TEST_CASE("the micro-batch is the largest divisor of the global batch up to 8") {
  TrainSettings settings = with_data();
  settings.global_batch = 36;
  CHECK(resolve(settings, config_of(512), rows(false)).micro_batch == 6);
  settings.global_batch = 7;
  CHECK(resolve(settings, config_of(512), rows(false)).micro_batch == 7);
  settings.micro_batch = 2;
  CHECK_THAT(user_error_of([&] { resolve(settings, config_of(512), rows(false)); }),
             contains_text("--global-batch 7 is not a multiple of --micro-batch 2"));
}

TEST_CASE("a number out of range is refused with its flag and value") {
  using S = TrainSettings;
  struct Case {
    const char* facts;
    void (*change)(S& settings);
  };
  const Case cases[] = {
      {"--steps 0:", [](S& s) { s.steps = 0; }},
      {"--steps and --epochs", [](S& s) { s.steps = 1, s.epochs = 1; }},
      {"--epochs -1:", [](S& s) { s.epochs = -1; }},
      {"--micro-batch -2:", [](S& s) { s.micro_batch = -2; }},
      {"--seq-len 1:", [](S& s) { s.seq_len = 1; }},
      {"--seq-len 513: the model was made for 512 positions", [](S& s) { s.seq_len = 513; }},
      {"--warmup -1:", [](S& s) { s.warmup = -1; }},
      {"--lr -1:", [](S& s) { s.lr = -1; }},
      {"--min-lr 0.01 is above --lr 0.001", [](S& s) { s.lr = 1e-3, s.min_lr = 1e-2; }},
      {"--beta2 1:", [](S& s) { s.adamw.beta2 = 1; }},
      {"--clip nan:", [](S& s) { s.clip = std::nan(""); }},
      {"--skip-outliers 0:", [](S& s) { s.skip_outliers = 0; }},
      {"--skip-outliers 0.5:", [](S& s) { s.skip_outliers = 0.5; }},
      {"--skip-outliers -6:", [](S& s) { s.skip_outliers = -6; }},
      {"--skip-outliers nan:", [](S& s) { s.skip_outliers = std::nan(""); }},
      {"--save-every 0:", [](S& s) { s.save_every = 0; }},
      {"--keep 0:", [](S& s) { s.keep = 0; }},
      {"--lora -1:", [](S& s) { s.lora.rank = -1; }},
      {"--lora-alpha without --lora", [](S& s) { s.lora.alpha = 2; }},
      {"--lora-alpha -1:", [](S& s) { s.lora.rank = 4, s.lora.alpha = -1; }},
      {"--lora-on 'mlp' is unknown; known: attention, ffn",
       [](S& s) { s.lora.rank = 4, s.lora.on.assign(1, "mlp"); }},
      {"--precision tf32:", [](S& s) { s.compute.precision = model::Precision::kTf32; }}};
  for (const auto& [facts, change] : cases) {
    TrainSettings settings = with_data();
    change(settings);
    CHECK_THAT(user_error_of([&] { resolve(settings, config_of(512), rows(false)); }),
               contains_text(facts));
  }
}

TEST_CASE("settings.toml holds all settings of the run as a recipe") {
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

TEST_CASE("schedules warm up to lr and fall to min_lr") {
  using enum ScheduleKind;
  const auto rate = [](ScheduleKind kind, int64_t warmup, int64_t steps, int64_t step) {
    TrainSettings settings;
    settings.schedule = kind;
    settings.lr = 1e-3;
    settings.min_lr = 1e-4;
    settings.warmup = warmup;
    settings.steps = steps;
    return learning_rate(settings, step);
  };
  struct Case {
    ScheduleKind kind;
    int64_t warmup, steps, step;
    double lr;
  };
  for (const auto& [kind, warmup, steps, step, lr] : std::vector<Case>{
           {kCosine, 0, 101, 0, 1e-3},
           {kCosine, 0, 101, 25, 1e-4 + 9e-4 * 0.5 * (1 + 0.70710678118654752)},  // cos 45 degrees
           {kCosine, 0, 101, 50, 5.5e-4},
           {kCosine, 0, 101, 100, 1e-4},
           {kCosine, 0, 101, 500, 1e-4},
           {kWsd, 0, 101, 0, 1e-3},
           {kWsd, 0, 101, 89, 1e-3},  // 100 - ceil(10.1) = 89
           {kWsd, 0, 101, 95, 1e-3 - 9e-4 * 6 / 11},
           {kWsd, 0, 101, 100, 1e-4}}) {
    CAPTURE(static_cast<int>(kind), step);
    CHECK(rate(kind, warmup, steps, step) == Approx(lr));
  }
  for (int64_t step = 0; step < 10; ++step) {
    CHECK(rate(kLinear, 0, 10, step) == Approx(1e-3 - 1e-4 * static_cast<double>(step)));
    CHECK(rate(kConstant, 0, 10, step) == 1e-3);
  }
  for (const auto kind : {kCosine, kLinear, kConstant, kWsd}) {
    CAPTURE(static_cast<int>(kind));
    for (const auto& [step, lr] :
         {std::pair(0, 2.5e-4), std::pair(1, 5e-4), std::pair(3, 1e-3), std::pair(4, 1e-3),
          std::pair(19, kind == kConstant ? 1e-3 : 1e-4)}) {
      CHECK(rate(kind, 4, 20, step) == Approx(lr));
    }
    CHECK(rate(kind, 0, 1, 0) == Approx(1e-3));  // one step
    CHECK(rate(kind, 8, 4, 3) == Approx(5e-4));  // only warm-up
  }
}

TEST_CASE("a coefficient is that of the flag, else of the folder, else the default of the router") {
  CHECK(resolved("top2", "top1").lb_coef == 0.5);
  CHECK(resolved("topp:0.4", "top1").lb_coef == 0.01);
  CHECK(resolved("topp:0.4", "topp:0.3").entropy_coef == 0.25);
  CHECK(resolved("top1", "topp:0.4").entropy_coef == 1e-4);
  TrainSettings flags;
  flags.lb_coef = 0;
  flags.entropy_coef = 0.125;
  CHECK(resolved("topp:0.4", "topp:0.4", flags).lb_coef == 0);
  CHECK(resolved("topp:0.4", "topp:0.4", flags).entropy_coef == 0.125);
}

TEST_CASE("z-loss and sequence balance are off unless a flag or the folder gives a coefficient") {
  CHECK_FALSE(resolved("top2", "top1").z_coef);
  CHECK_FALSE(resolved("top2", "top1").seq_lb_coef);
  const auto resolved_pair = [](const std::string& router, std::optional<double> flag) {
    model::MoeConfig moe = folder("top2");
    moe.z_coef = 0.25;
    moe.seq_lb_coef = 0.125;
    TrainSettings settings;
    settings.z_coef = settings.seq_lb_coef = flag;
    resolve_coefficients(settings, moe, {parse_router(router), 1, {}, false});
    return std::pair(settings.z_coef, settings.seq_lb_coef);
  };
  using Both = std::pair<std::optional<double>, std::optional<double>>;
  CHECK((resolved_pair("top1", {}) == Both(0.25, 0.125)));
  CHECK((resolved_pair("top1", 0.5) == Both(0.5, 0.5)));
  CHECK((resolved_pair("top1", 0) == Both(0, 0)));                        // overrides the folder
  for (const char* router : {"topp:0.4", "expert-choice", "relu:k=1"}) {  // other families
    CHECK((resolved_pair(router, {}) == Both()));
  }
  TrainSettings flags;
  flags.z_coef = 0.001;
  flags.seq_lb_coef = 0.0001;
  CHECK_THAT(described("top1", flags), contains_text("0.5 x load balance") &&
                                           contains_text("0.001 x z-loss") &&
                                           contains_text("0.0001 x load balance"));
}

TEST_CASE("--lb-group is described, and refused for a router without a balance loss") {
  TrainSettings flags;
  flags.lb_group = route::LossGroup::kGlobal;
  CHECK_THAT(described("top1", flags), contains_text("(of first choices, over the step)"));
  CHECK_THAT(user_error_of([&] { described("expert-choice", flags); }),
             contains_text("--lb-group") && contains_text("equally many tokens"));
}

TEST_CASE("a bias replaces the load-balance loss unless a coefficient is given") {
  CHECK(resolved("top2", "top2:bias=0.001").lb_coef == 0);
  CHECK(resolved("top2:bias=0.01", "top2:bias=0.001").lb_coef == 0.5);  // that of the folder
  CHECK(resolved("top2:bias=0.01", "top2").lb_coef == 0.01);
  TrainSettings flags;
  flags.lb_coef = 0.125;
  CHECK(resolved("top2", "top2:bias=0.001", flags).lb_coef == 0.125);
  CHECK(route::default_lb_coef(parse_router("top2:bias=0")) == 0);
}

TEST_CASE("lambda is that of the flag, else a given lambda0, else of the folder, else lambda0") {
  CHECK(resolved("relu:k=1", "relu:k=1").lambda == 1e-8);
  CHECK(resolved("relu:k=1", "relu:k=1", {}, 0.75).lambda == 0.75);
  CHECK(resolved("relu:k=1", "relu:k=1,lambda0=0.5", {}, 0.75).lambda == 0.5);
  TrainSettings flags;
  flags.lambda = 0.25;
  CHECK(resolved("relu:k=1", "relu:k=1,lambda0=0.5", flags, 0.75).lambda == 0.25);
}

TEST_CASE("the description of the losses has each loss with its coefficient or as off") {
  TrainSettings no_balance, no_entropy;
  no_balance.lb_coef = 0;
  no_entropy.entropy_coef = 0;
  struct Case {
    const char* router;
    std::vector<std::string> facts;
    TrainSettings settings = {};
  };
  for (const auto& [router, facts, settings] : std::vector<Case>{
           {"top1+ir", {"0.5 x load balance (of first choices)"}},
           {"top2:lb=selected", {"0.5 x load balance (of selected experts)"}},
           {"topp:0.4", {"0.5 x load balance (of selected experts)", "0.25 x entropy"}},
           {"top1", {"load balance (of first choices) is off"}, no_balance},
           {"topp:0.4", {"0.5 x load balance", "entropy is off"}, no_entropy},
           {"relu:k=1", {"lambda x L1", "l1=refined", "1e-08", "by 1.2 after", "1 - 1/8 = 0.875"}},
           {"relu:k=2,lambda0=0.5,mult=1.5,l1=plain",
            {"lambda x L1", "l1=plain", "lambda is 0.5", "by 1.5 after", "1 - 2/8 = 0.75"}},
           {"relu:k=1,lambda0=0", {"is off"}}}) {
    const std::string text = described(router, settings);
    CHECK_THAT(text, contains_text("language model"));
    for (const auto& fact : facts) {
      CHECK_THAT(text, contains_text(fact));
    }
  }
  for (const auto& [router, fact] :
       {std::pair("relu:k=1", "lambda stays 1e-08"), std::pair("top2:bias=0.01", "bias")}) {
    CHECK_THAT(describe_losses(resolved(router, router), parse_router(router), 8,
                               /*router_trains=*/false),
               contains_text(fact) && contains_text("no router is trained"));
  }
}

TEST_CASE("a coefficient for a loss that the router does not have is refused by flag and router") {
  const auto refusal = [](const std::string& router, auto change) {
    TrainSettings settings;
    change(settings);
    return user_error_of([&] { resolved(router, router, settings); });
  };
  struct Case {
    const char* router;
    std::string facts;
    void (*change)(TrainSettings& settings);
  };
  for (const auto& [router, flag, change] : std::vector<Case>{
           {"relu:k=1", "--lb-coef 0.01: ", [](auto& s) { s.lb_coef = 0.01; }},
           {"relu:k=1", "--entropy-coef 1: ", [](auto& s) { s.entropy_coef = 1; }},
           {"top1", "--entropy-coef 1: ", [](auto& s) { s.entropy_coef = 1; }},
           {"top1", "--lambda 1: ", [](auto& s) { s.lambda = 1; }},
           {"topp:0.4", "--lambda 1: ", [](auto& s) { s.lambda = 1; }},
           {"relu:k=1", "--z-coef 0.001: ", [](auto& s) { s.z_coef = 0.001; }},
           {"relu:k=1", "--seq-lb-coef 1: ", [](auto& s) { s.seq_lb_coef = 1; }},
           {"expert-choice", "--seq-lb-coef 1: ", [](auto& s) { s.seq_lb_coef = 1; }}}) {
    CHECK(refusal(router, change).find(flag + router) == 0);
  }
  CHECK(refusal("expert-choice", [](auto& s) { s.z_coef = 1; }).empty());
  CHECK(refusal("relu:k=1", [](auto& s) { s.lb_coef = 0; }).empty());
  for (const auto& [flag, member] : {std::pair("--lb-coef", &TrainSettings::lb_coef),
                                     std::pair("--z-coef", &TrainSettings::z_coef),
                                     std::pair("--seq-lb-coef", &TrainSettings::seq_lb_coef)}) {
    TrainSettings dense;
    dense.model = "folder";
    dense.*member = 0.5;
    CHECK_THAT(user_error_of([&] { refuse_coefficients(dense); }),
               contains_text(std::string(flag) + " 0.5: folder is a dense folder"));
  }
}

// Warnings before the first step, against counts by hand and the gradients of the gates.

TEST_CASE("the share refused by chance is that of all possible choices") {
  const auto share = [](const std::string& router, int64_t tokens, int64_t experts) {
    return chance_refusal_share(route::parse_router(router), tokens, experts);
  };
  // C = 2; 4 tokens on 2 experts: (1 * 4 + 2 * 1) / 16 of the requests of each are too many.
  CHECK(share("top1", 4, 2) == Approx(2 * (6.0 / 16) / 4));
  CHECK(share("top1", 4, 2) == Approx(counted_share(4, 2, 1, 2)));
  CHECK(share("top1", 6, 3) == Approx(counted_share(6, 3, 1, 2)));
  CHECK(share("top2", 4, 4) == Approx(counted_share(4, 4, 2, 2)));
  CHECK(share("top2:cf=1", 5, 4) == Approx(counted_share(5, 4, 2, 2)));
  CHECK(share("top3:cf=1.5", 3, 4) == Approx(counted_share(3, 4, 3, 2)));
  CHECK(share("top1:cf=0.5", 6, 3) == Approx(counted_share(6, 3, 1, 1)));  // slots below the mean
  CHECK(share("top2:cf=1", 6, 2) == Approx(0.5));  // every token requests both experts
  CHECK(share("top1", 100'000'000, 8) < 1.1e-4);   // in short time
  CHECK(share("top1:cf=0.5", 1'000'000, 8) == Approx(0.5));
  CHECK(share("top1", 0, 8) == 0);
  for (const char* router : {"top1:cf=inf", "topp:0.4", "relu:k=1", "expert-choice"}) {
    CHECK(share(router, 128, 8) == 0);
  }
}

TEST_CASE("router_learns_from_task() is true if the gates have a gradient") {
  at::manual_seed(1);
  for (const char* router :
       {"top1", "top1:st=off", "top1:cf=inf,st=off", "top1+ir:st=off", "top1+fr:st=off",
        "top1+ir+fr:st=off", "top1:gate=none,st=off", "top2:st=off", "top2:cf=inf", "topp:0.4",
        "topp:0.4,max=1", "relu:k=1", "expert-choice"}) {
    CAPTURE(router);
    CHECK(router_learns_from_task(route::parse_router(router), 4) == has_gradient(router, 64, 4));
  }
  CHECK_FALSE(router_learns_from_task(route::parse_router("top1:st=off"), 4));
  CHECK(router_learns_from_task(route::parse_router("top1:st=off"), 1));  // nothing to learn
}

TEST_CASE("each known failure has one warning") {
  CHECK(known_failures(run_facts("top1", 8, 1024)).empty());
  CHECK(known_failures(run_facts("top2:cf=inf,st=off", 8, 16)).empty());
  CHECK(known_failures({}).empty());

  auto facts = run_facts("top1:cf=inf,st=off", 8, 16);
  check_warning(facts, "only the load-balance loss moves the router");
  facts.balance_loss = false;
  check_warning(facts, "--lb-coef 0");
  facts.other_loss = true;
  check_warning(facts, "only the auxiliary losses move the router");

  facts = run_facts("top1+ir", 8, 128);
  check_warning(facts, "128 tokens per logical rank");
  check_warning(facts, "9.3 %");
  CHECK(known_failures(run_facts("top1:cf=1.5", 8, 128)).empty());  // slots enough
}

TEST_CASE("a learning rate far above the last one of the parent has a warning") {
  RunFacts facts;
  facts.lr = 1e-3;
  facts.last_lr = 1e-4;  // the end of a cosine schedule
  CHECK(known_failures(facts).empty());
  facts.lr = 4e-3;
  check_warning(facts, "--lr 0.004 is 40 times");
  check_warning(facts, "0.001 or less");
  facts.last_lr = 0;  // no ratio
  CHECK(known_failures(facts).empty());
}
