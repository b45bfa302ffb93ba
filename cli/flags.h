#pragma once
// Flags that several commands share, so that they are named and explained alike, and the recipe
// reader behind --config.

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/option.h"
#include "core/distributed/launch.h"
#include "core/model/llama/compute.h"
#include "core/route/router_override.h"

namespace CLI {
class App;
}

namespace moe::cli {

// Flags that read into the members of declared options, each checked against its range. What the
// options were made for must outlive `command`.
void add_options(CLI::App& command, const Options& options);

// --ranks and --comm-timeout. `ranks` outlives `command`; --threads and --device are the command's.
void add_rank_flags(CLI::App& command, distributed::RankSettings& ranks);

// --router, --cf and --ep-ranks.
void add_router_flags(CLI::App& command, route::RouterRequest& request);

// What --force also allows where --router may stand in for a folder's.
inline constexpr const char* kForcedGate = "; let --router change the stored gate=";

// --quiet, --json, --force, --dry-run: one line each, only those a command has.
void add_quiet(CLI::App& command, bool& quiet);
void add_json(CLI::App& command, bool& json);
// `also` is what --force allows besides replacing the output.
void add_force(CLI::App& command, bool& force, const std::string& also = "");

// --force-memory: of commands that load a model.
void add_force_memory(CLI::App& command, bool& force_memory);

// --threads N (default: what LibTorch finds), applied when the command runs: at most one a usable
// processor, since more would only wait for each other.
void add_threads(CLI::App& command, int& threads);
void apply_threads(int threads);

// UserError where `cuda` is wanted and this binary or machine has none.
void check_device(bool cuda);
// --device cpu|cuda, which check_device() checks.
void add_device(CLI::App& command, std::string& device);
// What it names, of a command that is one process: the first GPU. distributed::Comm::device() has
// it where there may be several.
c10::Device device_of(const std::string& name);
// --precision of a command that runs a model and does not train it; model::inference_precision()
// says what holds.
void add_inference_precision(CLI::App& command, std::optional<model::Precision>& precision);

// A recipe is a TOML file with one table a command, read by parse_toml() (core/base/json.h):
// CLI11's own reader misreads `#` inside strings. read_recipes gives the app its --config;
// add_config lets it stand after a command's name. Tables of other commands are checked and left;
// an unknown table or key is an error that names the nearest known one.
void read_recipes(CLI::App& app);
void add_config(CLI::App& command);

// For a recipe that is not there: what to write where it was a file before the rows of a table
// became lines of rows.txt beside it. Empty where there is no such row.
std::string row_instead(const std::filesystem::path& recipe);

// "--router", "--out", ...: the long names of a command's flags.
std::vector<std::string> long_flags(const CLI::App& command);

// "5GB", "200KB", "64MiB", "1000": bytes. UserError naming `flag` otherwise.
uint64_t parse_bytes(const std::string& text, const std::string& flag);

}  // namespace moe::cli
