#include "core/train/observe/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/page/page.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/io/file.h"
#include "core/train/config/settings.h"

namespace moe::train {
namespace {

namespace fs = std::filesystem;

// A curve of a panel.
struct PanelLine {
  std::string name;  // "held out"; "" if the panel has one line
  const Downsampled* curve = nullptr;
  bool is_marked = false;  // draws a dot per point
};

struct Panel {
  PanelSpec spec;  // `curve` is that of the first line
  std::vector<PanelLine> lines;
};

// Settings of a run that are shown in its curves.
struct CurveSettings {
  std::optional<double> clip;    // drawn as a line in the gradient norm
  std::optional<double> warmup;  // steps; the initial view of losses begins after them
};

// Returns the panels for which the run has data. Adds to `zero` the titles of routing panels that
// are left out because they are always zero.
std::vector<Panel> make_panels(const History& history, std::vector<std::string>& zero) {
  Panel loss{{kLossGroup, "Loss", "nats per target token", "loss", 1, false, true, true}, {}};
  for (const auto& [name, key] : {std::pair("training", "loss"), {"held out", "held_out_loss"}}) {
    if (const Downsampled* curve = history.find_curve(key)) {
      loss.lines.push_back({name, curve, /*is_marked=*/!loss.lines.empty()});
    }
  }
  Panel accuracy{{kLearningGroup, "Accuracy", "% of questions", "", 100}, {}};
  for (const auto& [name, curve] : history.curves()) {
    if (const std::string task = task_name(name); !task.empty()) {
      accuracy.lines.push_back({task, &curve, /*is_marked=*/true});
    }
  }
  std::vector<Panel> panels = {loss, accuracy};
  std::erase_if(panels, [](const Panel& panel) { return panel.lines.empty(); });
  for (const auto& spec : single_curve_panels()) {
    // Without lambda, sparsity is a function of experts per token.
    const bool is_redundant = spec.curve == "sparsity" && history.find_curve("lambda") == nullptr;
    const Downsampled* curve = is_redundant ? nullptr : history.find_curve(spec.curve);
    if (curve == nullptr) {
      continue;
    }
    if (spec.group == kRoutingGroup && curve->min.value == 0 && curve->max.value == 0) {
      zero.push_back(spec.title);
    } else {
      panels.push_back({spec, {{"", curve}}});
    }
  }
  return panels;
}

OrderedJson points_json(const std::vector<Point>& points, double scale) {
  OrderedJson steps = OrderedJson::array(), values = OrderedJson::array();
  for (const auto& point : points) {
    steps.push_back(point.step);
    values.push_back(round_for_screen(point.value * scale));
  }
  return {{"x", steps}, {"y", values}};
}

// Returns the maximum number of points of a curve: all curves of a page take about 1 MB, at 15
// bytes per point.
size_t points_per_curve(const std::vector<Panel>& panels) {
  constexpr size_t kPagePoints = 60'000, kMinPoints = 50;
  size_t curves = 0;
  for (const auto& panel : panels) {
    curves += panel.lines.size();
  }
  return std::clamp(kPagePoints / std::max<size_t>(1, curves), kMinPoints, Downsampled::kMaxPoints);
}

OrderedJson series_json(const Panel& panel, const PanelLine& line, size_t max_points) {
  const double scale = panel.spec.scale;
  OrderedJson json = {{"name", line.name}};
  json.update(points_json(line.curve->points(max_points), scale));
  if (line.is_marked) {
    json["is_marked"] = true;
  } else if (panel.spec.is_smoothed) {
    if (const auto smooth = smoothed(line.curve->means()); !smooth.empty()) {
      json["smooth"] = points_json(smooth, scale);
    }
  }
  return json;
}

OrderedJson panel_json(const Panel& panel, const CurveSettings& settings, size_t max_points) {
  OrderedJson json = {{"kind", "lines"},
                      {"title", panel.spec.title},
                      {"subtitle", panel.spec.unit},
                      {"is_wide", panel.spec.group == kLossGroup},
                      {"y", {{"from_zero", panel.spec.from_zero}}},
                      {"series", OrderedJson::array()}};
  if (panel.spec.is_loss) {
    json["y"]["log"] = false;
    if (settings.warmup && *settings.warmup > 0) {
      json["start"] = {{"name", "warm-up"}, {"x", std::llround(std::min(*settings.warmup, 1e15))}};
    }
  }
  if (settings.clip && *settings.clip > 0 && panel.spec.curve == "grad_norm") {
    json["rule"] = {{"name", "clip"}, {"value", *settings.clip}};
  }
  for (const auto& line : panel.lines) {
    json["series"].push_back(series_json(panel, line, max_points));
  }
  return json;
}

OrderedJson map_json(const LoadMap& map, size_t layer) {
  const LayerLoad& shape = map.columns().front().loads[layer];
  OrderedJson names = OrderedJson::array(), values = OrderedJson::array();
  for (size_t expert = 0; expert < shape.rows.size(); ++expert) {
    names.push_back(fmt::format("{}", expert));
  }
  for (const auto& column : map.columns()) {
    for (size_t expert = 0; expert < shape.rows.size(); ++expert) {
      values.push_back(std::lround(100 * relative_load(column.loads[layer], expert)));
    }
  }
  return {{"kind", "heat map"},
          {"title", fmt::format("Layer {}", shape.layer)},
          {"subtitle", fmt::format("{} experts, one per row", shape.rows.size())},
          {"y", {{"label", "expert"}, {"names", names}}},
          {"values", values}};
}

OrderedJson maps_section(const LoadMap& map) {
  OrderedJson ranges = OrderedJson::array(), panels = OrderedJson::array();
  for (const auto& column : map.columns()) {
    ranges.push_back({column.begin, column.end});
  }
  for (size_t layer = 0; layer < map.columns().front().loads.size(); ++layer) {
    panels.push_back(map_json(map, layer));
  }
  return {{"title", "Load by layer and expert"},
          {"note", "Rows of an expert over an equal share"},
          {"x", {{"label", "step"}, {"ranges", ranges}}},
          {"panels", panels}};
}

OrderedJson curve_sections(const std::vector<Panel>& panels, const CurveSettings& settings) {
  OrderedJson sections = OrderedJson::array();
  const size_t max_points = points_per_curve(panels);
  std::map<std::string, size_t> section_of_group;
  for (const auto& panel : panels) {
    const auto [place, is_new] = section_of_group.emplace(panel.spec.group, sections.size());
    if (is_new) {  // the loss has no heading
      const std::string title = panel.spec.group == kLossGroup ? "" : panel.spec.group;
      sections.push_back({{"title", title}, {"panels", OrderedJson::array()}});
    }
    sections[place->second]["panels"].push_back(panel_json(panel, settings, max_points));
  }
  return sections;
}

// Returns the text of `file`, or "" if it does not exist.
std::string read_if_exists(const fs::path& file) {
  return fs::exists(file) ? read_small_file(file) : "";
}

using Settings = std::map<std::string, std::string>;

// Returns the settings of a settings.toml; none if it is missing or invalid.
Settings parse_settings(const std::string& toml) {
  try {
    return read_settings(toml, "settings.toml");
  } catch (const UserError&) {
    return {};
  }
}

// Returns the text of a setting; "-" if the run does not have it.
std::string setting_text(const Settings& settings, const std::string& key) {
  const auto setting = settings.find(key);
  return setting == settings.end() ? "-" : setting->second;
}

// Returns a setting that is a finite number.
std::optional<double> setting_number(const Settings& settings, const std::string& key) {
  double value = 0;
  const bool is_number = set_value(&value, setting_text(settings, key)) && std::isfinite(value);
  return is_number ? std::optional(value) : std::nullopt;
}

std::string number(double value) { return fmt::format("{:.5g}", value); }

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e15) + 0.5);
  return seconds < 60 ? fmt::format("{:.3g} s", seconds)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

OrderedJson facts(const History& history, std::optional<double> steps) {
  OrderedJson facts = OrderedJson::array();
  const auto add = [&](const char* name, const std::string& value, const std::string& note = "") {
    facts.push_back({{"name", name}, {"value", value}, {"note", note}});
  };
  add("Steps", group_digits(history.steps),
      steps && *steps < 1e15 ? "of " + group_digits(static_cast<int64_t>(*steps)) : "");
  for (const auto& [title, curve] : {std::pair("Loss", "loss"), {"Held out", "held_out_loss"}}) {
    if (const Downsampled* points = history.find_curve(curve)) {
      add(title, fmt::format("{:.4f}", points->last.value),
          points->first.step == points->last.step
              ? ""
              : fmt::format("from {:.4f}", points->first.value));
    }
  }
  if (const ReluStages& stages = history.relu_stages(); stages.first_sparsity) {
    const auto end = stages.sparsifying_end;
    add("Sparse since step", end ? group_digits(*end) : "-",
        fmt::format("{} {}; S* is {:.4g}", end ? "dense until" : "not yet; dense until",
                    group_digits(stages.dense_end), stages.target));
  }
  add("Tokens", group_digits(history.total_tokens));
  add("Time", clock_text(history.seconds));
  return facts;
}

OrderedJson notes(const History& history, const std::vector<Json>& starts,
                  const std::vector<std::string>& zero) {
  OrderedJson notes = OrderedJson::array();
  const auto add = [&](const std::string& text, bool is_warning) {
    notes.push_back({{"text", text}, {"is_warning", is_warning}});
  };
  if (history.skipped_count > 0) {
    add(fmt::format("{} step{} skipped ({} because loss or gradient was not finite, {} as "
                    "outliers): {}{}",
                    group_digits(history.skipped_count), history.skipped_count == 1 ? "" : "s",
                    history.skipped_count - history.skipped_outliers, history.skipped_outliers,
                    fmt::join(history.skipped, ", "),
                    history.skipped_count > std::ssize(history.skipped) ? ", .." : ""),
        true);
  }
  if (history.steps_without_targets > 0) {
    add(fmt::format("{} of {} steps had no token with loss and are not in the loss curve",
                    group_digits(history.steps_without_targets), group_digits(history.steps)),
        true);
  }
  if (const std::string collapse = history.collapse().state(); !collapse.empty()) {
    add(collapse, true);
  }
  if (history.missing > 0) {
    add(fmt::format("{} step{} no line in metrics.jsonl and {} not drawn",
                    group_digits(history.missing), history.missing == 1 ? " has" : "s have",
                    history.missing == 1 ? "is" : "are"),
        true);
  }
  if (!starts.empty() && starts.back().value("notes", Json()).is_array()) {
    for (const auto& note : starts.back()["notes"]) {
      const std::string text = note.is_string() ? note.get<std::string>() : note.dump();
      add(text, text.starts_with("warning: "));
    }
  }
  if (!zero.empty()) {
    add(fmt::format("Not shown (always zero): {}.", fmt::join(zero, ", ")), false);
  }
  return notes;
}

OrderedJson section(const char* id, const char* title, const OrderedJson& panels) {
  return {{"id", id}, {"title", title}, {"panels", panels}};
}

OrderedJson row(const std::string& name, const std::vector<std::string>& cells) {
  return {{"name", name}, {"cells", cells}};
}

// Returns a list of panels: `panel`, or none if it is not shown.
OrderedJson panel_if(bool is_shown, const OrderedJson& panel) {
  return is_shown ? OrderedJson::array({panel}) : OrderedJson::array();
}

// Returns a list of panels: a table, or none if it has no rows.
OrderedJson table(const std::vector<std::string>& columns, const OrderedJson& rows) {
  return panel_if(!rows.empty(), {{"kind", "table"}, {"columns", columns}, {"rows", rows}});
}

std::string at_step(const Point& point, double scale) {
  return fmt::format("{} at {}", number(point.value * scale), group_digits(point.step));
}

std::string curve_title(const PanelSpec& spec, const PanelLine& line) {
  return line.name.empty() ? spec.title : spec.title + ", " + line.name;
}

OrderedJson curve_rows(const std::vector<Panel>& panels) {
  OrderedJson rows = OrderedJson::array();
  for (const auto& [spec, lines] : panels) {
    for (const auto& line : lines) {
      const std::string name = curve_title(spec, line);
      rows.push_back(
          row(spec.unit.empty() ? name : fmt::format("{} ({})", name, spec.unit),
              {number(line.curve->first.value * spec.scale),
               number(line.curve->last.value * spec.scale), at_step(line.curve->min, spec.scale),
               at_step(line.curve->max, spec.scale)}));
    }
  }
  return rows;
}

OrderedJson load_rows(const LoadMap& map) {
  OrderedJson rows = OrderedJson::array();
  for (const auto& load : map.empty() ? std::vector<LayerLoad>() : map.columns().back().loads) {
    if (load.rows.empty()) {
      continue;
    }
    const auto expert = [&](const auto& position) {
      const auto index = static_cast<size_t>(position - load.rows.begin());
      return fmt::format("{:.2f} × expert {}", relative_load(load, index), index);
    };
    rows.push_back(row(
        fmt::format("Layer {}", load.layer),
        {expert(std::ranges::min_element(load.rows)), expert(std::ranges::max_element(load.rows)),
         fmt::format("{} of {}", std::ranges::count(load.rows, 0), load.rows.size())}));
  }
  return rows;
}

OrderedJson numbers(const std::vector<Panel>& panels, const LoadMap& loads) {
  OrderedJson tables = table({"Curve", "First", "Last", "Least", "Largest"}, curve_rows(panels));
  const OrderedJson load_table =
      table({"Load at the end", "Least", "Largest", "Without a token"}, load_rows(loads));
  tables.insert(tables.end(), load_table.begin(), load_table.end());
  return section("numbers", "In numbers", tables);
}

std::string shorten(std::string_view text) {
  constexpr size_t kMaxBytes = 4000;
  return std::string(text.substr(0, kMaxBytes)) + (text.size() > kMaxBytes ? " .." : "");
}

// Returns the name of the folder `run`. Resolves "." and paths that end in a slash.
std::string folder_name(const fs::path& run) {
  return fs::weakly_canonical(run).filename().string();
}

// Returns the name of each run's folder, or its path if another run has the same name.
std::vector<std::string> run_labels(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> names;
  for (const auto& run : runs) {
    names.push_back(folder_name(run.folder));
  }
  std::vector<std::string> labels = names;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (std::ranges::count(names, names[i]) > 1) {
      labels[i] = runs[i].folder.string();
    }
  }
  return labels;
}

std::vector<Panel> compared_panels(const std::vector<ComparedRun>& runs,
                                   const std::vector<std::string>& names) {
  std::vector<Panel> compared;
  std::vector<std::string> zero;  // not shown
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [spec, lines] : make_panels(runs[i].history, zero)) {
      for (const auto& line : lines) {
        const std::string title = curve_title(spec, line);
        auto panel = std::ranges::find_if(
            compared, [&](const Panel& known) { return known.spec.title == title; });
        if (panel == compared.end()) {
          panel = compared.insert(compared.end(), Panel{spec, {}});
          panel->spec.title = title;
        }
        panel->lines.push_back({names[i], line.curve, line.is_marked});
      }
    }
  }
  // Sorts by group: a panel that only a later run has was appended at the end.
  const auto order = [](const Panel& panel) {
    const auto& specs = single_curve_panels();
    const auto first = std::ranges::find(specs, panel.spec.group, &PanelSpec::group);
    return panel.spec.group == kLossGroup ? -1 : first - specs.begin();
  };
  std::ranges::stable_sort(
      compared, [&](const Panel& left, const Panel& right) { return order(left) < order(right); });
  return compared;
}

// Returns a table of the runs: steps, tokens, time, and the last value of each loss and accuracy.
OrderedJson ends_table(const std::vector<ComparedRun>& runs,
                       const std::vector<std::string>& names) {
  std::vector<std::string> columns = {"Run", "Steps", "Tokens", "Time"};
  std::vector<std::pair<std::string, double>> curves;  // name and scale
  for (const auto& run : runs) {
    for (const auto& [curve, points] : run.history.curves()) {
      const std::string task = task_name(curve);
      const std::string title = !task.empty()              ? task + ", %"
                                : curve == "loss"          ? "Loss"
                                : curve == "held_out_loss" ? "Held out"
                                                           : "";
      if (!title.empty() && std::ranges::find(columns, title) == columns.end()) {
        columns.push_back(title);
        curves.emplace_back(curve, task.empty() ? 1 : 100);
      }
    }
  }
  OrderedJson rows = OrderedJson::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    const History& history = runs[i].history;
    std::vector<std::string> cells = {group_digits(history.steps),
                                      group_digits(history.total_tokens),
                                      clock_text(history.seconds)};
    for (const auto& [curve, scale] : curves) {
      const Downsampled* points = history.find_curve(curve);
      cells.push_back(points == nullptr ? "-" : number(points->last.value * scale));
    }
    rows.push_back(row(names[i], cells));
  }
  return table(columns, rows);
}

// Returns the table of the settings that differ; "-" for a setting that a run does not have.
OrderedJson differing_settings(const std::vector<Settings>& settings,
                               const std::vector<std::string>& names) {
  std::set<std::string> keys;
  for (const auto& values : settings) {
    for (const auto& [key, value] : values) {
      keys.insert(key);
    }
  }
  keys.erase("out");  // always differs
  std::vector<std::string> columns = {"Setting"};
  columns.insert(columns.end(), names.begin(), names.end());
  OrderedJson rows = OrderedJson::array();
  for (const auto& key : keys) {
    std::vector<std::string> cells;
    for (const auto& values : settings) {
      cells.push_back(setting_text(values, key));
    }
    if (std::ranges::adjacent_find(cells, std::not_equal_to<>()) != cells.end()) {
      rows.push_back(row(key, cells));
    }
  }
  return section("settings", "Settings that differ", table(columns, rows));
}

OrderedJson samples(const SampleHistory& history) {
  OrderedJson panels = OrderedJson::array();
  for (const auto& prompt : history.prompts()) {
    OrderedJson texts = OrderedJson::array();
    for (const auto* sample : select_samples(prompt)) {
      std::string_view text = sample->text;
      text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
      texts.push_back({{"name", "step " + group_digits(sample->step)}, {"text", shorten(text)}});
    }
    panels.push_back({{"kind", "texts"}, {"title", shorten(prompt.prompt)}, {"texts", texts}});
  }
  return section("samples", "Samples of text", panels);
}

std::string to_text(const Json& value) {
  if (value.is_array()) {
    std::string lines;
    for (const auto& element : value) {
      lines += (lines.empty() ? "" : "\n") + to_text(element);
    }
    return lines;
  }
  if (value.is_number_integer()) {
    return group_digits(value.get<int64_t>());
  }
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

OrderedJson about(const std::vector<Json>& starts) {
  OrderedJson rows = OrderedJson::array();
  const auto add = [&](const std::string& name, const std::string& text) {
    rows.push_back({{"name", name}, {"text", text}});
  };
  for (const auto& [key, name] : {std::pair("parameters", "Parameters"),
                                  {"router", "Router"},
                                  {"loss", "Loss"},
                                  {"data", "Data"},
                                  {"moe", "moe"},
                                  {"libtorch", "LibTorch"},
                                  {"machine", "Machine"},
                                  {"threads", "Threads"}}) {
    if (!starts.empty() && starts.back().contains(key)) {
      add(name, to_text(starts.back()[key]));
    }
  }
  constexpr size_t kMaxShown = 20;  // the first one and the last ones
  const size_t hidden = starts.size() > kMaxShown ? starts.size() - kMaxShown : 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (i == 1 && hidden > 0) {
      add(fmt::format("Resumed {} more times", hidden), "starts.jsonl lists them");
      i += hidden;
    }
    const Json& start = starts[i];
    const int64_t step =
        start.value("step", Json()).is_number_integer() ? start["step"].get<int64_t>() : 0;
    add(step == 0 ? "Started" : fmt::format("Resumed after step {}", group_digits(step)),
        to_text(start.value("time", Json("unknown"))));
  }
  return section("about", "About this run",
                 panel_if(!rows.empty(), {{"kind", "fields"}, {"rows", rows}}));
}

}  // namespace

std::string report_page(const fs::path& run, const History& history) {
  const std::string toml = read_if_exists(run / "settings.toml");
  const Settings settings = parse_settings(toml);
  const std::vector<Json> starts = read_run_history(run / "starts.jsonl");
  std::vector<std::string> zero;
  const std::vector<Panel> panels = make_panels(history, zero);
  OrderedJson sections = curve_sections(
      panels, {setting_number(settings, "clip"), setting_number(settings, "warmup")});
  if (!history.loads().empty()) {
    sections.push_back(maps_section(history.loads()));
  }
  sections.push_back(samples(history.samples()));
  sections.push_back(numbers(panels, history.loads()));
  sections.push_back(about(starts));
  sections.push_back(
      section("settings", "Settings", panel_if(!toml.empty(), {{"kind", "text"}, {"text", toml}})));
  return make_page({{"program", "moe train"},
                    {"state", fs::exists(run / "final") ? "finished" : "not finished"},
                    {"title", folder_name(run)},
                    {"facts", facts(history, setting_number(settings, "steps"))},
                    {"notes", notes(history, starts, zero)},
                    {"x", {{"label", "step"}}},
                    {"sections", std::move(sections)},
                    {"footer", "Written " + time_text() + "."}});
}

std::string comparison_page(const std::vector<ComparedRun>& runs) {
  const std::vector<std::string> names = run_labels(runs);
  OrderedJson sections = OrderedJson::array();
  sections.push_back(section("ends", "How they ended", ends_table(runs, names)));
  std::vector<Settings> settings;
  std::optional<double> warmup;  // maximum of the runs
  for (const auto& run : runs) {
    settings.push_back(parse_settings(read_if_exists(run.folder / "settings.toml")));
    warmup = std::max(warmup, setting_number(settings.back(), "warmup"));
  }
  const auto curves = curve_sections(compared_panels(runs, names), {std::nullopt, warmup});
  sections.insert(sections.end(), curves.begin(), curves.end());
  sections.push_back(differing_settings(settings, names));
  return make_page({{"program", "moe train"},
                    {"title", fmt::format("{}", fmt::join(names, ", "))},
                    {"x", {{"label", "step"}}},
                    {"sections", std::move(sections)},
                    {"footer", "Written " + time_text() + "."}});
}

}  // namespace moe::train
