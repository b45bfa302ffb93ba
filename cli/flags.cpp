#include "cli/flags.h"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <sstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/resources.h"
#include "kernels/ops/device.h"

namespace moe::cli {

namespace {

// Adds an option as the flag of its member's type.
class Adder {
 public:
  Adder(CLI::App& command, const Option& option)
      : command_(command),
        spelled_(option.spelled.empty() ? flag_of(option) : option.spelled),
        help_(describe(option)) {}

  CLI::Option* operator()(bool* member) const {
    return command_.add_flag(spelled_, *member, help_);
  }
  CLI::Option* operator()(const Choice& choice) const {
    CLI::Option* added = command_.add_option_function<std::string>(spelled_, choice.set, help_);
    return choice.words.empty()
               ? added
               : added->type_name(fmt::format("{{{}}}", fmt::join(choice.words, ",")));
  }
  template <typename Value>
  CLI::Option* operator()(Value* member) const {
    return command_.add_option(spelled_, *member, help_);
  }

 private:
  CLI::App& command_;
  std::string spelled_, help_;
};

// What a recipe value is as the text of a flag.
std::string flag_text(const std::string& where, const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_number_integer()) {
    return fmt::format("{}", value.get<int64_t>());
  }
  if (value.is_number()) {
    return fmt::format("{}", value.get<double>());
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "true" : "false";
  }
  throw UserError("--config: {} is neither text, number, true/false nor a list of these", where);
}

// CLI11 asks for a flat list of (command, flag, values); parse_toml() does the reading.
class TomlConfig : public CLI::Config {
 public:
  explicit TomlConfig(const CLI::App& app) : app_(app) {}

  // Recipes are written by the commands themselves (settings.toml), not by CLI11.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    try {
      return items_of(input);
    } catch (const UserError& error) {  // opens with --config
      const std::vector<std::string> files = app_.get_config_ptr()->results();
      throw UserError("--config{}{}", files.empty() ? "" : " " + files.back(),
                      std::string_view(error.what()).substr(std::string_view("--config").size()));
    }
  }

 private:
  std::vector<CLI::ConfigItem> items_of(std::istream& input) const {
    constexpr size_t kMaxBytes = size_t{1} << 20;
    std::string text(kMaxBytes + 1, '\0');
    input.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(input.gcount()));
    if (text.size() > kMaxBytes) {
      throw UserError("--config: larger than 1 MiB, which is no recipe");
    }
    const Json recipe = parse_toml(text, "--config");
    std::vector<CLI::ConfigItem> items;
    for (const auto& [name, table] : recipe.items()) {
      const CLI::App& command = find_command(name, table);
      for (const auto& [key, value] : table.items()) {
        const CLI::ConfigItem item = flag_item(command, key, value);
        if (command.parsed()) {  // tables of other commands are checked and left
          items.push_back(item);
        }
      }
    }
    return items;
  }

  const CLI::App& find_command(const std::string& name, const Json& value) const {
    std::vector<std::string> known;
    for (const auto* command : app_.get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_name() == name && value.is_object()) {
        return *command;
      }
      known.push_back(command->get_name());
    }
    if (!value.is_object()) {
      throw UserError("--config: '{}' stands outside a table; write it under [{}]", name,
                      fmt::join(known, "], ["));
    }
    throw UserError("--config: [{}] is no command; known: {}", name, fmt::join(known, ", "));
  }

  static CLI::ConfigItem flag_item(const CLI::App& command, const std::string& key,
                                   const Json& value) {
    if (command.get_option_no_throw("--" + key) == nullptr) {
      const std::string near = nearest_name("--" + key, long_flags(command));
      throw UserError("--config: '{}' under [{}] is no flag of that command{}", key,
                      command.get_name(),
                      near.empty() ? "" : ", did you mean '" + near.substr(2) + "'?");
    }
    CLI::ConfigItem item;
    item.parents = {command.get_name()};
    item.name = key;
    const std::string where = fmt::format("'{}' under [{}]", key, command.get_name());
    if (value.is_array()) {
      for (const auto& element : value) {
        item.inputs.push_back(flag_text(where, element));
      }
    } else {
      item.inputs.push_back(flag_text(where, value));
    }
    return item;
  }

  const CLI::App& app_;
};

}  // namespace

void add_options(CLI::App& command, const Options& options) {
  for (const auto& option : options) {
    CLI::Option* added = std::visit(Adder(command, option), option.member);
    added->group(option.group)->required(option.is_required);
    if (option.takes_commas) {
      added->delimiter(',');
    }
    if (option.is_repeated) {
      added->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    // CLI11 takes "-1" for 2^64 - 1, "010" for 8, and what is too large for the largest.
    added->transform([option](const std::string& text) { return integer_text(option, text); });
    Range range = option.range;
    if (!range.is_checked && (std::holds_alternative<double*>(option.member) ||
                              std::holds_alternative<std::optional<double>*>(option.member))) {
      range =
          number_between(std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max());
      range.rule = "must be a finite number";
    }
    if (range.is_checked) {
      added->check([name = flag_of(option), range](const std::string& text) {
        check_range(name, text, range);
        return std::string();
      });
    }
  }
}

void add_rank_flags(CLI::App& command, distributed::RankSettings& ranks) {
  add_options(command,
              {{.name = "ranks",
                .member = &ranks.ranks,
                .group = group::kRanks,
                .help = "start N processes on this host (under torchrun, mpirun or srun: theirs)",
                .fallback = "one",
                .range = whole_between(1, 4096)},
               {.name = "comm-timeout",
                .member = &ranks.timeout_s,
                .group = group::kRanks,
                .help = "seconds that ranks wait for each other before the run is given up",
                .range = number_between(1, 86400)}});
}

void add_router_flags(CLI::App& command, route::RouterRequest& request) {
  add_options(command, route::request_options(request));
}

void add_quiet(CLI::App& command, bool& quiet) {
  add_options(command, {{.name = "quiet",
                         .member = &quiet,
                         .group = group::kOutput,
                         .help = "no progress on standard error",
                         .spelled = "-q,--quiet"}});
}

void add_json(CLI::App& command, bool& json) {
  add_options(command, {{.name = "json",
                         .member = &json,
                         .group = group::kOutput,
                         .help = "print the result as JSON"}});
}

void add_force(CLI::App& command, bool& force, const std::string& also) {
  add_options(command, {{.name = "force",
                         .member = &force,
                         .group = group::kOutput,
                         .help = "replace an output that is there already" + also}});
}

void add_force_memory(CLI::App& command, bool& force_memory) {
  add_options(command, {{.name = "force-memory",
                         .member = &force_memory,
                         .group = group::kMemory,
                         .help = "go on where more memory is needed than this machine, cgroup or "
                                 "ulimit leaves"}});
}

void add_threads(CLI::App& command, int& threads) {
  add_options(command, {{.name = "threads",
                         .member = &threads,
                         .group = group::kRanks,
                         .help = "CPU threads, at most one a processor",
                         .fallback = "one a core",
                         .range = whole_between(1, 4096)}});
}

void apply_threads(int threads) {
  const int wanted = threads > 0 ? threads : at::get_num_threads();
  const int used = std::min(wanted, usable_processors());
  if (used != at::get_num_threads()) {
    at::set_num_threads(used);
  }
}

void check_device(bool cuda) {
  if (cuda && kernels::gpu_count() == 0) {
    throw UserError("--device cuda: no CUDA device: {}; or use --device cpu",
                    kernels::why_no_gpu());
  }
}

void add_device(CLI::App& command, std::string& device) {
  Choice member = one_of("device", device, {"cpu", "cuda"});
  member.set = [set = member.set](const std::string& value) {
    check_device(value == "cuda");
    set(value);
  };
  add_options(command, {{.name = "device",
                         .member = member,
                         .group = group::kRanks,
                         .help = "cpu or cuda, a GPU for each process",
                         .fallback = "cpu"}});
}

c10::Device device_of(const std::string& name) {
  return name == "cuda" ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

void add_inference_precision(CLI::App& command, std::optional<model::Precision>& precision) {
  add_options(command,
              {{.name = "precision",
                .member = choice(precision, model::parse_precision, model::to_string),
                .group = group::kMemory,
                .help = "of products: fp32, bf16 (on a GPU matrices lie in it too) or tf32 (CUDA "
                        "GPUs); router, softmax and log-probabilities stay fp32",
                .fallback = "bf16 with --device cuda, else fp32"}});
}

std::string row_instead(const std::filesystem::path& recipe) {
  std::filesystem::path rows = recipe.parent_path();
  if (rows.filename() == "small") {
    rows = rows.parent_path();
  }
  rows /= "rows.txt";
  std::error_code error;
  if (!std::filesystem::is_regular_file(rows, error)) {
    return "";
  }
  std::istringstream lines(read_small_file(rows));
  const std::string name = recipe.stem().string() + " ";
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name, 0) == 0) {
      return fmt::format(
          "--config {}: is a row of {} now; give $(recipes/row.sh {} COMMAND) in its place",
          recipe.string(), rows.string(), (recipe.parent_path() / recipe.stem()).string());
    }
  }
  return "";
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

void add_config(CLI::App& command) {
  command.fallthrough();
  command.footer("--config FILE.toml   flags from the table [" + command.get_name() +
                 "] of a recipe; those given here win");
}

void read_recipes(CLI::App& app) {
  app.set_config("--config", "", "a TOML recipe, one table a command")
      ->check([](const std::string& file) -> std::string {
        if (file.rfind("/dev/", 0) == 0) {
          return "";  // the shell's <(command)
        }
        try {
          open_to_read(
              file);  // CLI11 opens it again, and would wait for the writer of a named pipe
        } catch (const UserError& error) {
          return error.what();
        }
        return "";
      });
  app.config_formatter(std::make_shared<TomlConfig>(app));
}

uint64_t parse_bytes(const std::string& text, const std::string& flag) {
  const std::map<std::string, double> units{
      {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},          {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = std::string::npos;
  }
  const auto unit = used == std::string::npos ? units.end() : units.find(text.substr(used));
  if (unit == units.end() || !(value > 0) || value * unit->second > 1e18) {
    throw UserError("{} '{}' is not a size; write it like 5GB, 200KB or 64MiB", flag, text);
  }
  return static_cast<uint64_t>(value * unit->second);
}

}  // namespace moe::cli
