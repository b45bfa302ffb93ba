#pragma once
// The numbers of a report: which curves stand together in a panel, under what name, and the JSON
// that the page draws.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/observe/history.h"

namespace moe::train {

struct PanelLine {
  std::string name;  // "held out"; empty where a panel has one line
  const Downsampled* curve = nullptr;
  bool is_marked = false;  // a dot a point
};

struct Panel {
  PanelSpec spec;  // its curve is that of the first line
  std::vector<PanelLine> lines;
};

// The panels that this run has anything to show in. `zero`, if given, is told the titles of those
// left out because they are zero from first to last.
std::vector<Panel> panels_of(const History& history, std::vector<std::string>* zero = nullptr);

// Each point becomes the mean of its neighbours, nearer ones counting more; as many points. None
// where there are too few to smooth.
std::vector<Point> smoothed(const std::vector<Point>& points);

// What a run's settings say of its curves.
struct CurveSettings {
  std::optional<double> clip;    // drawn into the gradient norm
  std::optional<double> warmup;  // steps; losses are shown after them at first
};

// The sections of a page (core/base/page/page.h) with these panels, a section a group.
OrderedJson curve_sections(const std::vector<Panel>& panels, const CurveSettings& settings);

// The same with all of the run's curves, and its load maps.
OrderedJson drawn_sections(const History& history, const CurveSettings& settings);

// RUN/report.html: a run as one page (core/base/page/page.h): its curves, load maps and samples of
// text, the same in numbers, what it ran on and its settings. Several runs share one: each curve of
// all of them in one panel, how they ended, and the settings in which they differ.

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
