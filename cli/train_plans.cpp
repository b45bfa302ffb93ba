#include "cli/train_plans.h"

#include <fmt/format.h>

#include <cstdlib>

#include "cli/progress.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/terminal_text.h"
#include "core/data/show.h"
#include "core/train/loop/training_data.h"

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

OrderedJson to_json(const train::ClusterPlan& plan) {
  OrderedJson json = to_json(plan.memory);
  json["layout"] = distributed::describe(plan.layout);
  json["parameters"] = plan.parameters;
  json["tokens_per_step"] = plan.tokens;
  json["flop_per_gpu"] = plan.flop;
  json["token_bytes"] = plan.token_bytes;
  json["gradient_bytes"] = plan.gradient_bytes;
  json["weight_bytes"] = plan.weight_bytes;
  json["compute_seconds"] = plan.compute_s;
  json["token_seconds"] = plan.token_s;
  json["gradient_seconds"] = plan.gradient_s;
  json["weight_seconds"] = plan.weight_s;
  json["waiting_seconds"] = plan.waiting_s;
  json["communication_share"] = plan.communication_share();
  return json;
}

void print_rates(const train::ClusterPlan& plan, const train::ClusterRates& rates) {
  const auto line = [](const char* what, const std::string& how_much, double seconds) {
    print_text("{:<12}{:>12}{:>12.1f} ms\n", what, how_much, 1e3 * seconds);
  };
  line("computing", fmt::format("{:.1f} TFLOP", plan.flop / 1e12), plan.compute_s);
  line("tokens", format_bytes(plan.token_bytes), plan.token_s);
  line("gradients", format_bytes(plan.gradient_bytes), plan.gradient_s);
  const bool gathers = plan.weight_bytes > 0;
  if (gathers) {
    line("weights", format_bytes(plan.weight_bytes), plan.weight_s);
    print_text("{:<12}{:>12}{:>12.1f} ms\n", "not hidden", "", 1e3 * plan.waiting_s);
  }
  const double seconds = plan.step_s();
  print_text(
      "a step of {} tokens: {:.2f} s where {}, {:.1f} % of it communication; {:.0f} "
      "tokens/s a GPU (at {:g} TFLOP/s, {:g} GB/s inside a machine, {:g} GB/s between)\n",
      plan.tokens, seconds,
      gathers ? "weights are gathered beside computing and nothing else overlaps"
              : "nothing overlaps",
      100 * plan.communication_share(),
      static_cast<double>(plan.tokens) / seconds / static_cast<double>(plan.layout.processes),
      rates.tflops, rates.link_gbs, rates.network_gbs);
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
        "--nodes and --gpus plan a run on paper: add --dry-run; to run on several machines start "
        "moe train by torchrun, srun or mpirun on each");
  }
  train::ClusterRates rates = flags.rates;
  rates.nodes = flags.nodes.value_or(1);
  rates.gpus = flags.gpus.value_or(8);
  const train::ClusterPlan plan = train::plan_cluster(flags.settings, rates);
  for (const auto& note : plan.notes) {
    if (!flags.quiet) {
      print_text(stderr, "{}\n", terminal_text(note, /*one_line=*/true));
    }
  }
  if (flags.json) {
    print_text("{}\n", json_text(to_json(plan)));
    return;
  }
  print_text("{} parameters; {}\n", format_count(static_cast<double>(plan.parameters)),
             distributed::describe(plan.layout));
  print_classes(plan.memory);
  print_text("memory of one GPU; a step of it:\n");
  print_rates(plan, rates);
}

}  // namespace moe::cli
