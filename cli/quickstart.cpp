// moe quickstart: upcycles, trains and evaluates the embedded tiny model by running
// recipes/quickstart.sh with this binary.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/flags.h"
#include "core/base/error.h"

namespace moe::cli {
namespace {

namespace fs = std::filesystem;

struct QuickstartFlags {
  fs::path out = "runs/quickstart";
  bool is_short = false;
};

// Returns recipes/ in the binary's folder if it is installed, else two folders above it.
fs::path recipe_folder() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& recipes :
       {folder / "recipes", folder.parent_path().parent_path() / "recipes"}) {
    if (fs::exists(recipes / "quickstart.sh")) {
      return recipes;
    }
  }
  throw UserError(
      "{}: no recipes/quickstart.sh here or two folders above; build or install moe again",
      folder.string());
}

[[noreturn]] void run(const QuickstartFlags& flags) {
  const std::string script = (recipe_folder() / "quickstart.sh").string();
  // The script prints commands with $MOE as the name of the binary.
  setenv("MOE", program_invocation_name, /*overwrite=*/1);
  execlp("bash", "bash", script.c_str(), fs::absolute(flags.out).c_str(),
         flags.is_short ? "--short" : nullptr, nullptr);
  throw UserError("cannot start bash, which runs {} ({}); install it", script,
                  std::strerror(errno));
}

Options options(QuickstartFlags& flags) {
  return {output_path(&flags.out, "output directory; overwrites files of an earlier quickstart",
                      /*is_required=*/false),
          {"short", &flags.is_short, group::kOutput,
           "run a third of the steps and a quarter of the questions, without the dense baseline"}};
}

}  // namespace

void add_quickstart(CLI::App& app) {
  add_examples(
      add_command<const QuickstartFlags&>(
          app, "quickstart", "upcycle, train and evaluate the embedded tiny model", run, options),
      "moe quickstart --short -o tried");
}

}  // namespace moe::cli
