#include "core/bench/changes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace moe::bench {

namespace {

bool is_measured(const std::string& name) {
  constexpr std::array kEndings = {"median_ms", "per_second", "gflops", "share",
                                   "_bytes",    "faults",     "parts"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](const std::string& ending) {
    return name.size() >= ending.size() &&
           name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
  });
}

// What an element of an array is called: by its own name, else by its place.
std::string name_in_array(const Json& element, size_t index) {
  for (const char* key : {"name", "router"}) {
    if (element.is_object() && element.contains(key) && element.at(key).is_string()) {
      return element.at(key).get<std::string>();
    }
  }
  return std::to_string(index);
}

// `in_parts`: everything below is measured.
void collect(const Json& before, const Json& after, const std::string& name, bool in_parts,
             std::vector<Change>& found) {
  if (before.is_number() && after.is_number()) {
    if (in_parts || is_measured(name)) {
      found.push_back({name, before.get<double>(), after.get<double>()});
    }
    return;
  }
  const bool both_objects = before.is_object() && after.is_object();
  const bool both_arrays = before.is_array() && after.is_array();
  if (both_objects) {
    for (const auto& [key, value] : after.items()) {
      if (before.contains(key) && key != "settings") {
        collect(before.at(key), value, name.empty() ? key : name + "." + key,
                in_parts || key == "parts_ms", found);
      }
    }
  } else if (both_arrays) {
    std::map<std::string, const Json*> known;
    for (size_t i = 0; i < before.size(); ++i) {
      known[name_in_array(before[i], i)] = &before[i];
    }
    for (size_t i = 0; i < after.size(); ++i) {
      const std::string element = name_in_array(after[i], i);
      if (const auto found_before = known.find(element); found_before != known.end()) {
        collect(*found_before->second, after[i], name + "." + element, in_parts, found);
      }
    }
  }
}

}  // namespace

std::vector<Change> changes(const Json& before, const Json& after) {
  std::vector<Change> found;
  collect(before, after, "", false, found);
  return found;
}

Json read_earlier(const std::filesystem::path& file, const std::string& what) {
  Json json;
  try {
    json = parse_json(read_small_file(file, kMaxSmallFileBytes, Pipes::kAllowed), file.string());
  } catch (const UserError& error) {
    throw UserError("--against {}; give what moe bench --json printed", error.what());
  }
  const bool is_bench = json.is_object() && json.contains("bench") && json["bench"].is_string();
  if (!is_bench || json["bench"].get<std::string>() != what) {
    throw UserError(
        "--against {}: {}, not of moe bench {}", file.string(),
        is_bench ? "is of moe bench " + json["bench"].get<std::string>() : "is no measurement",
        what);
  }
  return json;
}

std::string settings_note(const Json& before, const Json& after) {
  std::string note;
  for (const char* key : {"settings", "threads", "instruction_set", "processor"}) {
    const Json old = before.value(key, Json()), now = after.value(key, Json());
    if (old != now) {
      note +=
          (note.empty() ? "" : "; ") + std::string(key) + " " + old.dump() + " -> " + now.dump();
    }
  }
  return note.empty() ? note : "differs: " + note;
}

}  // namespace moe::bench
