#include "cli/flags.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <latch>
#include <limits>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/resources.h"
#include "core/base/text.h"
#include "kernels/ops/device.h"

namespace moe::cli {
namespace {

CLI::Option* add_option(CLI::App& command, const Option& option) {
  const std::string spelling = option.spelling.empty() ? flag_name(option) : option.spelling;
  const std::string help = help_line(option);
  return std::visit(
      [&](const auto& member) -> CLI::Option* {
        using Type = std::decay_t<decltype(member)>;
        if constexpr (std::is_same_v<Type, bool*>) {
          return command.add_flag(spelling, *member, help);
        } else if constexpr (std::is_same_v<Type, Choice>) {
          CLI::Option* added = command.add_option_function<std::string>(spelling, member.set, help);
          return member.words.empty()
                     ? added
                     : added->type_name(fmt::format("{{{}}}", fmt::join(member.words, ",")));
        } else {
          return command.add_option(spelling, *member, help);
        }
      },
      option.member);
}

uint64_t parse_bytes(const std::string& text, const char* name) {
  const std::map<std::string, double> units{
      {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},          {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
  char* rest = nullptr;
  const double value = std::strtod(text.c_str(), &rest);
  const auto unit = units.find(rest);
  USER_ERROR_IF(unit == units.end() || !(value > 0) || value * unit->second > 1e18,
                "--{} '{}' is not a size such as 5GB, 200KB or 64MiB", name, text);
  return static_cast<uint64_t>(value * unit->second);
}

// Reader of recipes.
class TomlConfig : public CLI::Config {
 public:
  explicit TomlConfig(const CLI::App& app) : app_(app) {}

  // Not used: moe train writes settings.toml itself.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    constexpr size_t kMaxBytes = size_t{1} << 20;
    const std::vector<std::string> files = app_.get_config_ptr()->results();
    const std::string where = "--config" + (files.empty() ? "" : " " + files.back());
    std::string text(kMaxBytes + 1, '\0');
    input.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(input.gcount()));
    USER_ERROR_IF(text.size() > kMaxBytes,
                  "{}: the file is larger than 1 MiB and cannot be a recipe", where);
    const Json recipe = parse_toml(text, where);
    const std::vector<std::string> commands = subcommand_names(app_);
    std::vector<CLI::ConfigItem> items;
    for (const auto& [name, table] : recipe.items()) {
      USER_ERROR_IF(!table.is_object(), "{}: '{}' is outside a table; write it under [{}]", where,
                    name, fmt::join(commands, "], ["));
      USER_ERROR_IF(std::ranges::find(commands, name) == commands.end(),
                    "{}: [{}] is not a command; known: {}", where, name, fmt::join(commands, ", "));
      const CLI::App& command = *app_.get_subcommand(name);
      for (const auto& [key, value] : table.items()) {
        const CLI::ConfigItem item = flag_item(where, command, key, value);
        if (command.parsed()) {  // tables of other commands are checked but not applied
          items.push_back(item);
        }
      }
    }
    return items;
  }

 private:
  static CLI::ConfigItem flag_item(const std::string& where, const CLI::App& command,
                                   const std::string& key, const Json& value) {
    USER_ERROR_IF(command.get_option_no_throw("--" + key) == nullptr,
                  "{}: '{}' under [{}] is not a flag of that command{}", where, key,
                  command.get_name(),
                  replace_all(did_you_mean("--" + key, long_flags(command)), "'--", "'"));
    CLI::ConfigItem item;
    item.parents = {command.get_name()};
    item.name = key;
    for (const auto& element : value.is_array() ? value : Json::array({value})) {
      USER_ERROR_IF(element.is_structured(),
                    "{}: '{}' under [{}] must be text, a number, true, false or a list of these",
                    where, key, command.get_name());
      item.inputs.push_back(element.is_string()         ? element.get<std::string>()
                            : element.is_number_float() ? fmt::format("{}", element.get<double>())
                                                        : element.dump());
    }
    return item;
  }

  const CLI::App& app_;
};

// Starts the OpenMP threads. First starts as many std::jthreads, because they throw
// std::system_error if a thread cannot be started; libgomp would end the process instead.
void start_threads(int count) {
  {
    std::vector<std::jthread> probes;
    while (static_cast<int>(probes.size()) + 1 < count) {
      probes.emplace_back([](const std::stop_token& stop) {
        std::latch stopped(1);
        const std::stop_callback release(stop, [&] { stopped.count_down(); });
        stopped.wait();
      });
    }
  }  // stops and joins the probes, also if one could not be started
  at::parallel_for(0, count, 1, [](int64_t, int64_t) {});
}

}  // namespace

void add_options(CLI::App& command, const Options& options) {
  for (const auto& option : options) {
    CLI::Option* added = add_option(command, option);
    added->group(option.group)->required(option.is_required);
    if (option.is_comma_separated) {
      added->delimiter(',');
    }
    if (option.is_repeated) {
      added->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    // Without this, CLI11 reads "-1" as 2^64 - 1, "010" as 8, and too large numbers as the maximum.
    added->transform([option](const std::string& text) { return integer_text(option, text); });
    Range range = option.range;
    if (!range.is_checked && (std::holds_alternative<double*>(option.member) ||
                              std::holds_alternative<std::optional<double>*>(option.member))) {
      range =
          number_between(std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max());
      range.rule = "must be a finite number";
    }
    if (range.is_checked) {
      added->check([name = flag_name(option), range](const std::string& text) {
        check_range(name, text, range);
        return std::string();
      });
    }
  }
}

Option positional(const char* name, Member member, const char* group, std::string help,
                  bool is_required) {
  return {.name = name,
          .member = std::move(member),
          .group = group,
          .help = std::move(help),
          .spelling = name,
          .is_required = is_required};
}

Option output_path(Member member, std::string help, bool is_required) {
  Option option =
      positional("out", std::move(member), group::kOutput, std::move(help), is_required);
  option.spelling = "-o,--out";
  return option;
}

Options rank_options(distributed::RankSettings& ranks) {
  return {{"ranks", &ranks.ranks, group::kRanks,
           "number of processes to start on this host (not with torchrun, mpirun or srun)",
           whole_between(1, 4096), "1"},
          {"comm-timeout", &ranks.timeout_s, group::kRanks, "timeout of collectives in seconds",
           number_between(1, 86400)}};
}

Option quiet_option(bool& quiet) {
  return {.name = "quiet",
          .member = &quiet,
          .group = group::kOutput,
          .help = "do not print progress to standard error",
          .spelling = "-q,--quiet"};
}

Option json_option(bool& json) {
  return {"json", &json, group::kOutput, "print the result as JSON"};
}

Option force_option(bool& force, const std::string& also) {
  return {"force", &force, group::kOutput, "overwrite an existing output" + also};
}

Option force_memory_option(bool& force_memory) {
  return {"force-memory", &force_memory, group::kMemory,
          "run even if the memory estimate exceeds the limit of the machine, cgroup or ulimit"};
}

Option threads_option(int& threads) {
  return {"threads",
          &threads,
          group::kRanks,
          "CPU threads, at most one per processor",
          whole_between(1, 4096),
          "one per core"};
}

void apply_threads(int threads) {
  const int used = std::min(threads > 0 ? threads : at::get_num_threads(), usable_processors());
  if (used != at::get_num_threads()) {
    at::set_num_threads(used);
  }
  start_threads(used);
}

void check_device(bool use_cuda) {
  USER_ERROR_IF(use_cuda && kernels::gpu_count() == 0,
                "--device cuda: no CUDA device: {}; or use --device cpu", kernels::why_no_gpu());
}

Option device_option(std::string& device) {
  Choice member = one_of("device", device, {"cpu", "cuda"});
  member.set = [set = member.set](const std::string& value) {
    check_device(value == "cuda");
    set(value);
  };
  return {"device", member, group::kRanks, "cpu or cuda (one GPU per process)", Range(), "cpu"};
}

c10::Device parse_device(const std::string& name) {
  return name == "cuda" ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

Option inference_precision_option(std::optional<model::Precision>& precision) {
  return {"precision",
          choice(precision, model::parse_precision, model::to_string),
          group::kMemory,
          "precision of matrix products: fp32, bf16 or tf32 (CUDA); router, softmax and "
          "log-probabilities are always fp32",
          Range(),
          "bf16 with --device cuda, else fp32"};
}

void add_recipe_reader(CLI::App& app) {
  app.set_config("--config", "", "TOML recipe with one table per command")
      ->check([](const std::string& file) -> std::string {
        if (file.rfind("/dev/", 0) == 0) {
          return "";  // a pipe, such as <(command) in bash
        }
        try {  // rejects a named pipe, on which CLI11 would block if it has no writer
          open_to_read(file);
        } catch (const UserError& error) {
          return error.what();
        }
        return "";
      });
  app.config_formatter(std::make_shared<TomlConfig>(app));
}

void add_config(CLI::App& command, const std::string& examples) {
  command.fallthrough();
  add_examples(command, examples);
  command.footer("--config FILE.toml   read flags from the table [" + command.get_name() +
                 "] of a recipe; flags on the command line take precedence\n\n" +
                 command.get_footer());
}

void add_examples(CLI::App& command, const std::string& examples) {
  command.footer("Examples:" + replace_all("\n" + examples, "\n", "\n  "));
}

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : subcommands(app)) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> long_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

Option byte_size(const char* name, uint64_t& bytes, const char* group, std::string help,
                 std::string fallback) {
  const auto set = [name, &bytes](const std::string& text) { bytes = parse_bytes(text, name); };
  return {name,    Choice{[] { return std::string(); }, set},
          group,   std::move(help),
          Range(), std::move(fallback)};
}

}  // namespace moe::cli
