#pragma once
// RUN/report.html: a page (core/base/page/page.h) of a run, and the page that compares several.

#include <filesystem>
#include <string>
#include <vector>

#include "core/train/observe/history.h"

namespace moe::train {

// Returns the page of the run in the folder `run`. Parts whose files are missing are left out.
std::string report_page(const std::filesystem::path& run, const History& history);

struct ComparedRun {
  std::filesystem::path folder;
  History history;
};

// Returns the page of several runs, labeled by their folders' names, or by paths if two are equal.
std::string comparison_page(const std::vector<ComparedRun>& runs);

}  // namespace moe::train
