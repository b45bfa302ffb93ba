#pragma once
// Declared options (core/base/option.h) as flags of a command.

#include "core/base/option.h"

namespace CLI {
class App;
}

namespace moe::cli {

// Flags that read into the members of `options`, each checked against its range. What the options
// were made for must outlive `command`.
void add_options(CLI::App& command, const Options& options);

// UserError where `cuda` is wanted and this binary or machine has none.
void check_device(bool cuda);

}  // namespace moe::cli
