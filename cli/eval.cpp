// moe eval: benchmark accuracy, or the log-likelihoods of any (context, continuation) pairs.

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/process_start.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/text.h"
#include "core/eval/evaluate.h"
#include "core/eval/sweep.h"
#include "core/route/counters_json.h"
#include "core/train/loop/stop_signals.h"

namespace moe::cli {

namespace {

struct EvalFlags {
  eval::EvalSettings settings;
  std::string requests, bos = "auto", compat = "current", device;
  std::optional<model::Precision> precision;
  std::vector<std::filesystem::path> texts;
  std::vector<std::string> stats_by, sweeps;
  distributed::RankSettings ranks;
  int threads = 0;
  bool quiet = false, json = false, list = false, items = false, running = false;
};

void check_stats(const EvalFlags& flags) {
  if (flags.settings.stats.empty() && !flags.stats_by.empty()) {
    throw UserError("--stats-by says how to split the file of --stats; give --stats FILE too");
  }
  if (flags.settings.stats_by.task && flags.settings.tasks.empty()) {
    throw UserError("--stats-by task needs --tasks; leave it out, or name source or token");
  }
}

// One run's files and comparisons mean nothing for many.
void check_sweep(const EvalFlags& flags) {
  if (flags.sweeps.empty()) {
    return;
  }
  for (const auto& [flag, is_given] : {std::pair("--stats", !flags.settings.stats.empty()),
                                       std::pair("--against", !flags.settings.against.empty())}) {
    if (is_given) {
      throw UserError("--sweep and {} together; give {} to a run with one router", flag, flag);
    }
  }
  if (flags.settings.tasks.empty()) {
    throw UserError("--sweep compares scores of tasks; give --tasks");
  }
  if (flags.sweeps.size() > 2) {
    throw UserError("{} times --sweep; a table has two sides, give at most two",
                    flags.sweeps.size());
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
  check_sweep(flags);
}

// Prints notes and a progress bar to standard error, and polls for signals between forwards.
class Display {
 public:
  // `signals` outlives the display.
  Display(bool quiet, bool running, train::StopSignals& signals)
      : signals_(signals), quiet_(quiet), running_(running) {}

  eval::EvalEvents events() {
    eval::EvalEvents events;
    events.note = [this](const std::string& sentence) { note(sentence); };
    events.start = [this](const std::string& what, int64_t requests) {
      finish();
      bar_ = std::make_unique<Progress>(what, "requests", static_cast<uint64_t>(requests), quiet_);
    };
    events.cached = [this](int64_t requests) { bar_->skip(static_cast<uint64_t>(requests)); };
    events.progress = [this](int64_t done) {
      signals_.start_polling();
      bar_->set(static_cast<uint64_t>(done));
    };
    if (running_) {
      events.running = [this](const std::string& metric, double mean, int64_t questions) {
        bar_->remark(fmt::format("{} {:.4f} of {}", metric, mean, questions));
      };
    }
    events.stop_requested = [this] { return signals_.stop_requested(); };
    return events;
  }
  // The bar goes; with a running accuracy its last line stays.
  void finish() {
    if (bar_ && running_) {
      bar_->finish();
    }
    bar_.reset();
  }

 private:
  void note(const std::string& sentence) const {
    if (quiet_) {
      return;
    }
    const bool warns = sentence.rfind("warning: ", 0) == 0;
    const std::string text = fmt::format("{}{}", warns ? "" : "note: ", sentence);
    if (bar_) {
      bar_->line(text);
    } else {
      print_text(stderr, "{}\n", terminal_text(text, /*one_line=*/true));
    }
  }

  train::StopSignals& signals_;
  bool quiet_ = false, running_ = false;
  std::unique_ptr<Progress> bar_;
};

// One line a task that says how its MoE layers routed, then a table of the layers.
void print_routing(const eval::RunReport& report) {
  for (const auto& task : report.tasks) {
    if (report.router.empty()) {
      return;
    }
    if (!task.answers.empty()) {
      continue;  // routing is not counted in generation
    }
    print_text("{}: router {}, {} logical rank{}, {}, {:.2f} % of requests dropped\n",
               terminal_text(task.loaded.task.name, /*one_line=*/true), report.router,
               report.ep_ranks, report.ep_ranks == 1 ? "" : "s",
               report.group_tokens == 0
                   ? std::string("no capacity")
                   : fmt::format("groups of up to {} tokens", report.group_tokens),
               100 * eval::drop_rate(task));
  }
  if (report.routing) {
    print_text("\n{}", route::routing_table(report.routing->moe_layers, report.routing->layers));
  }
}

void run_tasks(const EvalFlags& flags, Display& display) {
  const eval::RunReport report = eval::evaluate(flags.settings, display.events());
  display.finish();
  if (!flags.settings.is_rank_zero()) {
    return;
  }
  if (flags.json) {
    print_text("{}\n", json_text(eval::results_json(report), 2));
    return;
  }
  print_text("{}", terminal_text(eval::results_table(report)));
  if (flags.items) {
    print_text("\n{}", terminal_text(eval::to_item_list(report.against)));
  }
  print_routing(report);
}

void run_sweep(const EvalFlags& flags, Display& display) {
  std::vector<eval::SweepAxis> axes;
  for (const auto& text : flags.sweeps) {
    axes.push_back(eval::parse_sweep(text));
  }
  const eval::SweepReport report = eval::sweep(flags.settings, axes, display.events());
  display.finish();
  if (!flags.settings.is_rank_zero()) {
    return;
  }
  if (flags.json) {
    print_text("{}\n", json_text(eval::sweep_json(report), 2));
    return;
  }
  print_text("{}", terminal_text(eval::sweep_table(report)));
  if (is_terminal(1)) {
    print_text("\n{}", terminal_text(eval::sweep_bars(report, terminal_width(1))));
  }
  if (!flags.settings.out.empty()) {
    print_text("\nplotted in {}\n", (flags.settings.out / "sweep.html").string());
  }
}

void run_requests(const EvalFlags& flags, Display& display) {
  const eval::Scores scores =
      eval::evaluate_requests(flags.settings, flags.requests, display.events());
  display.finish();
  if (!flags.settings.is_rank_zero()) {
    return;
  }
  for (const auto& score : scores.scores) {
    const OrderedJson line = {
        {"logprob", score.logprob}, {"is_greedy", score.is_greedy}, {"tokens", score.tokens}};
    print_text("{}\n", json_text(line));
  }
}

void run_texts(const EvalFlags& flags, Display& display) {
  const eval::RoutingStats stats =
      eval::evaluate_texts(flags.settings, flags.texts, display.events());
  display.finish();
  if (!flags.settings.is_rank_zero()) {
    return;
  }
  if (flags.json) {
    print_text("{}\n", json_text(eval::stats_json(stats), 2));
  } else {
    print_text("{}", route::routing_table(stats.moe_layers, stats.layers));
  }
}

// One rank of a run. Rank zero alone prints.
void run_on_rank(EvalFlags& flags, distributed::Comm& comm, train::StopSignals& signals) {
  flags.settings.ranks = comm.size() > 1 ? &comm : nullptr;
  flags.settings.device = comm.device();
  const bool quiet = flags.quiet || !flags.settings.is_rank_zero();
  Display display(quiet, flags.running && !quiet, signals);
  apply_threads(flags.threads);
  if (!flags.sweeps.empty()) {
    run_sweep(flags, display);
  } else if (!flags.settings.tasks.empty()) {
    run_tasks(flags, display);
  } else if (!flags.requests.empty()) {
    run_requests(flags, display);
  } else {
    run_texts(flags, display);
  }
  finish_output();  // while a failure can still be reported to the other ranks
}

void run(EvalFlags& flags) {
  if (flags.list) {
    print_text("{}", eval::task_list());
    return;
  }
  flags.settings.stats_by = eval::parse_stats_by(flags.stats_by);
  check(flags);
  flags.settings.bos = eval::parse_bos(flags.bos);
  flags.settings.compat = eval::parse_compat(flags.compat);
  flags.ranks.threads = flags.threads;
  flags.ranks.on_cuda = flags.device == "cuda";
  flags.settings.precision = model::inference_precision(flags.precision, flags.ranks.on_cuda);
  train::StopSignals signals;  // before c10d starts threads
  distributed::run_on_ranks(flags.ranks, [&](distributed::Comm& comm) {
    if (comm.size() > 1 && flags.requests == "-") {
      throw UserError("--requests - on {} ranks: standard input is one rank's; give a file",
                      comm.size());
    }
    run_on_rank(flags, comm, signals);
  });
}

Options task_options(EvalFlags& flags) {
  return {
      {.name = "model",
       .member = &flags.settings.model,
       .group = group::kModel,
       .help = "model folder, dense or MoE",
       .spelled = "MODEL"},
      {.name = "tasks",
       .member = &flags.settings.tasks,
       .group = group::kTasks,
       .help = "tasks and groups (--list), or files of your own: TASK.json or TASK.toml in the "
               "words of the harness's task files, QUIZ.jsonl with lines of {\"question\" or "
               "\"context\", \"choices\", \"answer\"}",
       .takes_commas = true},
      {.name = "data",
       .member = &flags.settings.data,
       .group = group::kTasks,
       .help = "folder of the benchmarks' own files, or of JSONL and CSV exported from the Hub's "
               "data sets (--list says where each is expected)"},
      {.name = "list",
       .member = &flags.list,
       .group = group::kTasks,
       .help = "show all tasks and groups, and where their files belong"},
      {.name = "requests",
       .member = &flags.requests,
       .group = group::kTasks,
       .help = "JSONL of {\"context\", \"continuation\"} (- = standard input): prints "
               "{\"logprob\", \"is_greedy\", \"tokens\"} a line"},
      {.name = "limit",
       .member = &flags.settings.limit,
       .group = group::kTasks,
       .help = "only the first N questions of each task, requests, or texts of each file",
       .range = whole_from(1)},
      {.name = "num-fewshot",
       .member = &flags.settings.shots,
       .group = group::kTasks,
       .help = "examples before each question, drawn as lm-evaluation-harness draws them",
       .fallback = "as the task says",
       .range = whole_between(0, 1000)},
      {.name = "compat",
       .member = &flags.compat,
       .group = group::kTasks,
       .help = "whose definitions and defaults: current (lm-evaluation-harness 0.4.13) or 0.4.1, "
               "the papers' time"},
      {.name = "bos",
       .member = &flags.bos,
       .group = group::kTasks,
       .help = "auto (as tokenizer_config.json says), on or off: a BOS before the text"},
  };
}

Options output_options(EvalFlags& flags) {
  return {
      {.name = "out",
       .member = &flags.settings.out,
       .group = group::kOutput,
       .help = "folder for results.json and samples_*.jsonl",
       .spelled = "-o,--out"},
      {.name = "against",
       .member = &flags.settings.against,
       .group = group::kOutput,
       .help = "folder of another run's sample logs: print the differences, with McNemar's test"},
      {.name = "items",
       .member = &flags.items,
       .group = group::kOutput,
       .help = "with --against: list the questions that differ"},
      {.name = "cache-responses",
       .member = &flags.settings.cache_responses,
       .group = group::kOutput,
       .help =
           "keep responses as they come, so that an interrupted run goes on where it was: FILE, "
           "or DIR for DIR/responses.cache, which stay and serve later runs too; or off. "
           "Capacity's routing groups are kept whole; --stats-by keeps nothing",
       .fallback = "with -o in OUT/responses.cache until the run ends"},
      {.name = "running-accuracy",
       .member = &flags.running,
       .group = group::kOutput,
       .help = "show the accuracy so far beside the rate (the longest questions come first)"},
  };
}

// The flag's number: 0 for auto.
Choice number_or_auto(int64_t& member) {
  return {[&member] { return member == 0 ? "auto" : fmt::format("{}", member); },
          [&member](const std::string& text) {
            int64_t number = 0;
            const auto [end, wrong] =
                std::from_chars(text.data(), text.data() + text.size(), number);
            const bool is_number = wrong == std::errc() && end == text.data() + text.size();
            if (text != "auto" && !(is_number && number >= 1 && number <= int64_t{1} << 30)) {
              throw UserError("--batch-tokens {}: give a whole number from 1 to 2^30, or auto",
                              printable(text));
            }
            member = number;
          }};
}

Options routing_options(EvalFlags& flags) {
  return {
      {.name = "sweep",
       .member = &flags.sweeps,
       .group = group::kRouter,
       .help = "one setting over many values, the model loaded once: cf=0.25,0.5,1,2 or p=0.1,0.4 "
               "or router=top1,top1+ir or ep-ranks=8,4,2; twice for a grid. A table, and in OUT "
               "sweep.json, the plots of sweep.html and a folder a value",
       .is_repeated = true},
      {.name = "stats",
       .member = &flags.settings.stats,
       .group = group::kRouter,
       .help = "JSON file for what the routing of a mixture did, in total and by layer"},
      {.name = "stats-by",
       .member = &flags.stats_by,
       .group = group::kRouter,
       .help = "also by source (a record's \"source\", else its file), task, token (entry of the "
               "vocabulary); layer is always there",
       .takes_commas = true},
      {.name = "stats-text",
       .member = &flags.texts,
       .group = group::kRouter,
       .help = "instead of --tasks: text files, or JSON records with \"text\" and \"source\", run "
               "for their routing alone in windows of up to 2048 tokens",
       .takes_commas = true},
      {.name = "group-tokens",
       .member = &flags.settings.group_tokens,
       .group = group::kRouter,
       .help = "tokens per logical rank that a router with a capacity routes together",
       .range = whole_between(1, 1 << 30)},
      {.name = "batch-tokens",
       .member = number_or_auto(flags.settings.batch_tokens),
       .group = group::kMemory,
       .help = "tokens of one forward, or auto: 4096, fewer where a layer's activations would pass "
               "1 GiB, more where memory cannot hold the weights; scores do not depend on it"},
  };
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "zero-shot accuracy on benchmark files");
  auto flags = std::make_shared<EvalFlags>();
  add_options(*command,
              joined({task_options(*flags), output_options(*flags), routing_options(*flags)}));
  add_force_memory(*command, flags->settings.force_memory);
  add_options(*command, model::request_options(flags->settings.upcycle));
  add_router_flags(*command, flags->settings.router);
  add_device(*command, flags->device);
  add_inference_precision(*command, flags->precision);
  add_threads(*command, flags->threads);
  add_rank_flags(*command, flags->ranks);
  add_quiet(*command, flags->quiet);
  add_json(*command, flags->json);
  add_force(*command, flags->settings.force, kForcedGate);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
