#pragma once
// RUN/starts.jsonl: one object each time a run began or went on, with what it ran on. So the report
// knows it long after, and on another machine.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::train {

// {"step", "time", "moe", "libtorch", "machine", "threads", "parameters", "router", "loss", "data",
// "notes"}; the caller knows the step and all from parameters on, the rest is found here.
OrderedJson describe_start(int64_t step);

// Adds a line; one that a killed run left unfinished goes. UserError: what open_lines() says, a
// full disk.
void append_start(const std::filesystem::path& file, const OrderedJson& start);

// The objects of a file, up to one that is broken; none where there is no file.
std::vector<Json> read_starts(const std::filesystem::path& file);

// "2026-01-31 12:05 UTC".
std::string time_text();

}  // namespace moe::train
