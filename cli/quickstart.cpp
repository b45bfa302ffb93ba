// moe quickstart: the main job on the embedded tiny model, which recipes/quickstart.sh does with
// this binary.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"

namespace moe::cli {

namespace {

namespace fs = std::filesystem;

struct QuickstartFlags {
  fs::path out = "runs/quickstart";
  bool is_short = false;
};

// The recipes that came with this binary: beside it where it was installed, two folders up where it
// was built.
fs::path recipe_folder() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& recipes :
       {folder / "recipes", folder.parent_path().parent_path() / "recipes"}) {
    if (fs::exists(recipes / "quickstart.sh")) {
      return recipes;
    }
  }
  throw UserError(
      "{}: no recipes/quickstart.sh beside the binary, nor two folders above; build or install moe "
      "again",
      folder.string());
}

[[noreturn]] void run(const QuickstartFlags& flags) {
  const std::string script = (recipe_folder() / "quickstart.sh").string();
  // The words by which the user called it: the script prints the commands that it runs.
  setenv("MOE", program_invocation_name, /*overwrite=*/1);
  execlp("bash", "bash", script.c_str(), fs::absolute(flags.out).c_str(),
         flags.is_short ? "--short" : nullptr, nullptr);
  throw UserError("bash, which runs {}, cannot be started ({}); install it", script,
                  std::strerror(errno));
}

}  // namespace

void add_quickstart(CLI::App& app) {
  auto flags = std::make_shared<QuickstartFlags>();
  CLI::App* command = app.add_subcommand(
      "quickstart", "the main job on the embedded tiny model: upcycle, tune, evaluate");
  add_options(
      *command,
      {{.name = "out",
        .member = &flags->out,
        .group = group::kOutput,
        .help = "the folder for all that it makes; what an earlier one made there is replaced",
        .spelled = "-o,--out"},
       {.name = "short",
        .member = &flags->is_short,
        .group = group::kOutput,
        .help =
            "a third of the steps, a quarter of the questions, no dense model tuned beside it"}});
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
