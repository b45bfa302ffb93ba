// moe bench: how fast, as shares of what the machine does in the same run. The list of the
// measurements, and what they share.

#include "cli/bench.h"

#include <CLI/CLI.hpp>
#include <array>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/terminal_text.h"
#include "core/bench/changes.h"
#include "core/bench/environment.h"
#include "kernels/ops/device.h"

namespace moe::cli {

namespace {

struct Measurement {
  const char* name;
  const char* description;
  bool has_device;  // takes --device
  Measure (*add)(CLI::App& command);
};

// The first one is what `moe bench` measures where none is named.
constexpr std::array<Measurement, 9> kMeasurements = {{
    {"layer", "a whole MoE layer on random tokens, and its parts", true, add_bench_layer},
    {"route", "routing and products of such a layer", true, add_bench_route},
    {"gemm", "the roof: products at a model's shapes, by LibTorch and by our own", true,
     add_bench_gemm},
    {"train", "steps of training on random tokens, and their parts", true, add_bench_train},
    {"load", "reading a folder into memory, its files in the system's cache", false,
     add_bench_load},
    {"eval", "scoring of a folder: rate, sharing, the roof", true, add_bench_eval},
    {"generate", "generating texts: rate, beside the reading of memory", false, add_bench_generate},
    {"upcycle", "upcycling a folder, beside plain writes of as many bytes to the same disk", false,
     add_bench_upcycle},
    {"comm", "collectives between ranks, by size", true, add_bench_comm},
}};

OrderedJson with_environment(const std::string& what, bool is_cuda, const OrderedJson& json) {
  OrderedJson whole = bench::environment(what);
  if (is_cuda) {
    whole["device"] = kernels::gpu_name(0);
    whole["clock"] = "wall";
  }
  whole.update(json);
  return whole;
}

void print_json(OrderedJson whole, const std::vector<bench::Change>& changes,
                const std::string& note) {
  for (const auto& change : changes) {
    whole["changes"][change.name] = {{"before", change.before}, {"after", change.after}};
  }
  if (!note.empty()) {
    whole["against_note"] = note;
  }
  print_text("{}\n", json_text(whole, 2));
}

void print_changes(const std::string& against, const std::vector<bench::Change>& changes,
                   const std::string& note) {
  print_text("against {}{}\n", against,
             note.empty() ? "" : ", which " + terminal_text(note, /*one_line=*/true));
  for (const auto& change : changes) {
    print_text("  {:<44}{:>14.6g}{:>14.6g}{:>+9.1f} %\n",
               terminal_text(change.name, /*one_line=*/true), change.before, change.after,
               change.before == 0 ? 0 : 100 * (change.after / change.before - 1));
  }
}

void run(const std::string& what, const Measure& measure, const BenchFlags& flags) {
  apply_threads(flags.threads);
  const Json earlier =  // read before anything is timed
      flags.against.empty() ? Json() : bench::read_earlier(flags.against, what);
  const auto result = measure(flags);
  if (!result) {
    return;
  }
  const bool is_cuda = device_of(flags.device).is_cuda();
  const OrderedJson whole = with_environment(what, is_cuda, result->json);
  const Json now(whole);
  const bool has_earlier = !earlier.is_null();
  const auto changes = has_earlier ? bench::changes(earlier, now) : std::vector<bench::Change>();
  const std::string note = has_earlier ? bench::settings_note(earlier, now) : "";
  if (flags.json) {
    return print_json(whole, changes, note);
  }
  print_text("{}{}, {}, {} threads, LibTorch {}\n{}",
             is_cuda ? kernels::gpu_name(0) + ", " : std::string(),
             now["processor"].get<std::string>(), now["instruction_set"].get<std::string>(),
             now["threads"].get<int>(), now["torch_version"].get<std::string>(), result->table);
  if (has_earlier) {
    print_changes(flags.against, changes, note);
  }
}

// Adds the flags of a measurement to `command`; what is returned runs it.
std::function<void()> add_flags(CLI::App& command, const Measurement& measurement) {
  auto flags = std::make_shared<BenchFlags>();
  const Measure measure = measurement.add(command);
  if (measurement.has_device) {
    add_device(command, flags->device);
  }
  add_threads(command, flags->threads);
  add_json(command, flags->json);
  add_options(command, {{.name = "against",
                         .member = &flags->against,
                         .group = group::kMeasure,
                         .help = "an earlier --json of the same: show the change"}});
  return [=, name = measurement.name] { run(name, measure, *flags); };
}

// Flags before the name of a measurement are those of the default one: they would change nothing.
void check_no_flags(const CLI::App& bench, const std::string& name) {
  for (const auto* option : bench.get_options()) {
    if (option->count() > 0) {
      throw UserError("{} is given to moe bench, not to moe bench {}; write it after '{}'",
                      option->get_name(), name, name);
    }
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  const Measurement& first = kMeasurements.front();
  CLI::App* bench = app.add_subcommand("bench", "speed, beside a roof measured in the same run");
  const auto run_default = add_flags(*bench, first);
  for (CLI::Option* option : bench->get_options()) {
    if (!option->check_name("--help")) {
      option->group(fmt::format("{} (where none is named)", first.name));
    }
  }
  for (const Measurement& measurement : kMeasurements) {
    CLI::App* command = bench->add_subcommand(measurement.name, measurement.description);
    command->callback([bench, name = measurement.name, run = add_flags(*command, measurement)] {
      check_no_flags(*bench, name);
      run();
    });
  }
  add_config(*bench);
  bench->callback([=] {
    if (bench->get_subcommands().empty()) {
      run_default();
    }
  });
}

std::string in_words(const bench::Timing& time) {
  return fmt::format("{:.2f} ms (best {:.2f}, worst {:.2f})", 1e3 * time.median_s,
                     1e3 * time.best_s, 1e3 * time.worst_s);
}

}  // namespace moe::cli
