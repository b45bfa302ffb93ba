#pragma once
// RUN/report.html: a page (core/base/page/page.h) of a run, and the page that compares several
// runs.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/observe/history.h"

namespace moe::train {

struct PanelLine {
  std::string name;  // "held out"; "" if the panel has one line
  const Downsampled* curve = nullptr;
  bool is_marked = false;  // draws a dot per point
};

struct Panel {
  PanelSpec spec;  // its curve is that of the first line
  std::vector<PanelLine> lines;
};

// Returns the panels for which the run has data. Adds to `zero` (may be null) the titles of routing
// panels that are left out because they are always zero.
std::vector<Panel> make_panels(const History& history, std::vector<std::string>* zero = nullptr);

// Returns a weighted moving average with as many points; nothing if there are too few to smooth.
std::vector<Point> smoothed(const std::vector<Point>& points);

// Settings of a run that are drawn into its curves.
struct CurveSettings {
  std::optional<double> clip;    // a line in the gradient norm
  std::optional<double> warmup;  // steps; the initial view of losses begins after them
};

// Returns the sections of a page with these panels, a section per group.
OrderedJson curve_sections(const std::vector<Panel>& panels, const CurveSettings& settings);

OrderedJson drawn_sections(const History& history, const CurveSettings& settings);

// Returns the page of the run in the folder `run`. Parts whose files are missing are left out.
std::string report_page(const std::filesystem::path& run, const History& history);

// Writes report_page() to the file `out`, atomically. Throws UserError if it cannot be written.
void write_report(const std::filesystem::path& run, const History& history,
                  const std::filesystem::path& out);

struct ComparedRun {
  std::filesystem::path folder;
  History history;
};

// Returns the page of several runs, labeled by the names of their folders, or by their paths if two
// names are equal.
std::string comparison_page(const std::vector<ComparedRun>& runs);

}  // namespace moe::train
