#include "core/train/run/made_list.h"

#include <fmt/format.h>

#include <charconv>
#include <regex>
#include <sstream>

#include "core/base/read_file.h"
#include "core/io/file.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHead = "moe run 1";
constexpr std::string_view kCheckpoint = "checkpoints/", kStep = "step-";

bool is_run_name(std::string_view name) {
  return run_names().count(std::string(name)) > 0 || is_event_name(name) ||
         (name.starts_with(kCheckpoint) && step_of(name.substr(kCheckpoint.size())));
}

}  // namespace

std::optional<int64_t> step_of(std::string_view name) {
  int64_t step = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kStep)) {
    return std::nullopt;
  }
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  const bool is_step = error == std::errc() && stop == end && step >= 0 && step_name(step) == name;
  return is_step ? std::optional(step) : std::nullopt;
}

std::string step_name(int64_t step) { return fmt::format("{}{}", kStep, step); }

const std::set<std::string>& run_names() {
  static const std::set<std::string> names = {"settings.toml", "inputs.json",  "metrics.jsonl",
                                              "samples.jsonl", "starts.jsonl", "report.html",
                                              "trace.json",    "final"};
  return names;
}

bool is_event_name(std::string_view name) {
  static const std::regex ours(R"(events\.out\.tfevents\.[0-9]+\.[0-9]+\.moe)");
  return std::regex_match(name.begin(), name.end(), ours);
}

std::set<std::string> read_made(const fs::path& run) {
  std::set<std::string> names;
  if (!fs::exists(run / kMadeList)) {
    return names;
  }
  std::istringstream in(read_small_file(run / kMadeList));
  std::string line;
  if (!std::getline(in, line) || line != kHead) {
    return names;
  }
  while (std::getline(in, line)) {
    if (is_run_name(line)) {
      names.insert(line);
    }
  }
  return names;
}

void write_made(const fs::path& run, const std::set<std::string>& names) {
  std::string text = std::string(kHead) + "\n";
  for (const auto& name : names) {
    text += name + "\n";
  }
  io::write_whole(run / kMadeList, text);
}

}  // namespace moe::train
