#pragma once
// Table of the options of a training run. Flags, recipe keys, settings.toml, ranges, and the
// settings that may change when a run is resumed all follow from it.

#include <map>
#include <string>

#include "core/base/option.h"
#include "core/train/config/settings.h"

namespace moe::train {

// Returns all options of a run, in the order of settings.toml. `settings` must outlive them.
Options train_options(TrainSettings& settings);

// Returns the [train] table of a settings.toml as keys and TOML values, normalized so that equal
// values have equal texts. Throws UserError, prefixed with `where`, if `toml` is not TOML or has no
// such table.
std::map<std::string, std::string> read_settings(const std::string& toml, const std::string& where);

}  // namespace moe::train
