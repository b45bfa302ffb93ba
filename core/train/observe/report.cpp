#include "core/train/observe/report.h"

#include <fmt/ranges.h>

#include <fstream>
#include <numeric>

#include "core/base/error.h"
#include "core/base/html.h"
#include "core/io/partial_file.h"
#include "core/train/observe/report_data.h"
#include "core/train/observe/report_page.h"
#include "core/train/run/options.h"
#include "core/train/run/starts.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A number of settings.toml. None where it is not there, or where the file is no TOML: the page
// shows the file as it is.
std::optional<double> number_in(const std::string& toml, const std::string& key) {
  try {
    const auto values = read_settings(toml, "settings.toml");
    const auto found = values.find(key);
    if (found == values.end()) {
      return std::nullopt;
    }
    char* end = nullptr;
    const double value = std::strtod(found->second.c_str(), &end);
    return *end != '\0' || !std::isfinite(value) ? std::nullopt : std::optional(value);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::string number(double value) { return fmt::format("{:.5g}", value); }

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e15) + 0.5);
  return seconds < 60 ? fmt::format("{:.3g} s", seconds)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string fact(const std::string& name, const std::string& value, const std::string& note = "") {
  return fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", html(name), html(value),
                     note.empty() ? "" : " <small>" + html(note) + "</small>");
}

std::string facts(const History& history, std::optional<double> steps) {
  std::string out =
      fact("Steps", grouped(history.steps),
           steps && *steps < 1e15 ? "of " + grouped(static_cast<int64_t>(*steps)) : "");
  for (const auto& [title, curve] : {std::pair("Loss", "loss"), {"Held out", "held_out_loss"}}) {
    const auto found = history.curves().find(curve);
    if (found != history.curves().end()) {
      const auto& [first, last] = std::pair(found->second.first, found->second.last);
      out += fact(title, fmt::format("{:.4f}", last.value),
                  first.step == last.step ? "" : fmt::format("from {:.4f}", first.value));
    }
  }
  out += fact("Tokens", grouped(history.total_tokens));
  return out + fact("Time", clock_text(history.seconds));
}

// What a reader must know before believing the curves.
std::string notes(const History& history, const std::vector<Json>& starts) {
  std::string out;
  if (history.skipped_count > 0) {
    out += fmt::format(
        "<li class=\"warn\">{} step{} skipped ({} by a loss or gradient that was no number, {} as "
        "outliers): {}{}</li>\n",
        grouped(history.skipped_count), history.skipped_count == 1 ? "" : "s",
        history.skipped_count - history.skipped_outliers, history.skipped_outliers,
        fmt::join(history.skipped, ", "),
        history.skipped_count > std::ssize(history.skipped) ? ", .." : "");
  }
  if (history.missing > 0) {
    out +=
        fmt::format("<li class=\"warn\">{} step{} no line in metrics.jsonl and {} not drawn</li>\n",
                    grouped(history.missing), history.missing == 1 ? " has" : "s have",
                    history.missing == 1 ? "is" : "are");
  }
  std::vector<std::string> lines;
  if (!starts.empty() && starts.back().value("notes", Json()).is_array()) {
    for (const auto& note : starts.back()["notes"]) {
      lines.push_back(note.is_string() ? note.get<std::string>() : note.dump());
    }
  }
  std::vector<std::string> zero;
  panels_of(history, &zero);
  if (!zero.empty()) {
    lines.push_back(fmt::format("Zero from first to last, not drawn: {}.", fmt::join(zero, ", ")));
  }
  for (const auto& line : lines) {
    out += "<li>" + html(line) + "</li>\n";
  }
  return out.empty() ? "" : "<ul class=\"notes\">\n" + out + "</ul>\n";
}

std::string row(const std::string& head, const std::vector<std::string>& cells) {
  std::string out = "<tr><th scope=\"row\">" + html(head) + "</th>";
  for (const auto& cell : cells) {
    out += "<td>" + html(cell) + "</td>";
  }
  return out + "</tr>\n";
}

std::string at_step(const Point& point, double scale) {
  return fmt::format("{} at {}", number(point.value * scale), grouped(point.step));
}

std::string curve_rows(const History& history) {
  std::string out;
  for (const auto& panel : panels_of(history)) {
    for (const auto& line : panel.lines) {
      const std::string name = line.name.empty() ? panel.title : panel.title + ", " + line.name;
      out +=
          row(panel.unit.empty() ? name : fmt::format("{} ({})", name, panel.unit),
              {number(line.curve->first.value * panel.scale),
               number(line.curve->last.value * panel.scale),
               at_step(line.curve->least, panel.scale), at_step(line.curve->largest, panel.scale)});
    }
  }
  return out;
}

// The load maps' last column in words.
std::string load_rows(const LoadMap& map) {
  std::string out;
  if (map.empty()) {
    return out;
  }
  for (const auto& load : map.columns().back().loads) {
    size_t least = 0, most = 0, dead = 0;
    for (size_t expert = 0; expert < load.rows.size(); ++expert) {
      least = load.rows[expert] < load.rows[least] ? expert : least;
      most = load.rows[expert] > load.rows[most] ? expert : most;
      dead += load.rows[expert] == 0 ? 1 : 0;
    }
    if (!load.rows.empty()) {
      out += row(fmt::format("Layer {}", load.layer),
                 {fmt::format("{:.2f} × expert {}", relative_load(load, least), least),
                  fmt::format("{:.2f} × expert {}", relative_load(load, most), most),
                  fmt::format("{} of {}", dead, load.rows.size())});
    }
  }
  return out;
}

std::string table(const std::vector<std::string>& heads, const std::string& rows) {
  std::string out = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>";
  for (const auto& head : heads) {
    out += "<th scope=\"col\">" + html(head) + "</th>";
  }
  return rows.empty() ? "" : out + "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n";
}

std::string numbers(const History& history) {
  return table({"Curve", "First", "Last", "Least", "Largest"}, curve_rows(history)) +
         table({"Load at the end", "Least", "Largest", "Without a token"},
               load_rows(history.loads()));
}

// Without the space that joins it to its prompt.
std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

// Texts of ours are shorter; a file that says other things must not make the page a large one.
std::string shortened(std::string_view text) {
  constexpr size_t kMost_bytes = 4000;
  return text.size() <= kMost_bytes ? std::string(text)
                                    : std::string(text.substr(0, kMost_bytes)) + " ..";
}

std::string samples(const SampleHistory& history) {
  std::string out;
  for (const auto& prompt : history.prompts()) {
    out += "<article class=\"sample\"><p class=\"prompt\">" + html(shortened(prompt.prompt)) +
           "</p>\n<dl>\n";
    for (const auto* sample : a_few(prompt)) {
      out += fmt::format(
          "<div><dt>step {}</dt><dd>{}</dd></div>\n", grouped(sample->step),
          sample->text.empty() ? "<i>nothing</i>" : html(shortened(trimmed(sample->text))));
    }
    out += "</dl></article>\n";
  }
  return out.empty() ? ""
                     : "<section id=\"samples\"><h2>Samples of text</h2>\n" + out + "</section>\n";
}

std::string text_of(const Json& value) {
  if (value.is_array()) {
    std::string lines;
    for (const auto& one : value) {
      lines += (lines.empty() ? "" : "\n") + text_of(one);
    }
    return lines;
  }
  if (value.is_number_integer()) {
    return grouped(value.get<int64_t>());
  }
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// About this run, and when it was started.
std::string about(const std::vector<Json>& starts) {
  if (starts.empty()) {
    return "";
  }
  static const std::vector<std::pair<const char*, const char*>> names = {
      {"parameters", "Parameters"},
      {"router", "Router"},
      {"loss", "Loss"},
      {"data", "Data"},
      {"moe", "moe"},
      {"libtorch", "LibTorch"},
      {"machine", "Machine"},
      {"threads", "Threads"}};
  std::string rows;
  for (const auto& [key, name] : names) {
    if (starts.back().contains(key)) {
      rows += row(name, {text_of(starts.back()[key])});
    }
  }
  constexpr size_t kMostShown = 20;  // the first and the last ones
  const size_t hidden = starts.size() > kMostShown ? starts.size() - kMostShown : 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (i == 1 && hidden > 0) {
      rows += row(fmt::format("Went on {} times more", hidden), {"starts.jsonl lists them"});
      i += hidden;
    }
    const Json& start = starts[i];
    const int64_t step =
        start.value("step", Json()).is_number_integer() ? start["step"].get<int64_t>() : 0;
    rows += row(step == 0 ? "Begun" : fmt::format("Went on after step {}", grouped(step)),
                {text_of(start.value("time", Json("unknown")))});
  }
  return "<section id=\"about\"><h2>About this run</h2>\n<div class=\"scroll\"><table "
         "class=\"about\"><tbody>\n" +
         rows + "</tbody></table></div></section>\n";
}

std::string settings(const std::string& toml) {
  return toml.empty() ? ""
                      : "<section id=\"settings\"><h2>Settings</h2>\n<pre tabindex=\"0\">" +
                            html(toml) + "</pre></section>\n";
}

// Puts parts into their {{places}}, one pass: what a part holds is never a place.
std::string fill(std::string_view page,
                 const std::map<std::string, std::string, std::less<>>& parts) {
  std::string out;
  for (size_t at = page.find("{{"); at != std::string_view::npos; at = page.find("{{")) {
    const size_t end = page.find("}}", at);
    const auto part = parts.find(page.substr(at + 2, end - at - 2));
    MOE_CHECK(end != std::string_view::npos && part != parts.end());
    out += page.substr(0, at);
    out += part->second;
    page.remove_prefix(end + 2);
  }
  return out + std::string(page);
}

}  // namespace

std::string report_page(const fs::path& run, const History& history) {
  const std::string toml = read_text(run / "settings.toml");
  const std::vector<Json> starts = read_starts(run / "starts.jsonl");
  const std::string name = fs::weakly_canonical(run).filename().string();
  const bool is_done = fs::exists(run / "final");
  return fill(
      kReportPage,
      {{"name", html(name)},
       {"state", is_done ? "finished" : "not finished"},
       {"written", html(time_text())},
       {"facts", facts(history, number_in(toml, "steps"))},
       {"notes", notes(history, starts)},
       {"numbers", numbers(history)},
       {"samples", samples(history.samples())},
       {"about", about(starts)},
       {"settings", settings(toml)},
       {"data", json_in_script(report_data(history, number_in(toml, "clip"))
                                   .dump(-1, ' ', false, OrderedJson::error_handler_t::replace))}});
}

void write_report(const fs::path& run, const History& history, const fs::path& out) {
  io::write_whole(out, report_page(run, history));
}

}  // namespace moe::train
