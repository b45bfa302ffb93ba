#pragma once
// Two measurements of one kind beside each other. Needs no LibTorch.

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::bench {

struct Change {
  std::string name;  // path of the number, parts.attention_ms
  double before, after;
};

// The numbers that both have under the same name and that measure something: medians, rates,
// shares, bytes, faults.
std::vector<Change> changes(const Json& before, const Json& after);

// The JSON of an earlier run of `what`. UserError: no JSON, or of another kind of measurement.
Json read_earlier(const std::filesystem::path& file, const std::string& what);

// "settings differ: ..." where they do, else empty.
std::string settings_note(const Json& before, const Json& after);

}  // namespace moe::bench
