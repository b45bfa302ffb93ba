// moe inspect: what a folder holds; nothing but headers is read.

#include "core/model/convert/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/option.h"
#include "core/base/terminal_text.h"

namespace moe::cli {

namespace {

void print_row(const std::string& label, const std::string& text) {
  fmt::print("{:<14}{}\n", label, terminal_text(text, /*one_line=*/true));
}

void print_mixture(const model::Inspection& model) {
  const model::MoeConfig& moe = *model.config.moe;
  print_row("mixtures",
            fmt::format("layers {}: {} experts of width {}", model::layer_ranges(moe.layers),
                        moe.experts, moe.expert_width));
  print_row("router", route::to_string(moe.router));
  print_row("upcycled", !moe.source_name.empty()              ? "from " + moe.source_name
                        : moe.form == model::FolderForm::kMoe ? "no, from scratch"
                                                              : "no, made elsewhere");
  print_row("function", model.preserves);
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
    print_mixture(model);
  }
  print_row("parameters", fmt::format("{} total ({}), {} active per token ({})",
                                      format_count(static_cast<double>(model.parameters.total)),
                                      model.parameters.total,
                                      format_count(static_cast<double>(model.parameters.active)),
                                      model.parameters.active));
  std::string types;
  for (const auto& [dtype, bytes] : model.bytes_by_dtype) {
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", dtype,
                         format_bytes(static_cast<double>(bytes)));
  }
  print_row("size", fmt::format("{} ({})", format_bytes(static_cast<double>(model.bytes)), types));
  if (config.moe) {
    print_row("per rank", fmt::format("{} on each of {} expert-parallel ranks",
                                      format_bytes(static_cast<double>(model.bytes_per_rank)),
                                      config.moe->ep_ranks));
  }
  print_row("tokenizer", model.tokenizer);
  for (const auto& line : model.stock) {
    print_row("stock tools", line);
  }
  for (const auto& line : model.needs_moe) {
    print_row("needs moe", line);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  struct Flags {
    std::string folder;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("inspect", "parameters, layers, router and bytes of a folder");
  command->option_defaults()->group(group::kModel);
  command->add_option("MODEL", flags->folder, "a model folder")->required();
  add_json(*command, flags->json);
  command->callback([flags] {
    const model::Inspection model = model::inspect(flags->folder);
    if (flags->json) {
      fmt::print("{}\n", model::to_json(model).dump(2));
    } else {
      print_table(model);
    }
  });
}

}  // namespace moe::cli
