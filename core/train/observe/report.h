#pragma once
// RUN/report.html: a run as one page that needs nothing else, no network and no other file. Words
// and tables are plain HTML; its script (report.js) draws curves and load maps from the numbers
// that stand in it as JSON. Whatever a run holds, settings and samples of text too, is taken as
// hostile: it can change what the page says, never what it does.

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
