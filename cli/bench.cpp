// moe bench: flags of each benchmark (core/bench/bench.h), and its report as tables or JSON.

#include "core/bench/bench.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/text.h"
#include "core/bench/timing.h"
#include "core/eval/report/task_report.h"

namespace moe::cli {
namespace {

// Formats a value. The end of the key is the unit of the value.
std::string format_value(const std::string& key, const OrderedJson& value) {
  if (value.is_string()) {
    return terminal_line(value.get<std::string>());
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

// Returns a key as words, without the units that format_value() prints.
std::string label(std::string key) {
  for (const auto& [unit, word] :
       {std::pair("_ms", ""), std::pair("_gflops", ""), std::pair("bytes_per_second", "rate")}) {
    if (key.ends_with(unit)) {
      key.replace(key.size() - std::string_view(unit).size(), std::string::npos, word);
      break;
    }
  }
  std::ranges::replace(key, '_', ' ');
  return key;
}

using Row = std::pair<std::string, OrderedJson>;  // name, flat object

// Prints a table with one line per row. Columns are the names and all keys that occur.
void print_table(const std::vector<Row>& rows, const std::string& indent) {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> table = {{indent}};
  for (const auto& [name, row] : rows) {
    table.push_back({indent + name});
    for (const auto& [key, value] : row.items()) {
      if (std::ranges::find(keys, key) == keys.end()) {
        keys.push_back(key);
      }
    }
  }
  for (const auto& key : keys) {
    table[0].push_back(label(key));
    for (size_t i = 0; i < rows.size(); ++i) {
      const OrderedJson& row = rows[i].second;
      table[i + 1].push_back(row.contains(key) ? format_value(key, row[key]) : "");
    }
  }
  print_text("{}", eval::align_columns(table, /*left_columns=*/{0}));
}

// Prints an object: values one per line; consecutive flat objects as a table; "parts_ms" as a table
// with shares; nested objects indented below their names.
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
    } else if (value.is_object() &&
               std::ranges::none_of(value, [](const auto& item) { return item.is_structured(); })) {
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

Option model_directory(std::filesystem::path& model) {
  return positional("MODEL", &model, group::kMeasure, "model directory, dense or MoE");
}

Option model_or_synthetic(std::string& model) {
  return positional("MODEL", &model, group::kMeasure,
                    "model directory, or a synthetic MoE model: S (35 M) or M (176 M)",
                    /*is_required=*/false);
}

Option count(const char* name, Member member, const char* help, const char* fallback = "") {
  return {name, std::move(member), group::kMeasure, help, whole_between(1, 1 << 24), fallback};
}

Option repeats(int64_t& repeats, const char* help = "timed runs, after one warmup run") {
  return {"repeats", &repeats, group::kMeasure, help, whole_between(1, 1000000)};
}

Option layer_precision(bool& use_bf16) {
  return {"precision", choice<bool, bool>("precision", use_bf16, {{"fp32", false}, {"bf16", true}}),
          group::kMeasure, "precision of matrix products: fp32 or bf16"};
}

Options layer_flags(bench::LayerSettings& s) {
  return {{"router", &s.routers, group::kMeasure, "one or more routers"},
          {"cf", &s.cf, group::kMeasure, "capacity factor of all routers, or inf"},
          count("tokens", &s.tokens, "tokens T"),
          count("width", &s.width, "model width D"),
          count("inner", &s.inner, "expert width F"),
          count("experts", &s.experts, "experts E"),
          count("ep-ranks", &s.ep_ranks, "logical ranks W", "E"),
          {"skew", &s.skew, group::kMeasure, "subtract SKEW * j from the logits of expert j"},
          repeats(s.repeats),
          layer_precision(s.use_bf16)};
}

Options route_flags(bench::LayerSettings& s) {
  s.times_layer = false;
  return layer_flags(s);
}

Options gemm_flags(bench::GemmSettings& s) {
  return {model_or_synthetic(s.model), count("tokens", &s.tokens, "tokens of a micro-batch"),
          repeats(s.repeats), layer_precision(s.use_bf16)};
}

Options train_flags(bench::TrainSettings& s) {
  return concat({{model_or_synthetic(s.model)},
                 model::request_options(s.upcycle),
                 route::request_options(s.router),
                 {force_memory_option(s.force_memory),
                  {"precision", choice(s.precision, model::parse_precision, model::to_string),
                   group::kMeasure, "precision of matrix products: fp32, bf16 or tf32 (CUDA)"},
                  count("rows", &s.rows, "sequences per step"),
                  count("seq-len", &s.length, "tokens per sequence"),
                  count("warmup", &s.warmup, "steps before the timed steps"),
                  repeats(s.repeats, "timed steps")}});
}

Options eval_flags(bench::EvalSettings& s) {
  eval::EvalSettings& e = s.eval;
  return concat(
      {{model_directory(e.model),
        with_commas({"tasks", &e.tasks, group::kMeasure, "tasks to score, as in moe eval", Range(),
                     "synthetic requests"}),
        {"data", &e.data, group::kMeasure, "directory of benchmark files"},
        count("limit", &e.limit, "questions of each task", "all, or 60 synthetic requests"),
        count("batch-tokens", &e.batch_tokens, "tokens per forward pass", "auto, as in moe eval"),
        count("group-tokens", &e.group_tokens, "tokens per logical rank in a routing group"),
        repeats(s.repeats),
        {"parts", &s.parts, group::kMeasure, "also time the parts of the model"}},
       route::request_options(e.router),
       {inference_precision_option(s.precision), force_memory_option(e.force_memory)}});
}

Options generate_flags(bench::GenerateSettings& s) {
  return {model_directory(s.model),
          {"rows", &s.rows, group::kMeasure, "texts per batch", whole_between(1, 48)},
          count("prompt-tokens", &s.prompt_tokens, "random tokens of each prompt"),
          {"tokens", &s.tokens, group::kMeasure, "generated tokens per text",
           whole_between(2, 1 << 20)},
          repeats(s.repeats),
          inference_precision_option(s.precision),
          force_memory_option(s.force_memory)};
}

Options load_flags(bench::LoadSettings& s) {
  return {model_directory(s.model), repeats(s.repeats, "timed loads, after one warmup load"),
          force_memory_option(s.force_memory)};
}

Options upcycle_flags(bench::UpcycleSettings& s) {
  Option out = output_path(&s.upcycle.out, "directory to create and remove");
  out.group = group::kMeasure;
  return {positional("DENSE", &s.dense, group::kMeasure, "dense model directory"),
          out,
          {"experts", &s.upcycle.experts, group::kMeasure, "experts E"},
          {"layers", &s.upcycle.layers, group::kMeasure, "even, odd, all or a list"},
          repeats(s.repeats, "timed runs of upcycling and of plain writes")};
}

Options comm_flags(bench::CommSettings& s) {
  return concat({{byte_size("bytes", s.max_bytes, group::kMeasure,
                            "size of the largest tensor of a rank", "64MiB"),
                  repeats(s.repeats, "timed calls, after two warmup calls")},
                 rank_options(s.ranks)});
}

void print(OrderedJson json, const CLI::App& command, const OrderedJson& report, bool as_json) {
  if (!as_json) {
    print_text("{}, {}, {} threads, LibTorch {}\n",
               format_value("", json.value("device", json["processor"])),
               json["instruction_set"].get<std::string>(), json["threads"].get<int>(),
               json["torch_version"].get<std::string>());
    return print_report(report, "");
  }
  json["settings"] = OrderedJson::object();  // flags on the command line
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) {
      json["settings"][option->get_single_name()] =
          fmt::format("{}", fmt::join(option->results(), " "));
    }
  }
  json.update(report);
  print_json(json, 2);
}

// Adds `moe bench NAME` with the flags options(settings), which calls run(settings). If `run` has a
// second parameter, adds --device and calls run(settings, device).
template <typename Settings, typename Run>
void add_benchmark(CLI::App& bench, const char* name, const char* description,
                   Options (*options)(Settings&), Run run) {
  constexpr bool kHasDevice = std::is_invocable_v<Run, const Settings&, c10::Device>;
  struct Flags {
    Settings settings;
    std::string device;
    int threads = 0;
    bool json = false;
  };
  CLI::App* command = bench.add_subcommand(name, description);
  const auto flags = std::make_shared<Flags>();
  add_options(*command, options(flags->settings));
  if (kHasDevice) {
    add_options(*command, {device_option(flags->device)});
  }
  add_options(*command, {threads_option(flags->threads), json_option(flags->json)});
  command->callback([=] {
    apply_threads(flags->threads);
    const c10::Device device = parse_device(flags->device);
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
  CLI::App* bench =
      app.add_subcommand("bench", "measure speed, compared with a roofline of the same run");
  bench->require_subcommand(1);
  const auto add = [bench](const char* name, const char* description, auto options, auto run) {
    add_benchmark(*bench, name, description, options, run);
  };
  add("layer", "a MoE layer on random tokens and its parts, compared with at::mm", layer_flags,
      bench::bench_layer);
  add("route", "routing and expert GEMMs of a MoE layer", route_flags, bench::bench_layer);
  add("gemm", "matrix products at the shapes of a model, with at::mm and our GEMM", gemm_flags,
      bench::bench_gemm);
  add("train", "training steps on random tokens and their parts, compared with at::mm", train_flags,
      bench::bench_train);
  add("load", "loading a model from the page cache", load_flags, bench::bench_load);
  add("eval", "scoring, compared with at::mm", eval_flags, bench::bench_eval);
  add("generate", "text generation, compared with memory bandwidth", generate_flags,
      bench::bench_generate);
  add("upcycle", "upcycling a model, compared with plain writes to the same disk", upcycle_flags,
      bench::bench_upcycle);
  add("comm", "collectives between ranks by tensor size", comm_flags, bench::bench_comm);
  add_config(*bench,
             "moe bench layer --router top1+ir+fr --tokens 8192\n"
             "moe bench train my-moe --precision bf16 --threads 1 --json\n"
             "moe bench comm --ranks 2");
}

}  // namespace moe::cli
