#include "cli/samples.h"

#include <fmt/format.h>

#include <cstdlib>

#include "cli/progress.h"
#include "core/base/terminal_text.h"
#include "core/data/show.h"
#include "core/train/loop/training_data.h"

namespace moe::cli {

void print_samples(const train::TrainSettings& settings, int64_t count) {
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = is_terminal(1) && (no_colour == nullptr || *no_colour == '\0');
  const train::Samples samples = train::read_samples(settings, count);
  for (size_t file = 0; file < samples.files.size(); ++file) {
    fmt::print("{}: {}\n", terminal_text(samples.files[file], /*one_line=*/true),
               terminal_text(samples.forms[file], /*one_line=*/true));
  }
  for (const auto& example : samples.examples) {
    const std::string where =
        fmt::format("{} line {}", samples.files[static_cast<size_t>(example.file)], example.line);
    fmt::print("\n{}", data::show_example(example, where, samples.piece, colour));
  }
}

}  // namespace moe::cli
