#pragma once
// Flags that several commands have, as Options (core/base/option.h) of the members of the command's
// settings, and the reader of recipes (--config).

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

// Add a command, which fills a settings struct from its flags and calls one function of core.
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

// Adds a command that calls run(flags). Returns the command and the flags.
template <typename Argument>
auto add_command(CLI::App& app, const char* name, const char* description, void (*run)(Argument)) {
  const auto flags = std::make_shared<std::decay_t<Argument>>();
  CLI::App* command = app.add_subcommand(name, description);
  command->callback([run, flags] { run(*flags); });
  return std::pair(command, flags);
}

// Adds a flag for each of `options`, whose members must outlive `command`.
void add_options(CLI::App& command, const Options& options);

// Return cli/REFERENCE.md and the manual page moe(1) in groff's man macros.
std::string reference(const CLI::App& app);
std::string manual_page(const CLI::App& app);

// Returns the option of a positional argument, such as "MODEL".
Option positional(const char* name, Member member, const char* group, std::string help,
                  bool is_required = true);
Option output_path(Member member, std::string help, bool is_required = true);

// Adds --ranks and --comm-timeout. The caller sets the other members of `ranks`.
void add_rank_flags(CLI::App& command, distributed::RankSettings& ranks);

void add_quiet(CLI::App& command, bool& quiet);
void add_json(CLI::App& command, bool& json);
// Adds --force. `also` is appended to its help text.
void add_force(CLI::App& command, bool& force, const std::string& also = "");
inline constexpr const char* kForceGateHelp = "; allow --router to change the stored gate=";
void add_force_memory(CLI::App& command, bool& force_memory);

void add_threads(CLI::App& command, int& threads);
// Starts `threads` threads of LibTorch (0: its default), at most one per usable processor. Throws
// std::system_error if one cannot be started (ulimit -u).
void apply_threads(int threads = 0);

// Throws UserError if `use_cuda` is set and this binary or machine has no CUDA device.
void check_device(bool use_cuda);
// Adds --device cpu|cuda, which calls check_device().
void add_device(CLI::App& command, std::string& device);
// Returns the CPU or the first GPU, for a command that runs as one process.
c10::Device parse_device(const std::string& name);
// Adds --precision for inference; model::inference_precision() returns the default.
void add_inference_precision(CLI::App& command, std::optional<model::Precision>& precision);

// Adds --config to the app. A recipe is a TOML file with one table per command, read by
// parse_toml(): CLI11's reader misreads `#` inside strings. Tables of other commands are checked
// but not applied. Throws UserError for an unknown table or key, naming the nearest known one.
void add_recipe_reader(CLI::App& app);
// Accepts --config after the name of the command. Appends it and `examples` (lines) to the --help.
void add_config(CLI::App& command, const std::string& examples);
void add_examples(CLI::App& command, const std::string& examples);

std::vector<const CLI::App*> subcommands(const CLI::App& app);
std::vector<std::string> subcommand_names(const CLI::App& app);
std::vector<std::string> long_flags(const CLI::App& command);  // "--router", "--out", ...

// Returns an option whose values are sizes such as "5GB", "64MiB" or "1000".
Option byte_size(const char* name, uint64_t& bytes, const char* group, std::string help,
                 std::string fallback);

}  // namespace moe::cli
