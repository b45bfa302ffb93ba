// moe train: fine-tunes a folder, dense or MoE, and leaves RUN/final. Flags -> TrainSettings -> one
// call.

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/process_start.h"
#include "cli/progress.h"
#include "cli/step_line.h"
#include "cli/train_flags.h"
#include "cli/train_plans.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/encoded_tasks.h"
#include "core/io/checkpoint.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/loop/stop_signals.h"
#include "core/train/loop/trainer.h"

namespace moe::cli {

namespace {

// What is not the plain case: all weights in f32.
void print_trained(const train::TrainSettings& settings) {
  const std::string named = fmt::format("{}", fmt::join(settings.trained, ", "));
  if (settings.lora.rank > 0) {
    print_text(stderr, "trains adapters of rank {} on {}, and {}; saved folders have them merged\n",
               settings.lora.rank, fmt::join(settings.lora.on, " and "),
               named.empty() ? "the router" : named);
  } else if (!named.empty()) {
    print_text(stderr, "trains only {}\n", named);
  }
  if (settings.compute.precision == model::Precision::kBf16) {
    print_text(stderr, "products in bf16, weights and sums in fp32\n");
  }
}

// What tokens compete with each other for the slots of experts.
std::string describe_group(const train::RunPlan& plan) {
  if (!plan.routing.router.capacity_factor) {
    return "no capacity, so that batches do not change routing";
  }
  return fmt::format("capacity counted over the {}{} tokens of a micro-batch",
                     plan.settings.pack == data::Pack::kNone ? "up to " : "", plan.group_tokens);
}

void print_plan(const train::RunPlan& plan) {
  const auto& settings = plan.settings;
  for (const auto& line : plan.data) {
    print_text(stderr, "{}\n", terminal_text(line, /*one_line=*/true));
  }
  print_text(stderr,
             "{}: {} parameters; {} examples, {} tokens; {} steps of {} rows ({} at a time), rows "
             "of {}{} tokens\n",
             terminal_text(settings.model.string(), /*one_line=*/true),
             format_count(static_cast<double>(plan.parameters)), plan.examples, plan.tokens,
             *settings.steps, *settings.global_batch, *settings.micro_batch,
             settings.pack == data::Pack::kNone ? "up to " : "", *settings.seq_len);
  if (const auto& upcycle = settings.upcycle; upcycle.experts) {
    print_text(
        stderr, "upcycled while it is read: {} experts{}{}, layers {}, routers of seed {}\n",
        *upcycle.experts,
        upcycle.granularity == 1 ? "" : fmt::format(" cut into {} each", upcycle.granularity),
        upcycle.shared_expert ? " beside the dense feed-forward" : "", upcycle.layers,
        upcycle.seed);
  }
  if (plan.is_moe) {
    print_text(stderr, "router {} on {} logical ranks, {}; loss = {}\n",
               to_string(plan.routing.router), plan.routing.ep_ranks, describe_group(plan),
               plan.losses);
  }
  if (plan.layout.processes > 1) {
    print_text(stderr, "{}\n", distributed::describe(plan.layout));
  }
  print_trained(settings);
  for (const auto& note : plan.notes) {
    print_text(stderr, "{}\n", terminal_text(note, /*one_line=*/true));
  }
}

void print_result(const TrainFlags& flags, const train::StepRecord& first,
                  const train::StepRecord& last) {
  const auto final_model = (flags.settings.run / "final").string();
  if (flags.json) {
    const OrderedJson result = {
        {"steps", last.step},     {"first_loss", first.loss},
        {"last_loss", last.loss}, {"tokens", last.total_tokens},
        {"model", final_model},   {"metrics", (flags.settings.run / "metrics.jsonl").string()}};
    print_text("{}\n", json_text(result));
  } else {
    print_text("{} steps, loss {:.4f} -> {:.4f}{}: {}\n", last.step, first.loss, last.loss,
               last.skipped_steps == 0 ? "" : ", " + skipped_part(last), final_model);
  }
}

// Benchmarks for the trainer, which knows none; read before anything else is.
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

// One rank of a run; rank 0 prints for all.
void train_on_rank(const TrainFlags& flags, distributed::Comm& comm, train::StopSignals& signals) {
  apply_threads(flags.settings.threads);
  const bool quiet = flags.quiet || comm.rank() != 0;
  std::optional<StepPrinter> printer;
  train::StepRecord first, last;
  train::TrainCallbacks callbacks;
  std::optional<Progress> reading;
  callbacks.on_reading = [&](int64_t /*examples*/, int64_t tokens) {
    if (tokens > 0 && !reading) {  // before, contents are compared
      reading.emplace("tokenising", "tokens", 0, quiet);
    }
    if (reading) {
      reading->set(static_cast<uint64_t>(tokens));
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
    if (last.step == 0) {
      first = record;
    }
    last = record;
    printer->print(record);
  };
  callbacks.on_evaluated = [&](const train::Evaluation& evaluation) { printer->print(evaluation); };
  callbacks.evaluate_tasks = evaluate_tasks(flags.settings);
  callbacks.profiled_steps = flags.profile;
  callbacks.stop_requested = [&] { return signals.stop_requested(); };
  callbacks.on_saving = [&](bool is_saving) {
    is_saving ? signals.begin_saving() : signals.end_saving();
  };
  train::train(flags.settings, callbacks, &comm);
  if (last.step > 0 && comm.rank() == 0) {
    print_result(flags, first, last);
  }
  finish_output();  // while a failure can still be reported to the other ranks
}

void run(const TrainFlags& flags) {
  check_device(flags.settings.on_cuda);
  if (flags.nodes || flags.gpus) {
    return print_cluster(flags);
  }
  if (flags.show_samples > 0) {
    print_samples(flags.settings, flags.show_samples);
    return;
  }
  if (flags.dry_run || flags.show_settings) {
    apply_threads(flags.settings.threads);
    const train::RunPlan plan =
        train::plan_run(flags.settings, std::max<int64_t>(1, flags.ranks.ranks));
    if (flags.show_settings) {
      print_text("{}", train::to_toml(plan.settings));
      return;
    }
    if (!flags.quiet) {
      print_plan(plan);
    }
    return print_memory(plan.memory, plan.settings.on_cuda, flags.json);
  }
  if (flags.settings.run.empty()) {
    throw UserError("--out is required; see moe train --help");
  }
  if (flags.resume && flags.settings.force) {
    throw UserError("--resume goes on with a run, --force begins anew; give one of them");
  }
  distributed::RankSettings ranks = flags.ranks;
  ranks.threads = flags.settings.threads;
  ranks.on_cuda = flags.settings.on_cuda;
  train::StopSignals signals;  // before c10d starts threads
  distributed::run_on_ranks(ranks,
                            [&](distributed::Comm& comm) { train_on_rank(flags, comm, signals); });
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "fine-tune a model folder, dense or MoE");
  add_train_flags(*command, *flags);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
