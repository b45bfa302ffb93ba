#pragma once
// The table of what a run of training can be told: flags, recipe keys, settings.toml, ranges and
// what may change on resume all come from it.

#include <map>
#include <string>

#include "core/base/option.h"
#include "core/train/config/settings.h"

namespace moe::train {

// Every setting of a run, in the order in which settings.toml has them. `settings` must outlive
// them.
Options options_of(TrainSettings& settings);

// The flag of the option that reads into `member`, which must be there. Of TrainSettings and of its
// EvaluationSettings: flag_of(&TrainSettings::lb_coef) is "--lb-coef".
std::string flag_of_member(const Options& options, const void* member);
template <typename T>
std::string flag_of(T TrainSettings::*member) {
  TrainSettings settings;
  return flag_of_member(options_of(settings), &(settings.*member));
}
template <typename T>
std::string flag_of(T EvaluationSettings::*member) {
  TrainSettings settings;
  return flag_of_member(options_of(settings), &(settings.evaluation.*member));
}

// The [train] table of a settings.toml: keys and their values as TOML writes them, so that equal
// values have equal texts. UserError, opened by `where`, for what is no TOML or has no such table.
std::map<std::string, std::string> read_settings(const std::string& toml, const std::string& where);

}  // namespace moe::train
