#pragma once
// The measurements of `moe bench`. Each is a source of its own, cli/bench_*.cpp: flags -> settings
// -> one call into core/bench -> numbers and a table; cli/bench.cpp lists them, and has once what
// they share: --device, --threads, --json, --against, and what is printed.

#include <functional>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/bench/timing.h"

namespace CLI {
class App;
}

namespace moe::cli {

// What the user said to every measurement alike.
struct BenchFlags {
  std::string device;   // empty = cpu
  int threads = 0;      // 0 = what LibTorch finds; applied before a measurement begins
  bool json = false;    // print `json` of the result, else `table`
  std::string against;  // what --json printed earlier; empty = nothing
};

struct BenchResult {
  OrderedJson json;   // "settings" and what was measured; goes behind the environment
  std::string table;  // the same for people
};

// Measures by the flags that were read since it was made. Nothing: another process has the result.
// UserError: flags that do not fit, before anything is timed; what the measurement says.
using Measure = std::function<std::optional<BenchResult>(const BenchFlags& flags)>;

// Each adds its own flags to `command`.
Measure add_bench_layer(CLI::App& command);
Measure add_bench_route(CLI::App& command);
Measure add_bench_gemm(CLI::App& command);
Measure add_bench_train(CLI::App& command);
Measure add_bench_load(CLI::App& command);
Measure add_bench_eval(CLI::App& command);
Measure add_bench_generate(CLI::App& command);
Measure add_bench_upcycle(CLI::App& command);
Measure add_bench_comm(CLI::App& command);

// "12.34 ms (best 12.00, worst 13.10)".
std::string in_words(const bench::Timing& time);

}  // namespace moe::cli
