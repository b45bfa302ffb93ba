// moe eval: benchmark accuracy, or the log-likelihoods of any (context, continuation) pairs.

#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/eval/evaluate.h"

namespace moe::cli {

namespace {

struct EvalFlags {
  eval::EvalSettings settings;
  std::string requests, bos = "auto", device;
  int threads = 0;
  bool quiet = false, json = false;
};

void check(const EvalFlags& flags) {
  const bool has_tasks = !flags.settings.tasks.empty();
  if (has_tasks == !flags.requests.empty()) {
    throw UserError("{}",
                    has_tasks ? "--tasks and --requests together; run them one after the other"
                              : "nothing to evaluate: give --tasks NAME,.. with --data DIR, or "
                                "--requests FILE.jsonl");
  }
  if (!flags.requests.empty() && !flags.settings.out.empty()) {
    throw UserError("--requests prints its results to standard output; leave out -o");
  }
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

// One line a task that says how its MoE layers routed.
void print_routing(const eval::RunReport& report) {
  for (const auto& task : report.tasks) {
    if (report.router.empty()) {
      return;
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
}

void run_tasks(const EvalFlags& flags, Display& display) {
  const eval::RunReport report = eval::evaluate(flags.settings, display.events());
  display.finish();
  if (flags.json) {
    fmt::print("{}\n", eval::results_json(report).dump(2));
    return;
  }
  fmt::print("{}", eval::results_table(report));
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

void run(EvalFlags& flags) {
  check(flags);
  apply_threads(flags.threads);
  flags.settings.bos = eval::parse_bos(flags.bos);
  Display display(flags.quiet);
  if (flags.requests.empty()) {
    run_tasks(flags, display);
  } else {
    run_requests(flags, display);
  }
  if (std::fflush(stdout) != 0) {
    throw UserError("standard output: cannot be written; is the disk full?");
  }
}

void add_input_flags(CLI::App& command, EvalFlags& flags) {
  command.add_option("MODEL", flags.settings.model, "model folder, dense or MoE")->required();
  command
      .add_option("--tasks",
                  flags.settings.tasks,
                  "logiqa, arc_easy, arc_challenge, piqa, hellaswag, or FILE.jsonl: lines of "
                  "{\"question\" or \"context\", \"choices\", \"answer\"}; a question is asked as "
                  "'Question: ..' and a line 'Answer:', a context as it stands; a choice follows "
                  "after a space")
      ->delimiter(',');
  command.add_option(
      "--data",
      flags.settings.data,
      "folder of the benchmarks' own files: logiqa/Test.txt, arc/ARC-Easy-Test.jsonl, "
      "piqa/valid.jsonl, hellaswag/hellaswag_val.jsonl, ..");
  command.add_option("--requests",
                     flags.requests,
                     "JSONL of {\"context\", \"continuation\"} (- = standard input): prints "
                     "{\"logprob\", \"is_greedy\", \"tokens\"} a line");
  command.add_option("--limit", flags.settings.limit, "only the first N questions of each task")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

void add_scoring_flags(CLI::App& command, EvalFlags& flags) {
  command.add_option(
      "--bos",
      flags.bos,
      "auto (default: as tokenizer_config.json says), on or off: a BOS before the text");
  command
      .add_option("--batch-tokens",
                  flags.settings.batch_tokens,
                  "tokens of one forward (4096); scores do not depend on it")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
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
  command->add_option(
      "-o,--out", flags->settings.out, "folder for results.json and samples_*.jsonl");
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
