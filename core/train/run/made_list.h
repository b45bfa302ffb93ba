#pragma once
// RUN/.moe-run: what a run has made in its folder, so that --force removes that and nothing else.
// The first line is `moe run 1`, every further line a name as below, relative to RUN. A name is
// on the disk before what it names is made.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace moe::train {

inline constexpr const char* kMadeList = ".moe-run";

// "step-N" as a number; none for other names.
std::optional<int64_t> step_of(std::string_view name);
std::string step_name(int64_t step);

// Names of files that a run has always, with "final", the folder of the end.
const std::set<std::string>& run_names();

// Returns true for the names of event files that moe makes:
// "events.out.tfevents.1763800000.4242.moe". Other programs' event files have other endings.
bool is_event_name(std::string_view name);

// The names in RUN's list; none without a list. Names that no run makes are left out, so that a
// list that others wrote removes nothing of theirs.
std::set<std::string> read_made(const std::filesystem::path& run);

// Puts a list with `names` in place of the one that is there.
void write_made(const std::filesystem::path& run, const std::set<std::string>& names);

}  // namespace moe::train
