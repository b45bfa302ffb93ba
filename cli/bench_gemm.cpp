// moe bench gemm: products at a model's shapes, LibTorch's and ours.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/bench/gemm.h"
#include "core/bench/train.h"
#include "core/io/checkpoint.h"

namespace moe::cli {

namespace {

struct GemmFlags {
  std::string folder;
  int64_t tokens = 1024, repeats = 7;
  std::string precision = "fp32";
};

// The shapes of S where no folder is given.
model::ModelConfig config_of(const GemmFlags& flags) {
  if (!flags.folder.empty()) {
    const io::Checkpoint checkpoint(flags.folder);
    return model::parse_config(checkpoint.config(), checkpoint.config_name());
  }
  model::ModelConfig config = model::parse_config(Json(bench::synthetic_config("S")), "S");
  config.moe.emplace();
  config.moe->experts = 8;
  config.moe->expert_width = config.intermediate_size;
  config.moe->layers = {0, 1, 2, 3};
  return config;
}

BenchResult measure(const GemmFlags& flags, c10::Device device) {
  const model::ModelConfig config = config_of(flags);
  const int64_t rows = 2 * flags.tokens;  // of top-2
  const bool is_bf16 = flags.precision == "bf16";
  const auto options = at::TensorOptions(device).dtype(is_bf16 ? at::kBFloat16 : at::kFloat);
  OrderedJson json = {{"settings",
                       {{"model", flags.folder.empty() ? "S" : flags.folder},
                        {"tokens", flags.tokens},
                        {"repeats", flags.repeats}}},
                      {"products", OrderedJson::array()}};
  if (is_bf16) {
    json["settings"]["precision"] = "bf16";
  }
  std::string table = fmt::format("GFLOP/s, {}, best of {}: at::mm | ours\n  {:<16}{:>7}{:>7}{:>7}",
                                  is_bf16 ? "bf16" : "f32", flags.repeats, "", "m", "k", "n");
  table += fmt::format("{:>17}{:>17}{:>17}\n", "y", "dx", "dw");
  std::vector<bench::ProductReport> reports;
  for (const auto& shape : bench::product_shapes(config, flags.tokens, rows)) {
    reports.push_back(bench::bench_product(shape, flags.repeats, options));
    const OrderedJson product = bench::to_json(reports.back());
    json["products"].push_back(product);
    table += fmt::format("  {:<16}{:>7}{:>7}{:>7}", shape.name, shape.m, shape.k, shape.n);
    for (const char* form : {"y", "dx", "dw"}) {
      table += fmt::format("{:>9.1f}{:>8.1f}", product[form]["library_gflops"].get<double>(),
                           product[form]["gflops"].get<double>());
    }
    table += "\n";
  }
  const double roof = bench::roof_flops(reports) / 1e9;
  json["roof_gflops"] = roof;
  table += fmt::format("roof of a step, at::mm weighted by what each holds: {:.1f}\n", roof);
  return {json, table};
}

}  // namespace

Measure add_bench_gemm(CLI::App& command) {
  auto flags = std::make_shared<GemmFlags>();
  add_options(command, {{.name = "model",
                         .member = &flags->folder,
                         .group = group::kMeasure,
                         .help = "a folder",
                         .fallback = "shapes of a 35 M mixture",
                         .spelled = "MODEL"},
                        {.name = "tokens",
                         .member = &flags->tokens,
                         .group = group::kMeasure,
                         .help = "of a micro-batch",
                         .range = whole_between(1, 1 << 24)},
                        {.name = "repeats",
                         .member = &flags->repeats,
                         .group = group::kMeasure,
                         .help = "after one to warm up",
                         .range = whole_between(1, 1000)},
                        {.name = "precision",
                         .member = one_of("precision", flags->precision, {"fp32", "bf16"}),
                         .group = group::kMeasure,
                         .help = "fp32 or bf16"}});
  return [flags](const BenchFlags& shared) { return measure(*flags, device_of(shared.device)); };
}

}  // namespace moe::cli
