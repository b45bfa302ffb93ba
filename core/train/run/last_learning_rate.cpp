#include "core/train/run/last_learning_rate.h"

#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/train/observe/metrics_log.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kTail = uint64_t{4} << 20;  // a line of thousands of experts fits

// The value of `key` where `json` is an object that has it, else null.
Json value_of(const Json& json, const char* key) {
  return json.is_object() ? json.value(key, Json()) : Json();
}

std::optional<double> number_of(const Json& json, const char* key) {
  const Json value = value_of(json, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::optional<double> of_checkpoint(const fs::path& model) {
  const auto state = read_log_state(model);
  if (!state) {
    return std::nullopt;
  }
  const auto curve = state->history.curves().find("lr");
  return curve == state->history.curves().end() ? std::nullopt
                                                : std::optional(curve->second.last.value);
}

std::optional<double> of_mixture(const fs::path& model) {
  const fs::path file = model / "upcycle.json";
  if (!fs::exists(file)) {
    return std::nullopt;
  }
  const Json report = read_json(file, uint64_t{1} << 24);
  return number_of(value_of(report, "source"), "last_learning_rate");
}

// Of the last whole line of RUN/metrics.jsonl that has one; runs may have millions of lines.
std::optional<double> of_final(const fs::path& model) {
  const fs::path folder = fs::weakly_canonical(model);
  const fs::path file = folder.parent_path() / "metrics.jsonl";
  if (folder.filename() != "final" || !fs::exists(file)) {
    return std::nullopt;
  }
  FileReader in(file);
  const uint64_t size = fs::file_size(file);
  const bool is_cut = size > kTail;
  in.seek(is_cut ? size - kTail : 0);
  std::optional<double> last;
  std::string line;
  for (bool is_first = true; in.read_whole_line(line); is_first = false) {
    if (is_first && is_cut) {
      continue;  // its beginning is missing
    }
    if (const auto rate = number_of(parse_json(line, file.string()), "lr")) {
      last = rate;
    }
  }
  return last;
}

}  // namespace

std::optional<double> last_learning_rate(const fs::path& model) {
  for (const auto& source : {of_checkpoint, of_mixture, of_final}) {
    try {
      if (const auto rate = source(model)) {
        return rate;
      }
    } catch (const UserError&) {  // a damaged file says nothing
    } catch (const fs::filesystem_error&) {
    }
  }
  return std::nullopt;
}

}  // namespace moe::train
