#pragma once
// The commands, the flags that several of them share as Options (core/base/option.h), and the
// reader of recipes (--config).

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
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

// Adds a flag for each of `options`, whose members must outlive `command`.
void add_options(CLI::App& command, const Options& options);

// Adds a command with the flags options(flags), which calls run(flags). Returns the command.
template <typename Argument>
CLI::App& add_command(CLI::App& app, const char* name, const char* description,
                      void (*run)(Argument), Options (*options)(std::decay_t<Argument>&)) {
  const auto flags = std::make_shared<std::decay_t<Argument>>();
  CLI::App* command = app.add_subcommand(name, description);
  command->callback([run, flags] { run(*flags); });
  add_options(*command, options(*flags));
  return *command;
}

// Return cli/REFERENCE.md and the manual page moe(1) in groff's man macros.
std::string reference(const CLI::App& app);
std::string manual_page(const CLI::App& app);

// Returns the option of a positional argument, such as "MODEL".
Option positional(const char* name, Member member, const char* group, std::string help,
                  bool is_required = true);
Option output_path(Member member, std::string help, bool is_required = true);

// Returns --ranks and --comm-timeout. The caller sets the other members of `ranks`.
Options rank_options(distributed::RankSettings& ranks);

Option quiet_option(bool& quiet);
Option json_option(bool& json);
// Returns --force. `also` is appended to its help text.
Option force_option(bool& force, const std::string& also = "");
inline constexpr const char* kForceGateHelp = "; allow --router to change the stored gate=";
Option force_memory_option(bool& force_memory);
Option threads_option(int& threads);
// Returns --device cpu|cuda, which calls check_device().
Option device_option(std::string& device);
// Returns --precision for inference; model::inference_precision() returns the default.
Option inference_precision_option(std::optional<model::Precision>& precision);
// Returns an option whose values are sizes such as "5GB", "64MiB" or "1000".
Option byte_size(const char* name, uint64_t& bytes, const char* group, std::string help,
                 std::string fallback);

// Starts `threads` threads of LibTorch (0: its default), at most one per usable processor. Throws
// std::system_error if one cannot be started (ulimit -u).
void apply_threads(int threads = 0);

// Throws UserError if `use_cuda` is set and this binary or machine has no CUDA device.
void check_device(bool use_cuda);
// Returns the CPU or the first GPU, for a command that runs as one process.
c10::Device parse_device(const std::string& name);

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

}  // namespace moe::cli
