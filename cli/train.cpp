// moe train: trains a dense or MoE model and writes RUN/final. Without training, also prints memory
// estimates (--dry-run, --nodes), the resolved settings, or training examples.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/eval/runner.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/config/settings.h"
#include "core/train/loop/plan.h"
#include "core/train/loop/stop_signals.h"
#include "core/train/step/training_data.h"

namespace moe::cli {
namespace {

struct TrainFlags {
  train::TrainSettings settings;
  distributed::RankSettings ranks;
  std::optional<int64_t> nodes, gpus;  // of the cluster whose memory is estimated
  int64_t show_samples = 0;            // number of examples to print; 0: none
  int64_t profile = 0;                 // number of steps to trace; 0: none
  bool quiet = false, json = false, resume = false, dry_run = false, show_settings = false;
};

// Prints which weights are trained unless all are, and the precision unless it is fp32.
void print_trained(const train::TrainSettings& settings) {
  const std::string named = fmt::format("{}", fmt::join(settings.trained, ", "));
  if (settings.lora.rank > 0) {
    print_text(stderr,
               "training LoRA adapters of rank {} on {}, and {}; adapters are merged when saving\n",
               settings.lora.rank, fmt::join(settings.lora.on, " and "),
               named.empty() ? "the router" : named);
  } else if (!named.empty()) {
    print_text(stderr, "training only {}\n", named);
  }
  if (settings.compute.precision == model::Precision::kBf16) {
    print_text(stderr, "matrix products in bf16, weights and sums in fp32\n");
  }
}

void print_lines(const std::vector<std::string>& lines) {
  for (const auto& line : lines) {
    print_text(stderr, "{}\n", terminal_line(line));
  }
}

void print_plan(const train::RunPlan& plan) {
  const auto& settings = plan.settings;
  print_lines(plan.data);
  print_text(stderr,
             "{}: {} parameters; {} examples, {} tokens; {} steps of {} sequences (micro-batch {}) "
             "of {}{} tokens\n",
             terminal_line(settings.model.string()), format_count(plan.parameters), plan.examples,
             plan.tokens, *settings.steps, *settings.global_batch, *settings.micro_batch,
             settings.pack == data::Pack::kNone ? "up to " : "", *settings.seq_len);
  if (const auto& upcycle = settings.upcycle; upcycle.experts) {
    print_text(
        stderr, "upcycled in memory: {} experts{}{}, layers {}, router seed {}\n", *upcycle.experts,
        upcycle.granularity == 1 ? "" : fmt::format(" split into {} each", upcycle.granularity),
        upcycle.shared_expert ? " plus a shared expert" : "", upcycle.layers, upcycle.seed);
  }
  if (plan.is_moe) {
    const std::string capacity =
        plan.routing.router.capacity_factor
            ? fmt::format("capacity counted over the {}{} tokens of a micro-batch",
                          settings.pack == data::Pack::kNone ? "up to " : "", plan.group_tokens)
            : "no capacity, routing does not depend on the batch";
    print_text(stderr, "router {} on {} logical ranks, {}; loss = {}\n",
               to_string(plan.routing.router), plan.routing.ep_ranks, capacity, plan.losses);
  }
  if (plan.layout.processes > 1) {
    print_text(stderr, "{}\n", distributed::describe(plan.layout));
  }
  print_trained(settings);
  print_lines(plan.notes);
}

// Losses of the first and the last step that have one.
struct LossRange {
  std::optional<double> first, last;
};

void print_result(const TrainFlags& flags, const LossRange& loss, const train::StepRecord& last) {
  const auto final_model = (flags.settings.run / "final").string();
  if (flags.json) {
    print_json({{"steps", last.step},
                {"first_loss", loss.first ? Json(*loss.first) : Json()},
                {"last_loss", loss.last ? Json(*loss.last) : Json()},
                {"steps_without_targets", last.steps_without_targets},
                {"tokens", last.total_tokens},
                {"model", final_model},
                {"metrics", (flags.settings.run / "metrics.jsonl").string()}});
  } else {
    print_text("{} steps, loss {} -> {}{}{}: {}\n", last.step, format_loss(loss.first),
               format_loss(loss.last), last.skipped_steps == 0 ? "" : ", " + skipped_text(last),
               last.steps_without_targets == 0
                   ? ""
                   : fmt::format(", {} of them without targets", last.steps_without_targets),
               final_model);
  }
}

// Loads --eval-tasks, so that errors come before training. Returns the callback that scores them.
train::EvaluateTasks evaluate_tasks(const train::TrainSettings& settings) {
  const auto& evaluation = settings.evaluation;
  if (evaluation.tasks.empty()) {
    return {};
  }
  const auto tasks = std::make_shared<eval::LiveTasks>(
      settings.model, evaluation.tasks, evaluation.tasks_folder, evaluation.tasks_limit);
  return [tasks](const model::Llama& llama, const model::RoutingOptions& routing) {
    train::TaskScores scores;
    for (const auto& [task, means] : tasks->run(llama, routing)) {
      for (const auto& [metric, mean] : means) {
        scores[task][metric] = mean.value;
        if (mean.standard_error) {
          scores[task][metric + "_stderr"] = *mean.standard_error;
        }
      }
    }
    return scores;
  };
}

void train_on_rank(const TrainFlags& flags, distributed::Comm& comm, train::StopSignals& signals) {
  apply_threads(flags.settings.threads);
  const bool quiet = flags.quiet || comm.rank() != 0;
  std::optional<StepPrinter> printer;
  LossRange loss;
  train::StepRecord last;
  train::TrainCallbacks callbacks;
  std::optional<Progress> reading;
  callbacks.on_reading = [&](int64_t /*examples*/, int64_t tokens) {
    if (tokens > 0 && !reading) {  // `tokens` is 0 while files are hashed for the token cache
      reading.emplace("tokenizing", "tokens", 0, quiet);
    }
    if (reading) {
      reading->set(tokens);
    }
  };
  callbacks.on_start = [&](const train::RunPlan& plan) {
    reading.reset();
    printer.emplace(*plan.settings.steps, plan.first_step, quiet);
    if (!quiet) {
      print_plan(plan);
    }
  };
  callbacks.on_step = [&](const train::StepRecord& record) {
    signals.start_polling();
    if (record.has_loss()) {
      loss = {loss.first.value_or(record.loss), record.loss};
    }
    last = record;
    printer->print(record);
  };
  callbacks.on_evaluated = [&](const train::Evaluation& evaluation) { printer->print(evaluation); };
  callbacks.on_warning = [&](const std::string& sentence) {
    printer->print("warning: " + sentence);
  };
  callbacks.evaluate_tasks = evaluate_tasks(flags.settings);
  callbacks.profiled_steps = flags.profile;
  callbacks.stop_requested = [&] { return signals.stop_requested(); };
  callbacks.on_saving = [&](bool is_saving) {
    is_saving ? signals.begin_saving() : signals.end_saving();
  };
  train::train(flags.settings, callbacks, &comm);
  if (last.step > 0 && comm.rank() == 0) {
    print_result(flags, loss, last);
  }
  finish_output();  // before the ranks disconnect, so that a failure ends the run on all of them
}

std::vector<std::pair<std::string, uint64_t>> memory_items(const train::MemoryPlan& memory) {
  return {{"program", memory.program},
          {"weights", memory.weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations", memory.activations},
          {"workspace", memory.workspace},
          {"checkpoint", memory.checkpoint},
          {"evaluation", memory.evaluation},
          {"peak", memory.peak}};
}

OrderedJson to_json(const train::MemoryPlan& memory) {
  OrderedJson json;
  for (const auto& [name, bytes] : memory_items(memory)) {
    json[name + "_bytes"] = bytes;
  }
  return json;
}

void print_memory(const train::MemoryPlan& memory, bool is_gpu) {
  for (const auto& [name, bytes] : memory_items(memory)) {
    print_text("{:<12}{:>10}\n", name, format_bytes(bytes));
  }
  print_text("memory of one {} (dry run: nothing was loaded or trained)\n",
             is_gpu ? "GPU" : "process");
}

void print_cluster(const TrainFlags& flags) {
  USER_ERROR_IF(!flags.dry_run,
                "--nodes and --gpus need --dry-run, because they only estimate memory; to train on "
                "several machines, start moe train with torchrun, srun or mpirun");
  const train::RunPlan plan =
      train::plan_cluster(flags.settings, flags.nodes.value_or(1), flags.gpus.value_or(8));
  if (!flags.quiet) {
    print_lines(plan.notes);
  }
  if (flags.json) {
    OrderedJson json = to_json(plan.memory);
    json["layout"] = distributed::describe(plan.layout);
    json["parameters"] = plan.parameters;
    return print_json(json);
  }
  print_text("{} parameters; {}\n", format_count(plan.parameters),
             distributed::describe(plan.layout));
  print_memory(plan.memory, /*is_gpu=*/true);
}

// Prints the first `count` training examples, taken from the files in turn. Tokens with loss are in
// color or in brackets.
void print_samples(const train::TrainSettings& settings, int64_t count) {
  std::map<int32_t, int64_t> read;                         // number of examples by file
  std::map<std::pair<int64_t, int32_t>, std::string> all;  // by (number in the file, file)
  const auto add = [&](const data::Example& example, const std::string& where,
                       const io::Tokenizer* tokenizer) {
    all[{read[example.file]++, example.file}] = example_text(example, where, tokenizer);
  };
  for (const auto& line : train::stream_samples(settings, count, Pipes::kRefused, add)) {
    print_text("{}\n", terminal_line(line));
  }
  for (const auto& [place, text] : all) {
    if (count-- > 0) {
      print_example(text);
    }
  }
}

void run(const TrainFlags& flags) {
  check_device(flags.settings.on_cuda);
  if (flags.nodes || flags.gpus) {
    return print_cluster(flags);
  }
  if (flags.show_samples > 0) {
    return print_samples(flags.settings, flags.show_samples);
  }
  if (flags.dry_run || flags.show_settings) {
    apply_threads(flags.settings.threads);
    const train::RunPlan plan =
        train::plan_run(flags.settings, std::max<int64_t>(1, flags.ranks.ranks));
    if (flags.show_settings) {
      return print_text("{}", train::to_toml(plan.settings));
    }
    if (!flags.quiet) {
      print_plan(plan);
    }
    return flags.json ? print_json(to_json(plan.memory))
                      : print_memory(plan.memory, plan.settings.on_cuda);
  }
  USER_ERROR_IF(flags.settings.run.empty(), "--out is required; see moe train --help");
  USER_ERROR_IF(flags.resume && flags.settings.force,
                "--resume and --force cannot be combined; use --resume to continue the run or "
                "--force to start over");
  distributed::RankSettings ranks = flags.ranks;
  ranks.threads = flags.settings.threads;
  ranks.on_cuda = flags.settings.on_cuda;
  train::StopSignals signals;  // before c10d starts threads
  distributed::run_on_ranks(ranks,
                            [&](distributed::Comm& comm) { train_on_rank(flags, comm, signals); });
}

Options unstored_options(TrainFlags& flags) {
  return {
      {"nodes", &flags.nodes, group::kRanks,
       "with --dry-run: number of machines, to estimate the memory of one GPU of a cluster",
       Range(), "1"},
      {"gpus", &flags.gpus, group::kRanks, "with --dry-run: GPUs per machine of that cluster",
       Range(), "8"},
      {"show-samples", &flags.show_samples, group::kOutput,
       "print N training examples, mark their tokens with loss, and exit", whole_from(1), "none"},
      {"show-settings", &flags.show_settings, group::kOutput,
       "print the resolved settings as a recipe without training"},
      {"dry-run", &flags.dry_run, group::kOutput,
       "validate the settings and print the memory estimate without training"},
      {"profile", &flags.profile, group::kOutput,
       "write a trace of the first N steps to RUN/trace.json (chrome://tracing, ui.perfetto.dev)",
       whole_from(1), "none"},
      {"resume", &flags.resume, group::kOutput,
       "resume the run in --out (the default if it exists)"},
  };
}

Options options(TrainFlags& flags) {
  return concat({train::train_options(flags.settings),
                 rank_options(flags.ranks),
                 unstored_options(flags),
                 {force_option(flags.settings.force, kForceGateHelp),
                  force_memory_option(flags.settings.force_memory), quiet_option(flags.quiet),
                  json_option(flags.json)}});
}

}  // namespace

void add_train(CLI::App& app) {
  add_config(
      add_command<const TrainFlags&>(app, "train", "train a model, dense or MoE", run, options),
      "moe train my-moe -o run --data instructions.jsonl --steps 1000 --lr 1e-5\n"
      "moe train my-llama --upcycle 8 --router top2 -o run --data text.jsonl --objective lm\n"
      "moe train my-moe --data instructions.jsonl --dry-run");
}

}  // namespace moe::cli
