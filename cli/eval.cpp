// moe eval: benchmark accuracy, or the log-likelihoods of any (context, continuation) pairs.

#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/eval/evaluate.h"
#include "core/route/counters_json.h"

namespace moe::cli {

namespace {

struct EvalFlags {
  eval::EvalSettings settings;
  std::string requests, bos = "auto", compat = "current", device;
  std::vector<std::filesystem::path> texts;
  std::vector<std::string> stats_by;
  int threads = 0;
  bool quiet = false, json = false, list = false, items = false;
};

void check_stats(const EvalFlags& flags) {
  if (flags.settings.stats.empty() && !flags.stats_by.empty()) {
    throw UserError("--stats-by says how to split the file of --stats; give --stats FILE too");
  }
  if (flags.settings.stats_by.task && flags.settings.tasks.empty()) {
    throw UserError("--stats-by task needs --tasks; leave it out, or name source or token");
  }
}

void check(const EvalFlags& flags) {
  if (flags.settings.model.empty()) {
    throw UserError("MODEL is missing: moe eval MODEL --tasks ..; --list shows the tasks");
  }
  std::vector<std::string> given;
  for (const auto& [flag, is_given] : {std::pair("--tasks", !flags.settings.tasks.empty()),
                                       std::pair("--requests", !flags.requests.empty()),
                                       std::pair("--stats-text", !flags.texts.empty())}) {
    if (is_given) {
      given.emplace_back(flag);
    }
  }
  if (given.empty()) {
    throw UserError(
        "nothing to evaluate: give --tasks NAME,.. with --data DIR, or --requests FILE.jsonl, or "
        "--stats-text FILE for its routing alone");
  }
  if (given.size() > 1) {
    throw UserError("{} together; run them one after the other", fmt::join(given, " and "));
  }
  if (flags.settings.tasks.empty() && !flags.settings.out.empty()) {
    throw UserError("{} prints its results to standard output; leave out -o", given.front());
  }
  if (flags.settings.tasks.empty() && !flags.settings.against.empty()) {
    throw UserError("{} has nothing to compare; --against needs --tasks", given.front());
  }
  if (flags.items && flags.settings.against.empty()) {
    throw UserError("--items lists where two runs differ; give --against DIR too");
  }
  check_stats(flags);
}

// Notes and a bar on standard error.
class Display {
 public:
  explicit Display(bool quiet) : quiet_(quiet) {}

  eval::EvalEvents events() {
    return {[this](const std::string& sentence) { note(sentence); },
            [this](const std::string& what, int64_t requests) {
              bar_ = std::make_unique<Progress>(
                  what, "requests", static_cast<uint64_t>(requests), quiet_);
            },
            [this](int64_t done) { bar_->set(static_cast<uint64_t>(done)); }};
  }
  void finish() { bar_.reset(); }

 private:
  void note(const std::string& sentence) const {
    if (!quiet_) {
      const bool warns = sentence.rfind("warning: ", 0) == 0;
      fmt::print(stderr, "{}{}\n", warns ? "" : "note: ", sentence);
    }
  }

  bool quiet_ = false;
  std::unique_ptr<Progress> bar_;
};

// One line a task that says how its MoE layers routed, then a table of the layers.
void print_routing(const eval::RunReport& report) {
  for (const auto& task : report.tasks) {
    if (report.router.empty()) {
      return;
    }
    if (!task.answers.empty()) {
      continue;  // not counted while answers are written
    }
    fmt::print("{}: router {}, {} logical rank{}, {}, {:.2f} % of requests dropped\n",
               task.loaded.task.name,
               report.router,
               report.ep_ranks,
               report.ep_ranks == 1 ? "" : "s",
               report.group_tokens == 0
                   ? std::string("no capacity")
                   : fmt::format("groups of up to {} tokens", report.group_tokens),
               100 * eval::drop_rate(task));
  }
  if (report.routing) {
    fmt::print("\n{}", route::routing_table(report.routing->moe_layers, report.routing->layers));
  }
}

void run_tasks(const EvalFlags& flags, Display& display) {
  const eval::RunReport report = eval::evaluate(flags.settings, display.events());
  display.finish();
  if (flags.json) {
    fmt::print("{}\n", eval::results_json(report).dump(2));
    return;
  }
  fmt::print("{}", eval::results_table(report));
  if (flags.items) {
    fmt::print("\n{}", eval::to_item_list(report.against));
  }
  print_routing(report);
}

void run_requests(const EvalFlags& flags, Display& display) {
  const eval::Scores scores =
      eval::evaluate_requests(flags.settings, flags.requests, display.events());
  display.finish();
  for (const auto& score : scores.scores) {
    const OrderedJson line = {
        {"logprob", score.logprob}, {"is_greedy", score.is_greedy}, {"tokens", score.tokens}};
    fmt::print("{}\n", line.dump());
  }
}

void run_texts(const EvalFlags& flags, Display& display) {
  const eval::RoutingStats stats =
      eval::evaluate_texts(flags.settings, flags.texts, display.events());
  display.finish();
  if (flags.json) {
    fmt::print("{}\n", eval::stats_json(stats).dump(2));
  } else {
    fmt::print("{}", route::routing_table(stats.moe_layers, stats.layers));
  }
}

void run(EvalFlags& flags) {
  if (flags.list) {
    fmt::print("{}", eval::task_list());
    return;
  }
  flags.settings.stats_by = eval::parse_stats_by(flags.stats_by);
  check(flags);
  apply_threads(flags.threads);
  flags.settings.bos = eval::parse_bos(flags.bos);
  flags.settings.compat = eval::parse_compat(flags.compat);
  Display display(flags.quiet);
  if (!flags.settings.tasks.empty()) {
    run_tasks(flags, display);
  } else if (!flags.requests.empty()) {
    run_requests(flags, display);
  } else {
    run_texts(flags, display);
  }
  if (std::fflush(stdout) != 0) {
    throw UserError("standard output: cannot be written; is the disk full?");
  }
}

void add_input_flags(CLI::App& command, EvalFlags& flags) {
  command.add_option("MODEL", flags.settings.model, "model folder, dense or MoE");
  command
      .add_option("--tasks",
                  flags.settings.tasks,
                  "tasks and groups (--list), or files of your own: TASK.json or TASK.toml in the "
                  "words of the harness's task files, QUIZ.jsonl with lines of {\"question\" or "
                  "\"context\", \"choices\", \"answer\"}")
      ->delimiter(',');
  command.add_option(
      "--data",
      flags.settings.data,
      "folder of the benchmarks' own files, or of JSONL and CSV exported from the Hub's data sets "
      "(--list says where each is expected)");
  command.add_flag("--list", flags.list, "show all tasks and groups, and where their files belong");
  command.add_option("--requests",
                     flags.requests,
                     "JSONL of {\"context\", \"continuation\"} (- = standard input): prints "
                     "{\"logprob\", \"is_greedy\", \"tokens\"} a line");
  command
      .add_option("--limit",
                  flags.settings.limit,
                  "only the first N questions of each task, requests, or texts of each file")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

void add_rule_flags(CLI::App& command, EvalFlags& flags) {
  command
      .add_option("--num-fewshot",
                  flags.settings.shots,
                  "examples before each question, drawn as lm-evaluation-harness draws them")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}));
  command.add_option("--compat",
                     flags.compat,
                     "whose definitions and defaults: current (lm-evaluation-harness 0.4.13) or "
                     "0.4.1, the papers' time");
  command.add_option("--against",
                     flags.settings.against,
                     "folder of another run's sample logs: print the differences, with McNemar's "
                     "test");
  command.add_flag("--items", flags.items, "with --against: list the questions that differ");
}

void add_stats_flags(CLI::App& command, EvalFlags& flags) {
  command.add_option("--stats",
                     flags.settings.stats,
                     "JSON file for what the routing of a mixture did, in total and by layer");
  command
      .add_option("--stats-by",
                  flags.stats_by,
                  "also by source (a record's \"source\", else its file), task, token (entry of "
                  "the vocabulary); layer is always there")
      ->delimiter(',');
  command
      .add_option("--stats-text",
                  flags.texts,
                  "instead of --tasks: text files, or JSON records with \"text\" and \"source\", "
                  "run for their routing alone in windows of up to 2048 tokens")
      ->delimiter(',');
}

// The flag's number: 0 for auto.
std::string batch_tokens_of(const std::string& text) {
  if (text == "auto") {
    return "0";
  }
  std::string number = text;
  const std::string wrong = CLI::Range(int64_t{1}, int64_t{1} << 30)(number);
  if (!wrong.empty()) {
    throw CLI::ValidationError(wrong + "; give a number or auto");
  }
  return number;
}

void add_scoring_flags(CLI::App& command, EvalFlags& flags) {
  command.add_option(
      "--bos",
      flags.bos,
      "auto (default: as tokenizer_config.json says), on or off: a BOS before the text");
  command
      .add_option("--batch-tokens",
                  flags.settings.batch_tokens,
                  "tokens of one forward, or auto (the default): 4096, fewer where a layer's "
                  "activations would pass 1 GiB; scores do not depend on it")
      ->transform(batch_tokens_of);
  command
      .add_option("--group-tokens",
                  flags.settings.group_tokens,
                  "tokens per logical rank that a router with a capacity routes together (4096)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "zero-shot accuracy on benchmark files");
  auto flags = std::make_shared<EvalFlags>();
  add_input_flags(*command, *flags);
  add_rule_flags(*command, *flags);
  command->add_option(
      "-o,--out", flags->settings.out, "folder for results.json and samples_*.jsonl");
  add_stats_flags(*command, *flags);
  add_scoring_flags(*command, *flags);
  add_router_flags(*command, flags->settings.router);
  add_device(*command, flags->device);
  add_threads(*command, flags->threads);
  add_quiet(*command, flags->quiet);
  add_json(*command, flags->json);
  add_force(*command, flags->settings.force, kForcedGate);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
