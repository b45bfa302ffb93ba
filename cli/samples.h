#pragma once
// moe train --show-samples: what the model will see, on standard output, and nothing else.

#include <cstdint>

#include "core/train/run/settings.h"

namespace moe::cli {

// Colour on a terminal (unless NO_COLOR is set), brackets in a pipe.
void print_samples(const train::TrainSettings& settings, int64_t count);

}  // namespace moe::cli
