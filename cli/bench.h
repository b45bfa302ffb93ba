#pragma once
// What the commands under `moe bench` share. Each adds itself (cli/bench_*.cpp): flags -> settings
// -> one call into core/bench -> a table, or JSON with --json.

#include <string>

#include "core/base/json.h"
#include "core/bench/timing.h"

namespace CLI {
class App;
}

namespace moe::cli {

struct BenchOutput {
  bool json = false;
  std::string against;  // an earlier --json
  int threads = 0;
  std::string device;  // of the commands that have --device; empty = cpu
};

// --json, --against, --threads.
void add_bench_output(CLI::App& command, BenchOutput& output);

// Applies --threads and reads --against, before anything is timed. UserError: core/bench/changes.h.
Json begin_bench(const BenchOutput& output, const std::string& what);

// Prints `json` after the environment, or `table`; then how it differs from `earlier`.
void print_bench(const BenchOutput& output, const std::string& what, const Json& earlier,
                 const OrderedJson& json, const std::string& table);

// "12.34 ms (best 12.00, worst 13.10)".
std::string in_words(const bench::Timing& time);

void add_bench_gemm(CLI::App& bench);
void add_bench_train(CLI::App& bench);
void add_bench_load(CLI::App& bench);
void add_bench_eval(CLI::App& bench);
void add_bench_upcycle(CLI::App& bench);
void add_bench_comm(CLI::App& bench);

}  // namespace moe::cli
