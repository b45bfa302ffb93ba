#pragma once
// RUN/report.html: a run as one page (core/base/page/page.h): its curves, load maps and samples of
// text, the same in numbers, what it ran on and its settings.

#include <filesystem>
#include <string>

#include "core/train/observe/history.h"

namespace moe::train {

// The page of the run in the folder `run`, whose metrics are `history`. Files that are missing
// leave their part out.
std::string report_page(const std::filesystem::path& run, const History& history);

// The same as the file `out`, whole or not at all. UserError when it cannot be written.
void write_report(const std::filesystem::path& run, const History& history,
                  const std::filesystem::path& out);

}  // namespace moe::train
