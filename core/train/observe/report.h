#pragma once
// RUN/report.html: a run as one page (core/base/page/page.h): its curves, load maps and samples of
// text, the same in numbers, what it ran on and its settings. Several runs share one: each curve of
// all of them in one panel, how they ended, and the settings in which they differ.

#include <filesystem>
#include <string>
#include <vector>

#include "core/train/observe/history.h"

namespace moe::train {

// The page of the run in the folder `run`, whose metrics are `history`. Files that are missing
// leave their part out.
std::string report_page(const std::filesystem::path& run, const History& history);

// The same as the file `out`, whole or not at all. UserError when it cannot be written.
void write_report(const std::filesystem::path& run, const History& history,
                  const std::filesystem::path& out);

struct ComparedRun {
  std::filesystem::path folder;
  History history;
};

// The page of several runs. They are called by their folders' names, by all of their paths where
// two have the same.
std::string comparison_page(const std::vector<ComparedRun>& runs);

}  // namespace moe::train
