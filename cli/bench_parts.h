#pragma once
// The parts of `moe bench` that have flags of their own, each a command below it.

#include <CLI/CLI.hpp>

namespace moe::cli {

void add_bench_eval(CLI::App& bench);

}  // namespace moe::cli
