// moe eval: scores benchmarks or (context, continuation) pairs, sweeps over routing settings, and
// collects routing statistics of texts.

#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/evaluate.h"
#include "core/eval/formats/text.h"
#include "core/route/counters.h"
#include "core/train/loop/stop_signals.h"

namespace moe::cli {

namespace {

struct EvalFlags {
  eval::EvalSettings settings;
  std::string requests, device, template_arguments;
  std::optional<model::Precision> precision;
  std::vector<std::filesystem::path> texts;
  std::vector<std::string> stats_by, sweeps;
  distributed::RankSettings ranks;
  int threads = 0;
  bool quiet = false, json = false, list = false, items = false, running = false;
};

void check(const EvalFlags& flags) {
  USER_ERROR_IF(flags.settings.model.empty(),
                "MODEL is missing; write moe eval MODEL --tasks .. (--list shows the tasks)");
  std::vector<std::string> given;
  for (const auto& [flag, is_given] : {std::pair("--tasks", !flags.settings.tasks.empty()),
                                       std::pair("--requests", !flags.requests.empty()),
                                       std::pair("--stats-text", !flags.texts.empty())}) {
    if (is_given) {
      given.emplace_back(flag);
    }
  }
  USER_ERROR_IF(given.empty(),
                "nothing to evaluate; give --tasks NAME,.. with --data DIR, --requests FILE.jsonl "
                "or --stats-text FILE");
  USER_ERROR_IF(given.size() > 1, "{} cannot be combined; use one command for each",
                fmt::join(given, " and "));
  USER_ERROR_IF(flags.settings.tasks.empty() && !flags.settings.out.empty(),
                "{} prints its results to standard output; remove -o", given.front());
  USER_ERROR_IF(flags.settings.tasks.empty() && !flags.settings.against.empty(),
                "--against needs --tasks instead of {}", given.front());
  const bool is_chat = flags.settings.apply_chat_template;
  for (const auto& [flag, is_given, is_of_chat] :
       {std::tuple("--apply-chat-template", is_chat, true),
        std::tuple("--system-instruction", !flags.settings.system_instruction.empty(), false),
        std::tuple("--fewshot-as-multiturn", !flags.settings.examples_as_turns, true),
        std::tuple("--chat-template-args", !flags.template_arguments.empty(), true),
        std::tuple("--template-date", !flags.settings.chat_options.date.empty(), true)}) {
    USER_ERROR_IF(is_given && is_of_chat && !is_chat, "{} needs --apply-chat-template", flag);
    USER_ERROR_IF(is_given && flags.settings.tasks.empty(), "{} needs --tasks", flag);
    USER_ERROR_IF(is_given && flags.settings.compat == eval::Compat::k041,
                  "{} is not in version 0.4.1 of lm-evaluation-harness; remove --compat", flag);
  }
  USER_ERROR_IF(flags.items && flags.settings.against.empty(), "--items needs --against DIR");
  USER_ERROR_IF(flags.settings.stats.empty() && !flags.stats_by.empty(),
                "--stats-by needs --stats FILE");
  USER_ERROR_IF(flags.settings.stats_by.task && flags.settings.tasks.empty(),
                "--stats-by task needs --tasks; use source or token");
  if (flags.sweeps.empty()) {
    return;
  }
  for (const auto& [flag, is_given] : {std::pair("--stats", !flags.settings.stats.empty()),
                                       std::pair("--against", !flags.settings.against.empty())}) {
    USER_ERROR_IF(is_given, "--sweep and {} cannot be combined; remove one of them", flag);
  }
  USER_ERROR_IF(flags.settings.tasks.empty(), "--sweep needs --tasks");
  USER_ERROR_IF(flags.sweeps.size() > 2, "--sweep is given {} times; at most two are supported",
                flags.sweeps.size());
}

// Display of notes and a progress bar on standard error. Polls for signals between forward passes.
class Display {
 public:
  // `signals` must outlive the display.
  Display(bool quiet, bool running, train::StopSignals& signals)
      : signals_(signals), quiet_(quiet), running_(running) {}

  eval::EvalEvents events() {
    eval::EvalEvents events;
    events.note = [this](const std::string& sentence) {
      if (bar_) {
        bar_->line(note_line(sentence));
      } else if (!quiet_) {
        print_text(stderr, "{}\n", note_line(sentence));
      }
    };
    events.start = [this](const std::string& task, int64_t requests) {
      finish();
      bar_ = std::make_unique<Progress>(task, "requests", requests, quiet_);
    };
    events.cached = [this](int64_t requests) { bar_->skip(requests); };
    events.progress = [this](int64_t done) {
      signals_.start_polling();
      bar_->set(done);
    };
    if (running_) {
      events.running = [this](const std::string& metric, double mean, int64_t questions) {
        bar_->remark(fmt::format("{} {:.4f} (n = {})", metric, mean, questions));
      };
    }
    events.stop_requested = [this] { return signals_.stop_requested(); };
    return events;
  }
  // Erases the bar. With --running-accuracy, prints its final state instead.
  void finish() {
    if (bar_ && running_) {
      bar_->finish();
    }
    bar_.reset();
  }

 private:
  train::StopSignals& signals_;
  bool quiet_ = false, running_ = false;
  std::unique_ptr<Progress> bar_;
};

// Prints one line on the routing of each task and a table of the MoE layers.
void print_routing(const eval::RunReport& report) {
  for (const auto& task : report.tasks) {
    if (report.router.empty() || !task.answers.empty()) {
      continue;  // dense model, or generated answers, whose routing is not counted
    }
    print_text("{}: router {}, {} logical rank{}, {}, {:.2f} % of requests dropped\n",
               terminal_line(task.loaded.task.name), report.router, report.ep_ranks,
               report.ep_ranks == 1 ? "" : "s",
               report.group_tokens == 0
                   ? std::string("no capacity")
                   : fmt::format("groups of up to {} tokens", report.group_tokens),
               100 * eval::drop_rate(task));
  }
  if (report.routing) {
    print_text("\n{}", route::routing_table(report.routing->moe_layers, report.routing->layers));
  }
}

void print_tasks(const EvalFlags& flags, const eval::RunReport& report) {
  if (flags.json) {
    return print_json(eval::results_json(report), 2);
  }
  print_text("{}", terminal_text(eval::results_table(report)));
  if (flags.items) {
    print_text("\n{}", terminal_text(eval::to_item_list(report.against)));
  }
  print_routing(report);
}

void print_sweep(const EvalFlags& flags, const eval::SweepReport& report) {
  if (flags.json) {
    return print_json(eval::sweep_json(report), 2);
  }
  print_text("{}", terminal_text(eval::sweep_table(report)));
  if (is_terminal(1)) {
    print_text("\n{}", terminal_text(eval::sweep_bars(report, terminal_width(1))));
  }
  if (!flags.settings.out.empty()) {
    print_text("\nplot: {}\n", (flags.settings.out / "sweep.html").string());
  }
}

void print_scores(const EvalFlags& /*flags*/, const eval::Scores& scores) {
  for (const auto& score : scores.scores) {
    print_json(
        {{"logprob", score.logprob}, {"is_greedy", score.is_greedy}, {"tokens", score.tokens}});
  }
}

void print_stats(const EvalFlags& flags, const eval::RoutingStats& stats) {
  if (flags.json) {
    print_json(eval::stats_json(stats), 2);
  } else {
    print_text("{}", route::routing_table(stats.moe_layers, stats.layers));
  }
}

// Evaluates on one rank. Only rank 0 prints.
void run_on_rank(EvalFlags& flags, distributed::Comm& comm, train::StopSignals& signals) {
  eval::EvalSettings& settings = flags.settings;
  settings.ranks = comm.size() > 1 ? &comm : nullptr;
  settings.device = comm.device();
  const bool quiet = flags.quiet || !settings.is_rank_zero();
  Display display(quiet, flags.running && !quiet, signals);
  const auto finish = [&](auto print, const auto& result) {
    display.finish();
    if (settings.is_rank_zero()) {
      print(flags, result);
    }
  };
  apply_threads(flags.threads);
  if (!flags.sweeps.empty()) {
    std::vector<eval::SweepAxis> axes;
    for (const auto& text : flags.sweeps) {
      axes.push_back(eval::parse_sweep(text));
    }
    finish(print_sweep, eval::sweep(settings, axes, display.events()));
  } else if (!settings.tasks.empty()) {
    finish(print_tasks, eval::evaluate(settings, display.events()));
  } else if (!flags.requests.empty()) {
    finish(print_scores, eval::evaluate_requests(settings, flags.requests, display.events()));
  } else {
    finish(print_stats, eval::evaluate_texts(settings, flags.texts, display.events()));
  }
  finish_output();  // before the ranks disconnect, so that a failure ends the run on all of them
}

void run(EvalFlags& flags) {
  if (flags.list) {
    return print_text("{}", eval::task_list());
  }
  flags.settings.stats_by = eval::parse_stats_by(flags.stats_by);
  check(flags);
  auto& chat = flags.settings.chat_options;
  chat = data::parse_chat_options(flags.template_arguments, chat.date);
  flags.ranks.threads = flags.threads;
  flags.ranks.on_cuda = flags.device == "cuda";
  flags.settings.precision = model::inference_precision(flags.precision, flags.ranks.on_cuda);
  train::StopSignals signals;  // before c10d starts threads
  distributed::run_on_ranks(flags.ranks, [&](distributed::Comm& comm) {
    USER_ERROR_IF(
        comm.size() > 1 && flags.requests == "-",
        "--requests - cannot be used with {} ranks, because only one of them has standard "
        "input; give a file",
        comm.size());
    run_on_rank(flags, comm, signals);
  });
}

// Returns the member of --batch-tokens: a number, 0 for auto.
Choice number_or_auto(int64_t& member) {
  return {[&member] { return member == 0 ? "auto" : fmt::format("{}", member); },
          [&member](const std::string& text) {
            const int64_t number = eval::parse_int(text).value_or(0);
            USER_ERROR_IF(text != "auto" && (number < 1 || number > int64_t{1} << 30),
                          "--batch-tokens {}: must be an integer from 1 to 2^30, or auto",
                          printable(text));
            member = number;
          }};
}

Options task_options(EvalFlags& flags) {
  using enum eval::Bos;
  using enum eval::Compat;
  eval::EvalSettings& settings = flags.settings;
  return {
      positional("MODEL", &settings.model, group::kModel, "model directory, dense or MoE",
                 /*is_required=*/false),
      with_commas({"tasks", &settings.tasks, group::kTasks,
                   "tasks and groups (see --list), or your own TASK.toml, TASK.json or "
                   "QUIZ.jsonl"}),
      {"data", &settings.data, group::kTasks,
       "directory of benchmark files (see --list): the authors' files, or Parquet, JSONL or CSV "
       "from the Hub"},
      {"list", &flags.list, group::kTasks, "list tasks and groups with the paths of their files"},
      {"requests", &flags.requests, group::kTasks,
       "score the lines {\"context\", \"continuation\"} of a JSONL file; - = standard input"},
      {"limit", &settings.limit, group::kTasks,
       "use only the first N questions of each task, requests, or texts of each file",
       whole_from(1)},
      {"num-fewshot", &settings.shots, group::kTasks,
       "examples before each question, sampled as in lm-evaluation-harness", whole_between(0, 1000),
       "set by the task"},
      {"compat",
       choice<eval::Compat, eval::Compat>("compat", settings.compat,
                                          {{"current", kCurrent}, {"0.4.1", k041}}),
       group::kTasks, "task definitions of lm-evaluation-harness: current (0.4.13) or 0.4.1"},
      {"bos",
       choice<eval::Bos, eval::Bos>(
           "bos", settings.bos, {{"auto", kAuto}, {"on", kOn}, {"force", kForce}, {"off", kOff}}),
       group::kTasks,
       "add a BOS token to texts: auto (if the tokenizer adds one), on (if it has one), force or "
       "off"},
      {"apply-chat-template", &settings.apply_chat_template, group::kTasks,
       "render prompts with the model's chat template"},
      {"fewshot-as-multiturn",
       choice<bool, bool>("fewshot-as-multiturn", settings.examples_as_turns,
                          {{"on", true}, {"off", false}}),
       group::kTasks,
       "with --apply-chat-template: examples are turns (on), or in the question's message (off)"},
      {"system-instruction", &settings.system_instruction, group::kTasks,
       "text before each task's description; with a chat template, the system message", Range(),
       "none"},
      {"chat-template-args", &flags.template_arguments, group::kTasks,
       "JSON object of more names for the chat template", Range(), "none"},
      {"template-date", &settings.chat_options.date, group::kTasks,
       "date of strftime_now() in the chat template, YYYY-MM-DD", Range(), "today"},
  };
}

Options output_options(EvalFlags& flags) {
  eval::EvalSettings& settings = flags.settings;
  return {
      output_path(&settings.out, "output directory: results.json, samples_*.jsonl",
                  /*is_required=*/false),
      {"against", &settings.against, group::kOutput,
       "compare with another run, given by its -o (McNemar's test)"},
      {"items", &flags.items, group::kOutput, "with --against: list the questions that differ"},
      {"cache-responses", &settings.cache_responses, group::kOutput,
       "file or directory of a response cache, to resume this run and reuse responses in later "
       "ones, or off",
       Range(), "OUT/responses.cache, removed after the run"},
      {"running-accuracy", &flags.running, group::kOutput,
       "show the running accuracy in the progress bar (longest questions first)"},
  };
}

Options routing_options(EvalFlags& flags) {
  eval::EvalSettings& settings = flags.settings;
  return {
      {.name = "sweep",
       .member = &flags.sweeps,
       .group = group::kRouter,
       .help = "evaluate several values of a setting: cf=0.25,0.5,1, p=0.1,0.4, "
               "router=top1,top1+ir or ep-ranks=8,4; give it twice for a grid",
       .is_repeated = true},
      {"stats", &settings.stats, group::kRouter,
       "write routing statistics, total and per layer, to this JSON file"},
      with_commas({"stats-by", &flags.stats_by, group::kRouter,
                   "also group --stats by source (\"source\" of a record, else its file), task or "
                   "token"}),
      with_commas({"stats-text", &flags.texts, group::kRouter,
                   "collect routing statistics of text files, or of JSON records with \"text\" and "
                   "\"source\", instead of --tasks"}),
      {"group-tokens", &settings.group_tokens, group::kRouter,
       "tokens per logical rank in a routing group, for routers with a capacity",
       whole_between(1, 1 << 30)},
      {"batch-tokens", number_or_auto(settings.batch_tokens), group::kMemory,
       "tokens per forward pass, or auto (4096, adapted to memory); does not change scores"},
  };
}

Options options(EvalFlags& flags) {
  return concat({task_options(flags),
                 output_options(flags),
                 routing_options(flags),
                 {force_memory_option(flags.settings.force_memory)},
                 model::request_options(flags.settings.upcycle),
                 route::request_options(flags.settings.router),
                 {device_option(flags.device), inference_precision_option(flags.precision),
                  threads_option(flags.threads)},
                 rank_options(flags.ranks),
                 {quiet_option(flags.quiet), json_option(flags.json),
                  force_option(flags.settings.force, kForceGateHelp)}});
}

}  // namespace

void add_eval(CLI::App& app) {
  add_config(add_command<EvalFlags&>(app, "eval", "evaluate a model on benchmarks", run, options),
             "moe eval run/final --tasks arc_easy,piqa --data benchmarks -o scores\n"
             "moe eval my-moe --tasks quiz.jsonl --sweep cf=0.5,1,2 -o sweep\n"
             "moe eval my-moe --stats-text wiki.txt --stats routing.json");
}

}  // namespace moe::cli
