#include "core/train/observe/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/page/page.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/io/file.h"
#include "core/train/config/settings.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

std::string text_if_there(const fs::path& file) {
  return fs::exists(file) ? read_small_file(file) : "";
}

using Settings = std::map<std::string, std::string>;

// Returns the settings of a settings.toml; none if it is missing or invalid. The page of one run
// shows the file as text.
Settings settings_in(const std::string& toml) {
  try {
    return read_settings(toml, "settings.toml");
  } catch (const UserError&) {
    return {};
  }
}

std::optional<double> number_in(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  if (found == settings.end()) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(found->second.c_str(), &end);
  return *end != '\0' || !std::isfinite(value) ? std::nullopt : std::optional(value);
}

std::string number(double value) { return fmt::format("{:.5g}", value); }

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e15) + 0.5);
  return seconds < 60 ? fmt::format("{:.3g} s", seconds)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

OrderedJson fact(const std::string& name, const std::string& value, const std::string& note = "") {
  return {{"name", name}, {"value", value}, {"note", note}};
}

OrderedJson facts(const History& history, std::optional<double> steps) {
  OrderedJson facts = OrderedJson::array();
  facts.push_back(
      fact("Steps", grouped(history.steps),
           steps && *steps < 1e15 ? "of " + grouped(static_cast<int64_t>(*steps)) : ""));
  for (const auto& [title, curve] : {std::pair("Loss", "loss"), {"Held out", "held_out_loss"}}) {
    if (const Downsampled* found = history.find_curve(curve)) {
      facts.push_back(fact(title, fmt::format("{:.4f}", found->last.value),
                           found->first.step == found->last.step
                               ? ""
                               : fmt::format("from {:.4f}", found->first.value)));
    }
  }
  if (const ReluStages& stages = history.relu_stages(); stages.has_begun()) {
    const auto end = stages.sparsifying_end();
    facts.push_back(
        fact("Sparse since step", end ? grouped(*end) : "-",
             fmt::format("{} {}; S* is {:.4g}", end ? "dense until" : "not yet; dense until",
                         grouped(stages.dense_end()), stages.target())));
  }
  facts.push_back(fact("Tokens", grouped(history.total_tokens)));
  facts.push_back(fact("Time", clock_text(history.seconds)));
  return facts;
}

OrderedJson notes(const History& history, const std::vector<Json>& starts) {
  OrderedJson notes = OrderedJson::array();
  const auto add = [&](const std::string& text, bool is_warning) {
    notes.push_back({{"text", text}, {"is_warning", is_warning}});
  };
  if (history.skipped_count > 0) {
    add(fmt::format("{} step{} skipped ({} by a loss or gradient that was no number, {} as "
                    "outliers): {}{}",
                    grouped(history.skipped_count), history.skipped_count == 1 ? "" : "s",
                    history.skipped_count - history.skipped_outliers, history.skipped_outliers,
                    fmt::join(history.skipped, ", "),
                    history.skipped_count > std::ssize(history.skipped) ? ", .." : ""),
        true);
  }
  if (history.missing > 0) {
    add(fmt::format("{} step{} no line in metrics.jsonl and {} not drawn", grouped(history.missing),
                    history.missing == 1 ? " has" : "s have", history.missing == 1 ? "is" : "are"),
        true);
  }
  if (!starts.empty() && starts.back().value("notes", Json()).is_array()) {
    for (const auto& note : starts.back()["notes"]) {
      const std::string text = note.is_string() ? note.get<std::string>() : note.dump();
      add(text, text.starts_with("warning: "));
    }
  }
  std::vector<std::string> zero;
  make_panels(history, &zero);
  if (!zero.empty()) {
    add(fmt::format("Not shown (always zero): {}.", fmt::join(zero, ", ")), false);
  }
  return notes;
}

OrderedJson row(const std::string& name, const std::vector<std::string>& cells) {
  return {{"name", name}, {"cells", cells}};
}

void add_table(const std::vector<std::string>& columns, const OrderedJson& rows,
               OrderedJson& panels) {
  if (!rows.empty()) {
    panels.push_back({{"kind", "table"}, {"columns", columns}, {"rows", rows}});
  }
}

std::string at_step(const Point& point, double scale) {
  return fmt::format("{} at {}", number(point.value * scale), grouped(point.step));
}

std::string curve_title(const PanelSpec& spec, const PanelLine& line) {
  return line.name.empty() ? spec.title : spec.title + ", " + line.name;
}

OrderedJson curve_rows(const History& history) {
  OrderedJson rows = OrderedJson::array();
  for (const auto& [spec, lines] : make_panels(history)) {
    for (const auto& line : lines) {
      const std::string unit = spec.unit;
      const std::string name = curve_title(spec, line);
      rows.push_back(
          row(unit.empty() ? name : fmt::format("{} ({})", name, unit),
              {number(line.curve->first.value * spec.scale),
               number(line.curve->last.value * spec.scale), at_step(line.curve->least, spec.scale),
               at_step(line.curve->largest, spec.scale)}));
    }
  }
  return rows;
}

// Returns the table rows of the last column of the load maps.
OrderedJson load_rows(const LoadMap& map) {
  OrderedJson rows = OrderedJson::array();
  if (map.empty()) {
    return rows;
  }
  for (const auto& load : map.columns().back().loads) {
    size_t least = 0, most = 0, dead = 0;
    for (size_t expert = 0; expert < load.rows.size(); ++expert) {
      least = load.rows[expert] < load.rows[least] ? expert : least;
      most = load.rows[expert] > load.rows[most] ? expert : most;
      dead += load.rows[expert] == 0 ? 1 : 0;
    }
    if (!load.rows.empty()) {
      rows.push_back(row(fmt::format("Layer {}", load.layer),
                         {fmt::format("{:.2f} × expert {}", relative_load(load, least), least),
                          fmt::format("{:.2f} × expert {}", relative_load(load, most), most),
                          fmt::format("{} of {}", dead, load.rows.size())}));
    }
  }
  return rows;
}

OrderedJson numbers(const History& history) {
  OrderedJson panels = OrderedJson::array();
  add_table({"Curve", "First", "Last", "Least", "Largest"}, curve_rows(history), panels);
  add_table({"Load at the end", "Least", "Largest", "Without a token"}, load_rows(history.loads()),
            panels);
  return {{"id", "numbers"}, {"title", "In numbers"}, {"panels", panels}};
}

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

// Truncates a text to a few kilobytes, to bound the size of the page.
std::string shortened(std::string_view text) {
  constexpr size_t kMaxBytes = 4000;
  return text.size() <= kMaxBytes ? std::string(text)
                                  : std::string(text.substr(0, kMaxBytes)) + " ..";
}

std::vector<std::string> run_labels(const std::vector<ComparedRun>& runs) {
  std::map<std::string, int> uses;
  for (const auto& run : runs) {
    ++uses[fs::weakly_canonical(run.folder).filename().string()];
  }
  std::vector<std::string> names;
  for (const auto& run : runs) {
    const std::string name = fs::weakly_canonical(run.folder).filename().string();
    names.push_back(uses[name] == 1 ? name : run.folder.string());
  }
  return names;
}

// Returns a panel per curve with a line per run.
std::vector<Panel> compared_panels(const std::vector<ComparedRun>& runs,
                                   const std::vector<std::string>& names) {
  std::vector<Panel> compared;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [spec, lines] : make_panels(runs[i].history)) {
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
  // Restores the order of groups: a later run may have added an earlier group.
  const auto order = [](const Panel& panel) {
    const auto& specs = single_curve_panels();
    const auto first = std::ranges::find_if(specs, [&](const PanelSpec& spec) {
      return std::string_view(spec.group) == panel.spec.group;
    });
    return panel.spec.group == std::string_view(kLossGroup) ? -1 : first - specs.begin();
  };
  std::ranges::stable_sort(
      compared, [&](const Panel& left, const Panel& right) { return order(left) < order(right); });
  return compared;
}

// Returns the table of the last value of each loss and accuracy, with a row per run.
OrderedJson ends_table(const std::vector<ComparedRun>& runs,
                       const std::vector<std::string>& names) {
  std::vector<std::string> columns = {"Run", "Steps", "Tokens", "Time"};
  std::vector<std::pair<std::string, double>> curves;  // name and scale
  const auto add = [&](const std::string& title, const std::string& curve, double scale) {
    const bool is_known =
        std::ranges::any_of(curves, [&](const auto& known) { return known.first == curve; });
    if (!is_known) {
      columns.push_back(title);
      curves.emplace_back(curve, scale);
    }
  };
  for (const auto& run : runs) {
    for (const auto& [curve, points] : run.history.curves()) {
      const std::string task = task_name(curve);
      if (curve == "loss") {
        add("Loss", curve, 1);
      } else if (curve == "held_out_loss") {
        add("Held out", curve, 1);
      } else if (!task.empty()) {
        add(task + ", %", curve, 100);
      }
    }
  }
  OrderedJson rows = OrderedJson::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    const History& history = runs[i].history;
    std::vector<std::string> cells = {grouped(history.steps), grouped(history.total_tokens),
                                      clock_text(history.seconds)};
    for (const auto& [curve, scale] : curves) {
      const Downsampled* found = history.find_curve(curve);
      cells.push_back(found == nullptr ? "-" : number(found->last.value * scale));
    }
    rows.push_back(row(names[i], cells));
  }
  return {{"kind", "table"}, {"columns", columns}, {"rows", rows}};
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
      const auto found = values.find(key);
      cells.push_back(found == values.end() ? "-" : found->second);
    }
    if (std::ranges::any_of(cells,
                            [&](const std::string& cell) { return cell != cells.front(); })) {
      rows.push_back(row(key, cells));
    }
  }
  OrderedJson panels = OrderedJson::array();
  add_table(columns, rows, panels);
  return {{"id", "settings"}, {"title", "Settings that differ"}, {"panels", panels}};
}

OrderedJson samples(const SampleHistory& history) {
  OrderedJson panels = OrderedJson::array();
  for (const auto& prompt : history.prompts()) {
    OrderedJson texts = OrderedJson::array();
    for (const auto* sample : pick_samples(prompt)) {
      texts.push_back(
          {{"name", "step " + grouped(sample->step)}, {"text", shortened(trimmed(sample->text))}});
    }
    panels.push_back({{"kind", "texts"}, {"title", shortened(prompt.prompt)}, {"texts", texts}});
  }
  return {{"id", "samples"}, {"title", "Samples of text"}, {"panels", panels}};
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
    return grouped(value.get<int64_t>());
  }
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns the section on the environment of the run and the times of its starts.
OrderedJson about(const std::vector<Json>& starts) {
  OrderedJson rows = OrderedJson::array();
  const auto add = [&](const std::string& name, const std::string& text) {
    rows.push_back({{"name", name}, {"text", text}});
  };
  static const std::vector<std::pair<const char*, const char*>> names = {
      {"parameters", "Parameters"},
      {"router", "Router"},
      {"loss", "Loss"},
      {"data", "Data"},
      {"moe", "moe"},
      {"libtorch", "LibTorch"},
      {"machine", "Machine"},
      {"threads", "Threads"}};
  for (const auto& [key, name] : names) {
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
    add(step == 0 ? "Started" : fmt::format("Resumed after step {}", grouped(step)),
        to_text(start.value("time", Json("unknown"))));
  }
  OrderedJson panels = OrderedJson::array();
  if (!rows.empty()) {
    panels.push_back({{"kind", "fields"}, {"rows", rows}});
  }
  return {{"id", "about"}, {"title", "About this run"}, {"panels", panels}};
}

}  // namespace

std::string report_page(const fs::path& run, const History& history) {
  const std::string toml = text_if_there(run / "settings.toml");
  const Settings settings = settings_in(toml);
  const std::vector<Json> starts = read_run_history(run / "starts.jsonl");
  OrderedJson sections =
      drawn_sections(history, {number_in(settings, "clip"), number_in(settings, "warmup")});
  sections.push_back(samples(history.samples()));
  sections.push_back(numbers(history));
  sections.push_back(about(starts));
  sections.push_back({{"id", "settings"}, {"title", "Settings"}, {"panels", OrderedJson::array()}});
  if (!toml.empty()) {
    sections.back()["panels"].push_back({{"kind", "text"}, {"text", toml}});
  }
  return make_page({{"program", "moe train"},
                    {"state", fs::exists(run / "final") ? "finished" : "not finished"},
                    {"title", fs::weakly_canonical(run).filename().string()},
                    {"facts", facts(history, number_in(settings, "steps"))},
                    {"notes", notes(history, starts)},
                    {"x", {{"label", "step"}}},
                    {"sections", std::move(sections)},
                    {"footer", "Written " + time_text() + "."}});
}

void write_report(const fs::path& run, const History& history, const fs::path& out) {
  io::write_whole(out, report_page(run, history));
}

std::string comparison_page(const std::vector<ComparedRun>& runs) {
  const std::vector<std::string> names = run_labels(runs);
  OrderedJson sections = OrderedJson::array();
  sections.push_back(
      {{"id", "ends"}, {"title", "How they ended"}, {"panels", {ends_table(runs, names)}}});
  std::vector<Settings> settings;
  std::optional<double> warmup;  // maximum of the runs
  for (const auto& run : runs) {
    settings.push_back(settings_in(text_if_there(run.folder / "settings.toml")));
    warmup = std::max(warmup, number_in(settings.back(), "warmup"));
  }
  for (auto& section : curve_sections(compared_panels(runs, names), {std::nullopt, warmup})) {
    sections.push_back(std::move(section));
  }
  sections.push_back(differing_settings(settings, names));
  return make_page({{"program", "moe train"},
                    {"title", fmt::format("{}", fmt::join(names, ", "))},
                    {"x", {{"label", "step"}}},
                    {"sections", std::move(sections)},
                    {"footer", "Written " + time_text() + "."}});
}

}  // namespace moe::train
