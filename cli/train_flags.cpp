#include "cli/train_flags.h"

#include <CLI/CLI.hpp>

#include "cli/flags.h"
#include "core/train/config/options.h"

namespace moe::cli {

namespace {

Options cluster_options(TrainFlags& flags) {
  return {
      {.name = "nodes",
       .member = &flags.nodes,
       .group = group::kRanks,
       .help = "with --dry-run: print the memory of one GPU in a run on N machines; reads only the "
               "config",
       .fallback = "1"},
      {.name = "gpus",
       .member = &flags.gpus,
       .group = group::kRanks,
       .help = "GPUs per machine",
       .fallback = "8"},
  };
}

// What this call does; no settings of the run.
Options call_options(TrainFlags& flags) {
  return {
      {.name = "show-samples",
       .member = &flags.show_samples,
       .group = group::kOutput,
       .help = "print N examples as the model will see them, those tokens marked that carry loss, "
               "and stop",
       .fallback = "none",
       .range = whole_from(1)},
      {.name = "show-settings",
       .member = &flags.show_settings,
       .group = group::kOutput,
       .help = "print the settings that the run would have, resolved, as a recipe; begin no run"},
      {.name = "dry-run",
       .member = &flags.dry_run,
       .group = group::kOutput,
       .help = "check everything, say the memory it will take, load no weight, begin no run"},
      {.name = "profile",
       .member = &flags.profile,
       .group = group::kOutput,
       .help = "write what ran when in the first N steps to RUN/trace.json, for chrome://tracing "
               "or ui.perfetto.dev",
       .fallback = "none",
       .range = whole_from(1)},
      {.name = "resume",
       .member = &flags.resume,
       .group = group::kOutput,
       .help = "go on with the run that is there, as the same command does anyway"},
  };
}

}  // namespace

void add_train_flags(CLI::App& command, TrainFlags& flags) {
  add_options(command, train::train_options(flags.settings));
  add_rank_flags(command, flags.ranks);
  add_options(command, cluster_options(flags));
  add_options(command, call_options(flags));
  add_force(command, flags.settings.force, kForcedGate);
  add_force_memory(command, flags.settings.force_memory);
  add_quiet(command, flags.quiet);
  add_json(command, flags.json);
  add_config(command);
}

}  // namespace moe::cli
