#include "cli/train_flags.h"

#include <CLI/CLI.hpp>

#include "cli/flags.h"
#include "cli/launch.h"

namespace moe::cli {

namespace {

void add_data_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command.add_option("--data", settings.data,
                     "data files, gzip and zstd too: Alpaca, OpenOrca, Dolly, prompt pairs, "
                     "ShareGPT, chat messages, token rows, text; FILE:WEIGHT mixes several "
                     "(required)");
  command.add_option("--format", flags.format,
                     "alpaca, openorca, dolly, pairs, sharegpt, messages, text or rows (told from "
                     "the first record)");
  command.add_option("--template", settings.text_template,
                     "paper (default), alpaca, llama2, or a text with {instruction} and "
                     "{response}; \\n is a newline");
  command
      .add_option("--loss-on", flags.loss_on, "all (default) or last: responses of a conversation")
      ->check(CLI::IsMember({"all", "last"}));
  command.add_option("--cache", settings.cache,
                     "where tokens are kept for the next run: a folder, or off "
                     "(~/.cache/moe/tokens)");
  command
      .add_option("--show-samples", flags.show_samples,
                  "print N examples as the model will see them, those tokens marked that carry "
                  "loss, and stop")
      ->check(CLI::PositiveNumber);
}

void add_batch_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command
      .add_option("--objective", flags.objective,
                  "instruct (default: loss on responses) or lm (plain text)")
      ->check(CLI::IsMember({"instruct", "lm"}));
  command.add_option("--steps", settings.steps, "optimizer steps");
  command.add_option("--epochs", settings.epochs, "instead of --steps: passes over the data (1)");
  command.add_option("--seq-len", settings.seq_len,
                     "tokens a row (2048, at most what the model was made for)");
  command.add_option("--micro-batch", settings.micro_batch, "rows a forward pass (8)");
  command.add_option("--global-batch", settings.global_batch, "rows a step (one micro-batch)");
  command
      .add_option("--pack", flags.pack,
                  "stream (default: examples joined and cut) or none (one a row)")
      ->check(CLI::IsMember({"stream", "none"}));
  command
      .add_option("--pack-mask", flags.pack_mask,
                  "causal (default: a row is one text) or doc (an example sees itself alone)")
      ->check(CLI::IsMember({"causal", "doc"}));
  command.add_option("--shuffle", flags.shuffle, "on (default) or off: file order")
      ->check(CLI::IsMember({"on", "off"}));
  command.add_option("--seed", settings.seed,
                     "of the shuffling, and of rounding the optimizer's state (0)");
}

void add_compute_flags(CLI::App& command, TrainFlags& flags) {
  auto& lora = flags.settings.lora;
  command.add_option("--precision", flags.precision,
                     "of products: fp32 (default), bf16 (weights stay fp32), tf32 (CUDA cards)");
  command
      .add_option(
          "--profile", flags.profile,
          "write what ran when in the first N steps to RUN/trace.json, for chrome://tracing "
          "or ui.perfetto.dev")
      ->check(CLI::PositiveNumber);
  command.add_option("--recompute", flags.recompute,
                     "computed again in backward, for less memory: none (default), ffn (all but "
                     "attention), layer");
  command.add_option("--lora", lora.rank, "rank of low-rank adapters to train in place of weights");
  command.add_option("--lora-alpha", lora.alpha, "adapters are scaled by alpha / rank (the rank)");
  command.add_option("--lora-on", lora.on, "attention, ffn (both)")->delimiter(',');
}

void add_optimizer_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command
      .add_option("--train", settings.trained,
                  "what trains (everything): experts, router, attention, dense, norms, embeddings, "
                  "or a pattern of names")
      ->delimiter(',');
  command.add_option("--lr", settings.lr, "highest learning rate (1e-5)");
  command.add_option("--min-lr", settings.min_lr, "learning rate of the last step (lr / 10)");
  command.add_option("--schedule", flags.schedule, "cosine (default), linear, constant or wsd");
  command.add_option("--warmup", settings.warmup, "steps of linear warm-up (0)");
  command.add_option("--weight-decay", settings.adamw.weight_decay,
                     "decoupled, not on norms and biases (0)");
  command
      .add_option("--decay-embeddings", flags.decay_embeddings,
                  "on (default) or off: whether embedding and head decay too")
      ->check(CLI::IsMember({"on", "off"}));
  command.add_option("--beta1", settings.adamw.beta1, "AdamW (0.9)");
  command.add_option("--beta2", settings.adamw.beta2, "AdamW (0.999)");
  command.add_option("--eps", settings.adamw.eps, "AdamW (1e-8)");
  command.add_option("--clip", settings.clip, "largest gradient norm, 0 = any (1)");
  command.add_option(
      "--skip-outliers", settings.skip_outliers,
      "make no step whose loss or gradient norm lies Z standard deviations above the "
      "mean of the last 128 (off; 6 is usual)");
  command
      .add_option("--optimizer-state", flags.optimizer_state,
                  "fp32 (default) or bf16: AdamW's two moments, 8 or 4 bytes a parameter")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option("--lb-coef", settings.lb_coef,
                     "weight of the load-balance loss (the folder's)");
  command.add_option("--entropy-coef", settings.entropy_coef,
                     "weight of the entropy loss of top-p (the folder's)");
  command.add_option(
      "--lambda", settings.lambda,
      "relu: weight of L1 in the first step (what the folder was trained up to, else "
      "the router's lambda0)");
}

void add_evaluation_flags(CLI::App& command, TrainFlags& flags) {
  auto& evaluation = flags.settings.evaluation;
  command.add_option("--eval-data", evaluation.data,
                     "held-out files, read as --data: their loss, and samples");
  command.add_option("--eval-rows", evaluation.rows, "rows of them, the first ones (64); 0 = all");
  command.add_option("--eval-every", evaluation.every,
                     "steps between evaluations (a tenth of the run), besides before and after it");
  command
      .add_option("--eval-tasks", evaluation.tasks,
                  "benchmarks to score along the way, named as in moe eval --tasks")
      ->delimiter(',');
  command.add_option("--eval-data-dir", evaluation.tasks_folder,
                     "folder of their files, moe eval's --data");
  command.add_option("--eval-limit", evaluation.tasks_limit,
                     "only the first N questions of each task");
}

void add_cluster_flags(CLI::App& command, TrainFlags& flags) {
  add_rank_flags(command, flags.ranks);
  command.add_option("--replicas", flags.settings.replicas,
                     "processes that hold the same experts (as few as --ep-ranks allows)");
  command.add_option("--nodes", flags.nodes,
                     "with --dry-run: memory of a GPU and the share of communication on so many "
                     "machines, from the config alone (1)");
  command.add_option("--gpus", flags.gpus, "of one of them (8)");
  command.add_option("--gpu-tflops", flags.rates.tflops,
                     "1e12 FLOP/s that one of them sustains (400)");
  command.add_option("--link-gbs", flags.rates.link_gbs,
                     "1e9 bytes/s from a GPU to others in its machine (350); moe bench comm says");
  command.add_option("--network-gbs", flags.rates.network_gbs, "and to other machines (50)");
  command.add_option("--upcycled", flags.upcycled,
                     "of a dense config, plan the mixture that upcycling to N experts makes");
}

}  // namespace

train::TrainSettings settings_of(const TrainFlags& flags) {
  train::TrainSettings settings = flags.settings;
  settings.schedule = train::parse_schedule(flags.schedule);
  settings.compute = {model::parse_precision(flags.precision),
                      model::parse_recompute(flags.recompute)};
  settings.on_cuda = flags.device == "cuda";
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

void add_train_flags(CLI::App& command, TrainFlags& flags) {
  auto& settings = flags.settings;
  command.add_option("MODEL,--model", settings.model, "the folder to start from")->required();
  command.add_option("-o,--out", settings.run,
                     "the folder of the run: RUN/final, metrics, settings");
  add_data_flags(command, flags);
  add_batch_flags(command, flags);
  add_compute_flags(command, flags);
  add_optimizer_flags(command, flags);
  add_router_flags(command, settings.router);
  add_evaluation_flags(command, flags);
  add_cluster_flags(command, flags);
  command.add_option("--save-every", settings.save_every,
                     "steps between checkpoints (only the end)");
  command.add_option("--keep", settings.keep, "newest checkpoints that stay (2)");
  command.add_option("--save-minutes", settings.save_minutes,
                     "minutes between checkpoints, besides");
  command.add_option("--keep-every", settings.keep_every,
                     "checkpoints of steps that it divides stay too (none)");
  command.add_flag("--resume", flags.resume,
                   "go on with the run that is there, as the same command does anyway");
  command.add_flag("--dry-run", flags.dry_run,
                   "check everything, say the memory it will take, load no weight, begin no run");
  command.add_flag(
      "--show-settings", flags.show_settings,
      "print the settings that the run would have, resolved, as a recipe; begin no run");
  add_device(command, flags.device);
  add_threads(command, settings.threads);
  add_force(command, settings.force, kForcedGate);
  add_quiet(command, flags.quiet);
  add_json(command, flags.json);
  add_config(command);
}

}  // namespace moe::cli
