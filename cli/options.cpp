#include "cli/options.h"

#include <CLI/CLI.hpp>

namespace moe::cli {

namespace {

class Adder {
 public:
  Adder(CLI::App& command, const Option& option)
      : command_(command),
        spelled_(option.spelled.empty() ? flag_of(option) : option.spelled),
        help_(describe(option)) {}

  CLI::Option* operator()(bool* member) const {
    return command_.add_flag(spelled_, *member, help_);
  }
  CLI::Option* operator()(const Choice& choice) const {
    return command_.add_option_function<std::string>(spelled_, choice.set, help_);
  }
  template <typename Value>
  CLI::Option* operator()(Value* member) const {
    return command_.add_option(spelled_, *member, help_);
  }

 private:
  CLI::App& command_;
  std::string spelled_, help_;
};

}  // namespace

void add_options(CLI::App& command, const Options& options) {
  for (const auto& option : options) {
    CLI::Option* added = std::visit(Adder(command, option), option.member);
    added->group(option.group)->required(option.is_required);
    if (option.takes_commas) {
      added->delimiter(',');
    }
    if (option.range.is_checked) {
      added->check([name = flag_of(option), range = option.range](const std::string& text) {
        check_range(name, text, range);
        return std::string();
      });
    }
  }
}

}  // namespace moe::cli
