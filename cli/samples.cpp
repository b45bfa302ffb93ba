#include "cli/samples.h"

#include <fmt/format.h>

#include <cstdlib>

#include "cli/progress.h"
#include "core/data/show.h"
#include "core/train/training_data.h"

namespace moe::cli {

void print_samples(const train::TrainSettings& settings, int64_t count) {
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = is_terminal(1) && (no_colour == nullptr || *no_colour == '\0');
  const train::Samples samples = train::read_samples(settings, count);
  for (size_t file = 0; file < samples.examples.files.size(); ++file) {
    fmt::print("{}: {}\n", samples.examples.files[file], samples.examples.forms[file]);
  }
  for (const auto& example : samples.examples.items) {
    fmt::print("\n{}", data::show_example(samples.examples, example, samples.piece, colour));
  }
}

}  // namespace moe::cli
