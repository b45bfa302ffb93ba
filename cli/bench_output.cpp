#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/base/terminal_text.h"
#include "core/bench/changes.h"
#include "core/bench/environment.h"
#include "kernels/ops/device.h"

namespace moe::cli {

void add_bench_output(CLI::App& command, BenchOutput& output) {
  add_threads(command, output.threads);
  add_json(command, output.json);
  command.add_option("--against", output.against, "an earlier --json of the same: show the change");
}

Json begin_bench(const BenchOutput& output, const std::string& what) {
  apply_threads(output.threads);
  return output.against.empty() ? Json() : bench::read_earlier(output.against, what);
}

void print_bench(const BenchOutput& output, const std::string& what, const Json& earlier,
                 const OrderedJson& json, const std::string& table) {
  OrderedJson whole = bench::environment(what);
  const bool has_card = device_of(output.device).is_cuda();
  if (has_card) {
    whole["device"] = kernels::gpu_name(0);
    whole["clock"] = "wall";
  }
  whole.update(json);
  const Json now(whole);
  const auto found =
      earlier.is_null() ? std::vector<bench::Change>{} : bench::changes(earlier, now);
  const std::string note = earlier.is_null() ? "" : bench::settings_note(earlier, now);
  if (output.json) {
    for (const auto& change : found) {
      whole["changes"][change.name] = {{"before", change.before}, {"after", change.after}};
    }
    if (!note.empty()) {
      whole["against_note"] = note;
    }
    fmt::print("{}\n", whole.dump(2));
    return;
  }
  fmt::print("{}{}, {}, {} threads, LibTorch {}\n{}",
             has_card ? kernels::gpu_name(0) + ", " : std::string(),
             now["processor"].get<std::string>(), now["instruction_set"].get<std::string>(),
             now["threads"].get<int>(), now["torch_version"].get<std::string>(), table);
  if (!earlier.is_null()) {
    fmt::print("against {}{}\n", output.against,
               note.empty() ? "" : ", which " + terminal_text(note, /*one_line=*/true));
  }
  for (const auto& change : found) {
    fmt::print("  {:<44}{:>14.6g}{:>14.6g}{:>+9.1f} %\n",
               terminal_text(change.name, /*one_line=*/true), change.before, change.after,
               change.before == 0 ? 0 : 100 * (change.after / change.before - 1));
  }
}

std::string in_words(const bench::Timing& time) {
  return fmt::format("{:.2f} ms (best {:.2f}, worst {:.2f})", 1e3 * time.median_s,
                     1e3 * time.best_s, 1e3 * time.worst_s);
}

}  // namespace moe::cli
