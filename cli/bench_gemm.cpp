// moe bench gemm: products at a model's shapes, LibTorch's and ours.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/bench/gemm.h"
#include "core/io/checkpoint.h"

namespace moe::cli {

namespace {

struct GemmFlags {
  BenchOutput output;
  std::string folder;
  int64_t tokens = 1024, repeats = 7;
  std::string precision = "fp32";
};

// The shapes of S (core/bench/train.h) where no folder is given.
model::ModelConfig config_of(const GemmFlags& flags) {
  if (!flags.folder.empty()) {
    const io::Checkpoint checkpoint(flags.folder);
    return model::parse_config(checkpoint.config(), checkpoint.config_name());
  }
  model::ModelConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.layers = 4;
  config.heads = config.kv_heads = 8;
  config.head_dim = 32;
  config.vocab_size = 32000;
  config.moe.emplace();
  config.moe->experts = 8;
  config.moe->layers = {0, 1, 2, 3};
  return config;
}

void run(const GemmFlags& flags) {
  const Json earlier = begin_bench(flags.output, "gemm");
  const model::ModelConfig config = config_of(flags);
  const int64_t rows = 2 * flags.tokens;  // of top-2
  const bool is_bf16 = flags.precision == "bf16";
  const auto options =
      at::TensorOptions(device_of(flags.output.device)).dtype(is_bf16 ? at::kBFloat16 : at::kFloat);
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
    const OrderedJson one = bench::to_json(reports.back());
    json["products"].push_back(one);
    table += fmt::format("  {:<16}{:>7}{:>7}{:>7}", shape.name, shape.m, shape.k, shape.n);
    for (const char* form : {"y", "dx", "dw"}) {
      table += fmt::format("{:>9.1f}{:>8.1f}", one[form]["library_gflops"].get<double>(),
                           one[form]["gflops"].get<double>());
    }
    table += "\n";
  }
  const double roof = bench::roof_flops(reports) / 1e9;
  json["roof_gflops"] = roof;
  table += fmt::format("roof of a step, at::mm weighted by what each holds: {:.1f}\n", roof);
  print_bench(flags.output, "gemm", earlier, json, table);
}

}  // namespace

void add_bench_gemm(CLI::App& bench) {
  auto flags = std::make_shared<GemmFlags>();
  CLI::App* command = bench.add_subcommand(
      "gemm", "the roof: products at a model's shapes, by LibTorch and by our own");
  command->add_option("MODEL", flags->folder, "a folder (shapes of a 35 M mixture)");
  command->add_option("--tokens", flags->tokens, "of a micro-batch (1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--repeats", flags->repeats, "after one to warm up (7)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  command->add_option("--precision", flags->precision, "fp32 (default) or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  add_device(*command, flags->output.device);
  add_bench_output(*command, flags->output);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
