// moe inspect: prints the contents of a model folder from the headers of its files. With --against,
// also prints how far its experts have diverged.

#include "core/upcycle/inspect.h"

#include <fmt/format.h>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/text.h"

namespace moe::cli {
namespace {

void print_row(const std::string& label, const std::string& text) {
  print_text("{:<14}{}\n", label, terminal_line(text));
}

void print_moe(const model::Inspection& model) {
  const model::MoeConfig& moe = *model.config.moe;
  const std::string slices =
      moe.granularity == 1 ? "" : fmt::format(" (granularity {})", moe.granularity);
  const std::string shared =
      moe.shared_expert_width == 0
          ? ""
          : fmt::format(", plus a shared expert of width {}", moe.shared_expert_width);
  print_row("mixtures",
            fmt::format("layers {}: {} experts of width {}{}{}", model::layer_ranges(moe.layers),
                        moe.experts, moe.expert_width, slices, shared));
  print_row("router", route::to_string(moe.router));
  print_row("upcycled", !moe.source_name.empty()              ? "from " + moe.source_name
                        : moe.form == model::FolderForm::kMoe ? "no, from scratch"
                                                              : "unknown, not created by moe");
  print_row("function", model.function.words);
}

void print_table(const model::Inspection& model) {
  const model::ModelConfig& config = model.config;
  print_row("folder", model.folder);
  print_row("model type", model.model_type);
  print_row("layers",
            fmt::format("{} of width {}, {} heads of {} ({} for keys and values), vocabulary {}",
                        config.layers, config.hidden_size, config.heads, config.head_dim,
                        config.kv_heads, config.vocab_size));
  if (config.moe) {
    print_moe(model);
  }
  print_row("parameters",
            fmt::format("{} total ({}), {} active per token ({})",
                        format_count(model.parameters.total), model.parameters.total,
                        format_count(model.parameters.active), model.parameters.active));
  std::string types;
  for (const auto& [dtype, bytes] : model.bytes_by_dtype) {
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", dtype, format_bytes(bytes));
  }
  print_row("size", fmt::format("{} ({})", format_bytes(model.bytes), types));
  if (config.moe) {
    print_row("per rank", fmt::format("{} on each of {} expert-parallel ranks",
                                      format_bytes(model.bytes_per_rank), config.moe->ep_ranks));
  }
  print_row("tokenizer", model.tokenizer);
  for (const auto& line : model.stock) {
    print_row("transformers", line);
  }
  for (const auto& line : model.needs_moe) {
    print_row("needs moe", line);
  }
}

// Prints nothing without --against.
void print_distances(const std::vector<model::LayerDistances>& layers, const std::string& other) {
  if (other.empty()) {
    return;
  }
  print_text(
      "\nmean cosine similarity (1 = equal), compared with {}\n{:>6}{:>18}{:>16}{:>18}{:>24}\n",
      terminal_line(other), "layer", "between experts", "to other model", "between routers",
      "routers to other model");
  for (const auto& layer : layers) {
    print_text("{:>6}{:>18.6f}{:>16.6f}{:>18.6f}{:>24}\n", layer.layer, layer.between_experts,
               layer.to_other, layer.between_routers,
               layer.router_to_other ? fmt::format("{:.6f}", *layer.router_to_other) : "-");
  }
}

struct InspectFlags {
  std::string folder, against;
  bool json = false;
};

void run(const InspectFlags& flags) {
  const model::Inspection model = model::inspect(flags.folder);
  std::vector<model::LayerDistances> distances;
  if (!flags.against.empty()) {
    distances =
        model::expert_distances(io::Checkpoint(flags.folder), io::Checkpoint(flags.against));
  }
  if (!flags.json) {
    print_table(model);
    return print_distances(distances, flags.against);
  }
  OrderedJson out = model::to_json(model);
  if (!flags.against.empty()) {
    out["against"] = {{"folder", flags.against}, {"layers", model::to_json(distances)}};
  }
  print_json(out, 2);
}

Options options(InspectFlags& flags) {
  return {positional("MODEL", &flags.folder, group::kModel, "model directory"),
          {"against", &flags.against, group::kModel,
           "also print the similarity of the experts to each other and to those of another model, "
           "such as the dense parent or an earlier checkpoint"},
          json_option(flags.json)};
}

}  // namespace

void add_inspect(CLI::App& app) {
  add_examples(
      add_command<const InspectFlags&>(
          app, "inspect", "print parameters, layers, router and size of a model", run, options),
      "moe inspect my-moe\nmoe inspect run/final --against my-llama");
}

}  // namespace moe::cli
