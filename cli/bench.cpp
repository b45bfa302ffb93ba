// moe bench: declares the flags of each benchmark and prints its report (core/bench/bench.h) as
// JSON or as tables.

#include "core/bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/text.h"
#include "core/bench/timing.h"

namespace moe::cli {

namespace {

// Formats a value with the unit that its key ends in.
std::string format_value(const std::string& key, const OrderedJson& value) {
  if (value.is_string()) {
    return terminal_text(value.get<std::string>(), /*one_line=*/true);
  }
  if (!value.is_number()) {
    return json_text(value);
  }
  const auto number = value.get<double>();
  if (key.ends_with("ms")) {
    return number < 1 ? fmt::format("{:.1f} us", 1e3 * number) : fmt::format("{:.2f} ms", number);
  }
  if (key.ends_with("bytes_per_second")) {
    return format_bytes(number) + "/s";
  }
  if (key.ends_with("bytes")) {
    return format_bytes(number);
  }
  if (key.ends_with("gflops")) {
    return fmt::format("{:.1f} GFLOP/s", number);
  }
  if (key.find("share") != std::string::npos) {
    return fmt::format("{:.2f} %", 100 * number);
  }
  return value.is_number_integer() ? value.dump() : fmt::format("{:.5g}", number);
}

// Returns a key as words, without the unit that format_value() adds.
std::string label(std::string key) {
  for (const auto& [unit, word] :
       {std::pair("_ms", ""), std::pair("_gflops", ""), std::pair("bytes_per_second", "rate")}) {
    if (key.ends_with(unit)) {
      key.replace(key.size() - std::string_view(unit).size(), std::string::npos, word);
      break;
    }
  }
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

bool is_flat(const OrderedJson& json) {
  return json.is_object() && std::none_of(json.begin(), json.end(), [](const OrderedJson& value) {
           return value.is_structured();
         });
}

using Row = std::pair<std::string, OrderedJson>;  // name, flat object

// Prints rows as a table whose columns are the names and the union of the keys.
void print_table(const std::vector<Row>& rows, const std::string& indent) {
  std::vector<std::string> keys = {""};
  for (const auto& [name, row] : rows) {
    for (const auto& [key, value] : row.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        keys.push_back(key);
      }
    }
  }
  std::vector<std::string> lines(rows.size() + 1, indent);
  for (const auto& key : keys) {
    std::vector<std::string> cells = {label(key)};
    size_t width = cells[0].size();
    for (const auto& [name, row] : rows) {
      cells.push_back(key.empty() ? name : row.contains(key) ? format_value(key, row[key]) : "");
      width = std::max(width, cells.back().size());
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      lines[i] += key.empty() ? fmt::format("{:<{}}", cells[i], width)
                              : fmt::format("  {:>{}}", cells[i], width);
    }
  }
  print_text("{}\n", fmt::join(lines, "\n"));
}

// Prints an object: values one per line, neighbouring flat objects as the rows of a table, the
// parts of a model as a table with their shares, and what is nested deeper below its name.
void print_report(const OrderedJson& report, const std::string& indent) {
  std::vector<Row> rows;
  const auto flush = [&] {
    if (!rows.empty()) {
      print_table(rows, indent);
    }
    rows.clear();
  };
  for (const auto& [key, value] : report.items()) {
    if (key == "parts_ms") {
      flush();
      double sum = 0;
      for (const OrderedJson& ms : value) {
        sum += ms.get<double>();
      }
      for (const auto& [name, ms] : value.items()) {
        rows.emplace_back(name, OrderedJson{{"ms", ms}, {"share", ms.get<double>() / sum}});
      }
      flush();
    } else if (is_flat(value)) {
      rows.emplace_back(label(key), value);
    } else if (value.is_structured()) {
      flush();
      for (const OrderedJson& element : value.is_array() ? value : OrderedJson::array({value})) {
        print_text("\n{}{}\n", indent, label(key));
        print_report(element, indent + "  ");
      }
    } else if (value != "") {
      flush();
      print_text("{}{:<28}{}\n", indent, label(key), format_value(key, value));
    }
  }
  flush();
}

Option flag(const char* name, Member member, const char* help, Range range = {},
            const char* fallback = "") {
  return {.name = name,
          .member = std::move(member),
          .group = group::kMeasure,
          .help = help,
          .fallback = fallback,
          .range = range};
}

// A flag with another spelling, such as a positional argument.
Option spelled(const char* spelling, bool is_required, Option option) {
  option.spelled = spelling;
  option.is_required = is_required;
  return option;
}

Option model_folder(std::filesystem::path& model) {
  return spelled("MODEL", true, flag("model", &model, "model folder, dense or MoE"));
}

Option model_or_synthetic(std::string& model) {
  return spelled("MODEL", false,
                 flag("model", &model, "a folder, or a synthetic mixture: S (35 M) or M (176 M)"));
}

Option repeats(int64_t& repeats, const char* help = "timed runs, after one to warm up") {
  return flag("repeats", &repeats, help, whole_between(1, 1000000));
}

Option layer_precision(bool& use_bf16) {
  return flag("precision",
              choice<bool, bool>("precision", use_bf16, {{"fp32", false}, {"bf16", true}}),
              "of products");
}

Range size_range() { return whole_between(1, 1 << 24); }

void add_layer_flags(CLI::App& command, bench::LayerSettings& s) {
  add_options(command, {flag("router", &s.routers, "one or more"),
                        flag("cf", &s.cf, "capacity factor of all of them, or inf"),
                        flag("tokens", &s.tokens, "T", size_range()),
                        flag("width", &s.width, "D", size_range()),
                        flag("inner", &s.inner, "F of an expert", size_range()),
                        flag("experts", &s.experts, "E", size_range()),
                        flag("ep-ranks", &s.ep_ranks, "logical ranks W", size_range(), "E"),
                        flag("skew", &s.skew, "subtract SKEW * j from the logits of expert j"),
                        repeats(s.repeats), layer_precision(s.use_bf16)});
}

void add_gemm_flags(CLI::App& command, bench::GemmSettings& s) {
  add_options(command, {model_or_synthetic(s.model),
                        flag("tokens", &s.tokens, "of a micro-batch", size_range()),
                        repeats(s.repeats), layer_precision(s.use_bf16)});
}

void add_train_flags(CLI::App& command, bench::TrainSettings& s) {
  add_options(command, {model_or_synthetic(s.model)});
  add_options(command, model::request_options(s.upcycle));
  add_router_flags(command, s.router);
  add_force_memory(command, s.force_memory);
  add_options(command,
              {flag("precision", choice(s.precision, model::parse_precision, model::to_string),
                    "fp32, bf16 or tf32 (CUDA GPUs)"),
               flag("rows", &s.rows, "sequences per step", size_range()),
               flag("seq-len", &s.length, "tokens per sequence", size_range()),
               flag("warmup", &s.warmup, "steps before the timed ones", size_range()),
               repeats(s.repeats, "timed steps")});
}

void add_eval_flags(CLI::App& command, bench::EvalSettings& s) {
  Option tasks = flag("tasks", &s.eval.tasks, "as for moe eval", {}, "synthetic requests");
  tasks.takes_commas = true;
  add_options(
      command,
      {model_folder(s.eval.model), tasks,
       flag("data", &s.eval.data, "folder of the benchmarks' files"),
       flag("limit", &s.eval.limit, "questions of each task", size_range(),
            "all; of synthetic ones 60"),
       flag("batch-tokens", &s.eval.batch_tokens, "of one forward pass", size_range(),
            "as moe eval's auto"),
       flag("group-tokens", &s.eval.group_tokens, "per logical rank, with capacity", size_range()),
       repeats(s.repeats), flag("parts", &s.parts, "also time the parts of the model")});
  add_router_flags(command, s.eval.router);
  add_inference_precision(command, s.precision);
  add_force_memory(command, s.eval.force_memory);
}

void add_generate_flags(CLI::App& command, bench::GenerateSettings& s) {
  add_options(
      command,
      {model_folder(s.model), flag("rows", &s.rows, "texts at once", whole_between(1, 48)),
       flag("prompt-tokens", &s.prompt_tokens, "random tokens before each text", size_range()),
       flag("tokens", &s.tokens, "generated per text", whole_between(2, 1 << 20)),
       repeats(s.repeats)});
  add_inference_precision(command, s.precision);
  add_force_memory(command, s.force_memory);
}

void add_load_flags(CLI::App& command, bench::LoadSettings& s) {
  add_options(command,
              {model_folder(s.model), repeats(s.repeats, "timed loads, after a first one")});
  add_force_memory(command, s.force_memory);
}

void add_upcycle_flags(CLI::App& command, bench::UpcycleSettings& s) {
  add_options(command, {spelled("DENSE", true, flag("dense", &s.dense, "dense folder")),
                        spelled("-o,--out", true,
                                flag("out", &s.upcycle.out, "folder to create and remove again")),
                        flag("experts", &s.upcycle.experts, "E"),
                        flag("layers", &s.upcycle.layers, "even, odd, all or a list"),
                        repeats(s.repeats, "runs of both")});
}

void add_comm_flags(CLI::App& command, bench::CommSettings& s) {
  const Choice bytes = {
      [] { return std::string(); },
      [&s](const std::string& text) { s.max_bytes = parse_bytes(text, "--bytes"); }};
  add_options(command, {flag("bytes", bytes, "largest tensor of a rank", {}, "64MiB"),
                        repeats(s.repeats, "timed calls, after two to warm up")});
  add_rank_flags(command, s.ranks);
}

void add_route_flags(CLI::App& command, bench::LayerSettings& s) {
  s.times_layer = false;
  add_layer_flags(command, s);
}

void print(OrderedJson json, const CLI::App& command, const OrderedJson& report, bool as_json) {
  if (!as_json) {
    print_text("{}, {}, {} threads, LibTorch {}\n",
               format_value("", json.value("device", json["processor"])),
               json["instruction_set"].get<std::string>(), json["threads"].get<int>(),
               json["torch_version"].get<std::string>());
    return print_report(report, "");
  }
  json["settings"] = OrderedJson::object();  // the flags that were given
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) {
      json["settings"][option->get_single_name()] =
          fmt::format("{}", fmt::join(option->results(), " "));
    }
  }
  json.update(report);
  print_text("{}\n", json_text(json, 2));
}

// Adds `moe bench NAME`, which calls `run` with the settings that `add_own_flags` reads and with
// the device of --device if it takes one.
template <typename Settings, typename Run>
void add(CLI::App& bench, const char* name, const char* description,
         void (*add_own_flags)(CLI::App&, Settings&), Run run) {
  constexpr bool kHasDevice = std::is_invocable_v<Run, const Settings&, c10::Device>;
  struct Flags {
    Settings settings;
    std::string device;
    int threads = 0;
    bool json = false;
  };
  CLI::App* command = bench.add_subcommand(name, description);
  const auto flags = std::make_shared<Flags>();
  add_own_flags(*command, flags->settings);
  if (kHasDevice) {
    add_device(*command, flags->device);
  }
  add_threads(*command, flags->threads);
  add_json(*command, flags->json);
  command->callback([=] {
    apply_threads(flags->threads);
    const c10::Device device = device_of(flags->device);
    std::optional<OrderedJson> report;
    if constexpr (std::is_same_v<Settings, bench::CommSettings>) {
      flags->settings.ranks.threads = flags->threads;
    }
    if constexpr (kHasDevice) {
      report = run(flags->settings, device);
    } else {
      report = run(flags->settings);
    }
    if (report) {
      print(bench::environment(name, device), *command, *report, flags->json);
    }
  });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "speed, beside a roof measured in the same run");
  bench->require_subcommand(1);
  add(*bench, "layer", "a MoE layer on random tokens and its parts, beside at::mm", add_layer_flags,
      bench::bench_layer);
  add(*bench, "route", "routing and expert products of such a layer", add_route_flags,
      bench::bench_layer);
  add(*bench, "gemm", "matrix products at a model's shapes, by at::mm and by our own GEMM",
      add_gemm_flags, bench::bench_gemm);
  add(*bench, "train", "training steps on random tokens and their parts, beside at::mm",
      add_train_flags, bench::bench_train);
  add(*bench, "load", "loading a folder that is in the page cache", add_load_flags,
      bench::bench_load);
  add(*bench, "eval", "scoring of a folder, beside at::mm", add_eval_flags, bench::bench_eval);
  add(*bench, "generate", "generating texts, beside the rate of memory", add_generate_flags,
      bench::bench_generate);
  add(*bench, "upcycle", "upcycling a folder, beside plain writes to the same disk",
      add_upcycle_flags, bench::bench_upcycle);
  add(*bench, "comm", "collectives between ranks, by size", add_comm_flags, bench::bench_comm);
  add_config(*bench);
}

}  // namespace moe::cli
