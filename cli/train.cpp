// moe train: fine-tunes a folder, dense or MoE, and leaves RUN/final. Flags -> TrainSettings -> one
// call.

#include <fmt/ranges.h>

#include <optional>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/samples.h"
#include "cli/step_line.h"
#include "core/base/error.h"
#include "core/eval/live_tasks.h"
#include "core/io/checkpoint.h"
#include "core/train/run_folder.h"
#include "core/train/stop_signals.h"
#include "core/train/trainer.h"

namespace moe::cli {

namespace {

struct TrainFlags {
  train::TrainSettings settings;
  std::string schedule = "cosine", pack, pack_mask = "causal", shuffle = "on",
              objective = "instruct", device, precision = "fp32", recompute = "none";
  std::string format, loss_on = "all";
  std::string optimizer_state = "fp32", decay_embeddings = "on";
  int64_t show_samples = 0;  // 0 = train
  bool quiet = false, json = false, resume = false, dry_run = false;
};

train::TrainSettings settings_of(const TrainFlags& flags) {
  train::TrainSettings settings = flags.settings;
  settings.schedule = train::parse_schedule(flags.schedule);
  settings.compute = {model::parse_precision(flags.precision),
                      model::parse_recompute(flags.recompute)};
  settings.shuffle = flags.shuffle == "on";
  settings.pack_mask = flags.pack_mask == "doc" ? data::PackMask::kDoc : data::PackMask::kCausal;
  settings.objective = flags.objective == "lm" ? data::Objective::kLm : data::Objective::kInstruct;
  settings.adamw.moments =
      flags.optimizer_state == "bf16" ? train::MomentType::kBF16 : train::MomentType::kF32;
  settings.adamw.decay_embeddings = flags.decay_embeddings == "on";
  settings.loss_on = flags.loss_on == "last" ? data::LossOn::kLast : data::LossOn::kAll;
  if (!flags.format.empty()) {
    settings.format = data::parse_format(flags.format);
  }
  if (!flags.pack.empty()) {
    settings.pack = flags.pack == "stream" ? data::Pack::kStream : data::Pack::kNone;
  }
  return settings;
}

// What is not the plain case: all weights in f32.
void print_trained(const train::TrainSettings& settings) {
  const std::string named = fmt::format("{}", fmt::join(settings.trained, ", "));
  if (settings.lora.rank > 0) {
    fmt::print(stderr,
               "trains adapters of rank {} on {}, and {}; saved folders have them merged\n",
               settings.lora.rank,
               fmt::join(settings.lora.on, " and "),
               named.empty() ? "the router" : named);
  } else if (!named.empty()) {
    fmt::print(stderr, "trains only {}\n", named);
  }
  if (settings.compute.precision == model::Precision::kBf16) {
    fmt::print(stderr, "products in bf16, weights and sums in fp32\n");
  }
}

// What tokens compete with each other for the slots of experts.
std::string describe_group(const train::RunPlan& plan) {
  if (!plan.routing.router.capacity_factor) {
    return "no capacity, so that batches do not change routing";
  }
  return fmt::format("capacity counted over the {}{} tokens of a micro-batch",
                     plan.settings.pack == data::Pack::kNone ? "up to " : "",
                     plan.group_tokens);
}

void print_plan(const train::RunPlan& plan) {
  const auto& settings = plan.settings;
  for (const auto& line : plan.data) {
    fmt::print(stderr, "{}\n", line);
  }
  fmt::print(stderr,
             "{}: {} parameters; {} examples, {} tokens; {} steps of {} rows ({} at a time), rows "
             "of {}{} tokens\n",
             settings.model.string(),
             format_count(static_cast<double>(plan.parameters)),
             plan.examples,
             plan.tokens,
             *settings.steps,
             *settings.global_batch,
             *settings.micro_batch,
             settings.pack == data::Pack::kNone ? "up to " : "",
             *settings.seq_len);
  if (plan.is_moe) {
    fmt::print(stderr,
               "router {} on {} logical ranks, {}; loss = {}\n",
               to_string(plan.routing.router),
               plan.routing.ep_ranks,
               describe_group(plan),
               plan.losses);
  }
  print_trained(settings);
  for (const auto& note : plan.notes) {
    fmt::print(stderr, "{}\n", note);
  }
}

void print_memory(const train::RunPlan& plan, bool as_json) {
  const train::MemoryPlan& memory = plan.memory;
  const std::vector<std::pair<const char*, uint64_t>> classes = {
      {"program", memory.program},
      {"weights", memory.weights},
      {"gradients", memory.gradients},
      {"optimizer", memory.optimizer},
      {"activations", memory.activations},
      {"workspace", memory.workspace},
      {"checkpoint", memory.checkpoint},
      {"peak", memory.peak}};
  if (as_json) {
    OrderedJson json;
    for (const auto& [name, bytes] : classes) {
      json[fmt::format("{}_bytes", name)] = bytes;
    }
    fmt::print("{}\n", json.dump());
    return;
  }
  for (const auto& [name, bytes] : classes) {
    fmt::print("{:<12}{:>10}\n", name, format_bytes(static_cast<double>(bytes)));
  }
  fmt::print("memory of one process (dry run: no weight was loaded, no run begun)\n");
}

void print_result(const TrainFlags& flags,
                  const train::StepRecord& first,
                  const train::StepRecord& last) {
  const auto final_model = (flags.settings.run / "final").string();
  if (flags.json) {
    const OrderedJson result = {{"steps", last.step},
                                {"first_loss", first.loss},
                                {"last_loss", last.loss},
                                {"tokens", last.total_tokens},
                                {"model", final_model},
                                {"metrics", (flags.settings.run / "metrics.jsonl").string()}};
    fmt::print("{}\n", result.dump());
  } else {
    fmt::print("{} steps, loss {:.4f} -> {:.4f}{}: {}\n",
               last.step,
               first.loss,
               last.loss,
               last.skipped_steps == 0 ? "" : ", " + skipped_part(last),
               final_model);
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

void run(const TrainFlags& flags) {
  if (flags.show_samples > 0) {
    print_samples(settings_of(flags), flags.show_samples);
    return;
  }
  if (flags.dry_run) {
    apply_threads(flags.settings.threads);
    const train::RunPlan plan = train::plan_run(settings_of(flags));
    if (!flags.quiet) {
      print_plan(plan);
    }
    return print_memory(plan, flags.json);
  }
  if (flags.settings.run.empty()) {
    throw UserError("--out is required; see moe train --help");
  }
  if (flags.resume && flags.settings.force) {
    throw UserError("--resume goes on with a run, --force begins anew; give one of them");
  }
  train::StopSignals signals;
  apply_threads(flags.settings.threads);
  std::optional<StepPrinter> printer;
  train::StepRecord first, last;
  train::TrainCallbacks callbacks;
  std::optional<Progress> reading;
  callbacks.on_reading = [&](int64_t /*examples*/, int64_t tokens) {
    if (tokens > 0 && !reading) {  // before, contents are compared
      reading.emplace("tokenising", "tokens", 0, flags.quiet);
    }
    if (reading) {
      reading->set(static_cast<uint64_t>(tokens));
    }
  };
  callbacks.on_start = [&](const train::RunPlan& plan) {
    reading.reset();
    printer.emplace(*plan.settings.steps, plan.first_step, flags.quiet);
    if (!flags.quiet) {
      print_plan(plan);
    }
  };
  callbacks.on_step = [&](const train::StepRecord& record) {
    if (last.step == 0) {
      first = record;
    }
    last = record;
    printer->print(record);
  };
  callbacks.on_evaluated = [&](const train::Evaluation& evaluation) { printer->print(evaluation); };
  callbacks.evaluate_tasks = evaluate_tasks(flags.settings);
  callbacks.stop_requested = [&] { return signals.requested(); };
  train::train(settings_of(flags), callbacks);
  if (last.step > 0) {
    print_result(flags, first, last);
  }
}

void add_data_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command
      .add_option("--data",
                  settings.data,
                  "data files, gzip and zstd too: Alpaca, OpenOrca, Dolly, prompt pairs, ShareGPT, "
                  "chat messages, token rows, text; FILE:WEIGHT mixes several")
      ->required();
  command.add_option("--format",
                     flags.format,
                     "alpaca, openorca, dolly, pairs, sharegpt, messages, text or rows (told from "
                     "the first record)");
  command.add_option("--template",
                     settings.text_template,
                     "paper (default), alpaca, llama2, or a text with {instruction} and "
                     "{response}; \\n is a newline");
  command
      .add_option("--loss-on", flags.loss_on, "all (default) or last: responses of a conversation")
      ->check(CLI::IsMember({"all", "last"}));
  command.add_option("--cache",
                     settings.cache,
                     "where tokens are kept for the next run: a folder, or off "
                     "(~/.cache/moe/tokens)");
  command
      .add_option("--show-samples",
                  flags.show_samples,
                  "print N examples as the model will see them, those tokens marked that carry "
                  "loss, and stop")
      ->check(CLI::PositiveNumber);
}

void add_batch_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command
      .add_option("--objective",
                  flags.objective,
                  "instruct (default: loss on responses) or lm (plain text)")
      ->check(CLI::IsMember({"instruct", "lm"}));
  command.add_option("--steps", settings.steps, "optimizer steps");
  command.add_option("--epochs", settings.epochs, "instead of --steps: passes over the data (1)");
  command.add_option(
      "--seq-len", settings.seq_len, "tokens a row (2048, at most what the model was made for)");
  command.add_option("--micro-batch", settings.micro_batch, "rows a forward pass (8)");
  command.add_option("--global-batch", settings.global_batch, "rows a step (one micro-batch)");
  command
      .add_option(
          "--pack", flags.pack, "stream (default: examples joined and cut) or none (one a row)")
      ->check(CLI::IsMember({"stream", "none"}));
  command
      .add_option("--pack-mask",
                  flags.pack_mask,
                  "causal (default: a row is one text) or doc (an example sees itself alone)")
      ->check(CLI::IsMember({"causal", "doc"}));
  command.add_option("--shuffle", flags.shuffle, "on (default) or off: file order")
      ->check(CLI::IsMember({"on", "off"}));
  command.add_option(
      "--seed", settings.seed, "of the shuffling, and of rounding the optimizer's state (0)");
}

void add_compute_flags(CLI::App& command, TrainFlags& flags) {
  auto& lora = flags.settings.lora;
  command.add_option("--precision",
                     flags.precision,
                     "of products: fp32 (default), bf16 (weights stay fp32), tf32 (CUDA cards)");
  command.add_option("--recompute",
                     flags.recompute,
                     "computed again in backward, for less memory: none (default), ffn (all but "
                     "attention), layer");
  command.add_option("--lora", lora.rank, "rank of low-rank adapters to train in place of weights");
  command.add_option("--lora-alpha", lora.alpha, "adapters are scaled by alpha / rank (the rank)");
  command.add_option("--lora-on", lora.on, "attention, ffn (both)")->delimiter(',');
}

void add_optimizer_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command
      .add_option("--train",
                  settings.trained,
                  "what trains (everything): experts, router, attention, dense, norms, embeddings, "
                  "or a pattern of names")
      ->delimiter(',');
  command.add_option("--lr", settings.lr, "highest learning rate (1e-5)");
  command.add_option("--min-lr", settings.min_lr, "learning rate of the last step (lr / 10)");
  command.add_option("--schedule", flags.schedule, "cosine (default), linear, constant or wsd");
  command.add_option("--warmup", settings.warmup, "steps of linear warm-up (0)");
  command.add_option(
      "--weight-decay", settings.adamw.weight_decay, "decoupled, not on norms and biases (0)");
  command
      .add_option("--decay-embeddings",
                  flags.decay_embeddings,
                  "on (default) or off: whether embedding and head decay too")
      ->check(CLI::IsMember({"on", "off"}));
  command.add_option("--beta1", settings.adamw.beta1, "AdamW (0.9)");
  command.add_option("--beta2", settings.adamw.beta2, "AdamW (0.999)");
  command.add_option("--eps", settings.adamw.eps, "AdamW (1e-8)");
  command.add_option("--clip", settings.clip, "largest gradient norm, 0 = any (1)");
  command.add_option(
      "--skip-outliers",
      settings.skip_outliers,
      "make no step whose loss or gradient norm lies Z standard deviations above the "
      "mean of the last 128 (off; 6 is usual)");
  command
      .add_option("--optimizer-state",
                  flags.optimizer_state,
                  "fp32 (default) or bf16: AdamW's two moments, 8 or 4 bytes a parameter")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option(
      "--lb-coef", settings.lb_coef, "weight of the load-balance loss (the folder's)");
  command.add_option("--entropy-coef",
                     settings.entropy_coef,
                     "weight of the entropy loss of top-p (the folder's)");
  command.add_option(
      "--lambda",
      settings.lambda,
      "relu: weight of L1 in the first step (what the folder was trained up to, else "
      "the router's lambda0)");
}

void add_evaluation_flags(CLI::App& command, TrainFlags& flags) {
  auto& evaluation = flags.settings.evaluation;
  command.add_option(
      "--eval-data", evaluation.data, "held-out files, read as --data: their loss, and samples");
  command.add_option("--eval-rows", evaluation.rows, "rows of them, the first ones (64); 0 = all");
  command.add_option("--eval-every",
                     evaluation.every,
                     "steps between evaluations (a tenth of the run), besides before and after it");
  command
      .add_option("--eval-tasks",
                  evaluation.tasks,
                  "benchmarks to score along the way, named as in moe eval --tasks")
      ->delimiter(',');
  command.add_option(
      "--eval-data-dir", evaluation.tasks_folder, "folder of their files, moe eval's --data");
  command.add_option(
      "--eval-limit", evaluation.tasks_limit, "only the first N questions of each task");
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  auto& settings = flags->settings;
  CLI::App* command = app.add_subcommand("train", "fine-tune a model folder, dense or MoE");
  command->add_option("MODEL,--model", settings.model, "the folder to start from")->required();
  command->add_option(
      "-o,--out", settings.run, "the folder of the run: RUN/final, metrics, settings");
  add_data_flags(*command, *flags);
  add_batch_flags(*command, *flags);
  add_compute_flags(*command, *flags);
  add_optimizer_flags(*command, *flags);
  add_router_flags(*command, settings.router);
  add_evaluation_flags(*command, *flags);
  command->add_option(
      "--save-every", settings.save_every, "steps between checkpoints (only the end)");
  command->add_option("--keep", settings.keep, "newest checkpoints that stay (2)");
  command->add_option(
      "--save-minutes", settings.save_minutes, "minutes between checkpoints, besides");
  command->add_option(
      "--keep-every", settings.keep_every, "checkpoints of steps that it divides stay too (none)");
  command->add_flag("--resume",
                    flags->resume,
                    "go on with the run that is there, as the same command does anyway");
  command->add_flag("--dry-run",
                    flags->dry_run,
                    "check everything, say the memory it will take, load no weight, begin no run");
  add_device(*command, flags->device);
  add_threads(*command, settings.threads);
  add_force(*command, settings.force, kForcedGate);
  add_quiet(*command, flags->quiet);
  add_json(*command, flags->json);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
