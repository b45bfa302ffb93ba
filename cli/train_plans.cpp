#include "cli/train_plans.h"

#include <fmt/format.h>

#include <cstdlib>

#include "cli/progress.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/example_set.h"
#include "core/train/step/training_data.h"

namespace moe::cli {

namespace {

using Classes = std::vector<std::pair<const char*, uint64_t>>;

Classes classes_of(const train::MemoryPlan& memory) {
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
  for (const auto& [name, bytes] : classes_of(memory)) {
    json[fmt::format("{}_bytes", name)] = bytes;
  }
  return json;
}

void print_classes(const train::MemoryPlan& memory) {
  for (const auto& [name, bytes] : classes_of(memory)) {
    print_text("{:<12}{:>10}\n", name, format_bytes(static_cast<double>(bytes)));
  }
}

}  // namespace

void print_memory(const train::MemoryPlan& memory, bool of_gpu, bool as_json) {
  if (as_json) {
    print_text("{}\n", json_text(to_json(memory)));
    return;
  }
  print_classes(memory);
  print_text("memory of one {} (dry run: no weight was loaded, no run begun)\n",
             of_gpu ? "GPU" : "process");
}

void print_samples(const train::TrainSettings& settings, int64_t count) {
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = is_terminal(1) && (no_colour == nullptr || *no_colour == '\0');
  const train::Samples samples = train::read_samples(settings, count);
  for (size_t file = 0; file < samples.files.size(); ++file) {
    print_text("{}: {}\n", terminal_text(samples.files[file], /*one_line=*/true),
               terminal_text(samples.forms[file], /*one_line=*/true));
  }
  for (const auto& example : samples.examples) {
    const std::string where =
        fmt::format("{} line {}", samples.files[static_cast<size_t>(example.file)], example.line);
    // Has colours of its own, and escapes the strings of files.
    const std::string shown = data::show_example(example, where, samples.piece, colour);
    std::fputs(("\n" + shown).c_str(), stdout);
  }
}

void print_cluster(const TrainFlags& flags) {
  if (!flags.dry_run) {
    throw UserError(
        "--nodes and --gpus estimate the memory of a run; add --dry-run, or start moe train with "
        "torchrun, srun or mpirun on each machine");
  }
  const train::ClusterPlan plan =
      train::plan_cluster(flags.settings, flags.nodes.value_or(1), flags.gpus.value_or(8));
  for (const auto& note : plan.notes) {
    if (!flags.quiet) {
      print_text(stderr, "{}\n", terminal_text(note, /*one_line=*/true));
    }
  }
  if (flags.json) {
    OrderedJson json = to_json(plan.memory);
    json["layout"] = distributed::describe(plan.layout);
    json["parameters"] = plan.parameters;
    print_text("{}\n", json_text(json));
    return;
  }
  print_text("{} parameters; {}\n", format_count(static_cast<double>(plan.parameters)),
             distributed::describe(plan.layout));
  print_memory(plan.memory, /*of_gpu=*/true, /*as_json=*/false);
}

}  // namespace moe::cli
