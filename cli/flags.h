#pragma once
// Flags that several commands share, and the recipe reader behind --config. A flag is declared once
// as an Option (core/base/option.h) and reads into a member of the command's settings.

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/option.h"
#include "core/distributed/launch.h"
#include "core/model/config/compute.h"
#include "core/route/router_override.h"

namespace moe::cli {

// Add a command to the app. Parsing the command line runs the command: it fills a settings struct
// from the flags and makes one call into core.
void add_upcycle(CLI::App& app);
void add_init(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_report(CLI::App& app);
void add_route(CLI::App& app);
void add_bench(CLI::App& app);
void add_inspect(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_quickstart(CLI::App& app);
void add_completion(CLI::App& app);

// Adds a command that calls `run` with its flags. Returns the command and the flags.
template <typename Argument>
auto add_command(CLI::App& app, const char* name, const char* description, void (*run)(Argument)) {
  const auto flags = std::make_shared<std::decay_t<Argument>>();
  CLI::App* command = app.add_subcommand(name, description);
  command->callback([run, flags] { run(*flags); });
  return std::pair(command, flags);
}

// Adds flags that read into the members of `options` and check their ranges. The members must
// outlive `command`.
void add_options(CLI::App& command, const Options& options);

// Return cli/REFERENCE.md and the manual page moe(1) in groff's man macros, generated from the
// declared flags.
std::string reference(const CLI::App& app);
std::string manual_page(const CLI::App& app);

// Returns the option of a positional argument with the name `name`, such as "MODEL".
Option positional(const char* name, Member member, const char* group, std::string help,
                  bool is_required = true);
Option output_path(Member member, std::string help, bool is_required = true);

// Adds --ranks and --comm-timeout. --threads and --device are flags of the command.
void add_rank_flags(CLI::App& command, distributed::RankSettings& ranks);

void add_quiet(CLI::App& command, bool& quiet);
void add_json(CLI::App& command, bool& json);
// Adds --force; `also` names what it allows besides overwriting the output.
void add_force(CLI::App& command, bool& force, const std::string& also = "");
inline constexpr const char* kForcedGate = "; allow --router to change the stored gate=";
void add_force_memory(CLI::App& command, bool& force_memory);

// Adds --threads. apply_threads() sets the number of LibTorch's threads: `threads`, or LibTorch's
// default if it is 0, at most one per usable processor, because more would only wait for each
// other. It starts them, and throws std::system_error if the system refuses one (ulimit -u).
void add_threads(CLI::App& command, int& threads);
void apply_threads(int threads = 0);

// Throws UserError if `use_cuda` is set and this binary or machine has no CUDA device.
void check_device(bool use_cuda);
// Adds --device cpu|cuda, checked by check_device().
void add_device(CLI::App& command, std::string& device);
// Returns the device of a command that is one process: the CPU or the first GPU. Ranks use
// distributed::Comm::device() instead.
c10::Device parse_device(const std::string& name);
// Adds --precision of a command that runs a model without training it;
// model::inference_precision() resolves the default.
void add_inference_precision(CLI::App& command, std::optional<model::Precision>& precision);

// Adds --config to the app. A recipe is a TOML file with one table per command, read by
// parse_toml() (core/base/json.h), because CLI11's own reader misreads `#` inside strings. Tables
// of other commands are checked and not used. An unknown table or key is an error that names the
// nearest known one.
void add_recipe_reader(CLI::App& app);
// Lets --config follow the name of the command, and ends --help with it and with `examples`, one
// command line per line.
void add_config(CLI::App& command, const std::string& examples);
// Ends --help with examples only.
void add_examples(CLI::App& command, const std::string& examples);

// Returns all commands of `app`, or all subcommands of a command.
std::vector<const CLI::App*> subcommands(const CLI::App& app);
std::vector<std::string> subcommand_names(const CLI::App& app);
// Returns the long names of a command's flags: "--router", "--out", ...
std::vector<std::string> long_flags(const CLI::App& command);

// Returns the option --`name` of a size such as "5GB", "200KB", "64MiB" or "1000";
// `fallback` is the default as text.
Option byte_size(const char* name, uint64_t& bytes, const char* group, std::string help,
                 std::string fallback);

}  // namespace moe::cli
