// Entry point: parses the command line, runs the command, and maps errors to exit codes: 0 success,
// 1 failure of the run, 2 error that the user can fix, 130 interrupted after saving.

#include <fmt/ranges.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <system_error>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "kernels/cpu/caching_allocator.h"

namespace {

using moe::kFailed, moe::kInterrupted, moe::kUserError;

// Returns the message of CLI11, or for an unknown command or flag one with the nearest known name.
std::string describe_parse_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                 char** argv) {
  const CLI::App* scope = &app;  // the innermost command
  std::string name = "moe";      // its full name, such as "moe bench comm"
  int depth = 0;
  for (; !scope->get_subcommands().empty(); ++depth) {
    scope = scope->get_subcommands().front();
    name += " " + scope->get_name();
  }
  const std::vector<std::string> commands = moe::cli::subcommand_names(*scope);
  if (!commands.empty() && argc > depth + 1 && argv[depth + 1][0] != '-') {
    const std::string word = argv[depth + 1];
    const std::string full_name = (name + " " + word).substr(4);  // without "moe "
    return fmt::format("unknown command '{}'{}; known: {}", full_name,
                       moe::did_you_mean(word, commands), fmt::join(commands, ", "));
  }
  auto known_flags = moe::cli::long_flags(*scope);
  known_flags.push_back("--config");
  for (int index = 1; index < argc; ++index) {
    std::string word = argv[index];
    word = word.substr(0, word.find('='));
    if (word.rfind("--", 0) == 0 && std::ranges::find(known_flags, word) == known_flags.end()) {
      return fmt::format("unknown flag '{}'{}; see {} --help", word,
                         moe::did_you_mean(word, known_flags), name);
    }
  }
  return fmt::format("{}; see {} --help", error.what(), name);
}

// Rejects empty values of flags that do not take text: usually an unset variable of a script.
void reject_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() > 0 && !option->check_name("--prompt") &&
        !option->check_name("TEXT")) {
      option->check([](const std::string& value) {
        return value.empty() ? "the value is empty; give a value or remove the flag" : "";
      });
    }
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    reject_empty_values(*command);
  }
}

// Prints "moe: MESSAGE" to standard error. Returns `exit_code`.
int fail(int exit_code, const std::string& message) {
  moe::print_text(stderr, "moe: {}\n", message);
  return exit_code;
}

// Prints a file system error. Returns kUserError if another file name can fix it, else kFailed.
int print_filesystem_error(const std::filesystem::filesystem_error& error) {
  const std::errc code = static_cast<std::errc>(error.code().value());
  const bool is_user_error =
      code == std::errc::filename_too_long || code == std::errc::not_a_directory ||
      code == std::errc::permission_denied || code == std::errc::too_many_symbolic_link_levels ||
      code == std::errc::read_only_file_system;
  return fail(is_user_error ? kUserError : kFailed,
              fmt::format("{}: {}{}", moe::message_text(error.path1().string()),
                          error.code().message(), is_user_error ? "; use another path" : ""));
}

// Prints a failure of the machine or of moe itself, without the stack trace that LibTorch appends.
int print_failure(const std::exception& error) {
  const std::string what = error.what();
  const std::string message = what.substr(0, what.find("\nException raised from "));
  if (message.ends_with(std::strerror(EMFILE))) {  // from LibTorch's file store
    return fail(kFailed, "too many open files; raise the limit (ulimit -n)");
  }
  const bool is_internal = dynamic_cast<const std::logic_error*>(&error) != nullptr ||
                           dynamic_cast<const moe::Json::exception*>(&error) != nullptr;
  return fail(kFailed, fmt::format("{}{}{}", is_internal ? "internal error: " : "", message,
                                   is_internal ? "; please report it with the command line" : ""));
}

int run(int argc, char** argv) {
  CLI::App app{
      "moe: upcycle a dense LLaMA checkpoint to a mixture of experts, train and evaluate it",
      "moe"};
  app.set_version_flag("--version", std::string("moe ") + moe::kVersion);
  app.require_subcommand(1);
  namespace cli = moe::cli;
  for (const auto add :
       {cli::add_upcycle, cli::add_init, cli::add_train, cli::add_report, cli::add_eval,
        cli::add_route, cli::add_bench, cli::add_inspect, cli::add_generate, cli::add_tokenize,
        cli::add_quickstart, cli::add_completion, cli::add_recipe_reader}) {
    add(app);
  }
  cli::add_examples(app,
                    "moe quickstart --short -o tried\n"
                    "moe upcycle my-llama -o my-moe --experts 8 --router top1+ir+fr\n"
                    "moe train my-moe -o run --data instructions.jsonl --steps 1000\n"
                    "moe eval run/final --tasks arc_easy,piqa --data benchmarks -o scores");
  reject_empty_values(app);
  const auto add_page = [&app](const char* flag, std::string (*page)(const CLI::App&),
                               const char* description) {
    app.add_flag_callback(
        flag,
        [&app, page] {
          moe::print_text("{}", page(app));
          throw CLI::Success();
        },
        description);
  };
  add_page("--reference", moe::cli::reference, "print every command and flag as Markdown");
  add_page("--manual", moe::cli::manual_page, "print the manual page: moe --manual | man -l -");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help and --version
    std::ostringstream text;               // print_text() reports a full disk
    const int code = app.exit(success, text, text);
    moe::print_text("{}", text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    throw moe::UserError("{}", describe_parse_error(app, error, argc, argv));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  moe::cli::prepare_process();
  moe::kernels::use_caching_allocator();
  // LibTorch's profiler prints warnings on machines without a GPU.
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  try {
    int code = 0, output_error = 0;
    try {
      code = run(argc, argv);
    } catch (const std::system_error& error) {  // from fmt, if writing standard output fails
      if (std::ferror(stdout) == 0) {
        throw;
      }
      output_error = error.code().value();
    }
    return moe::cli::finish_output(output_error) ? code : kFailed;
  } catch (const moe::UserError& error) {
    return fail(kUserError, moe::message_text(error.what()));
  } catch (const moe::Interrupted& stopped) {
    return fail(kInterrupted, moe::message_text(stopped.what()));
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return print_filesystem_error(error);
  } catch (const std::system_error& error) {
    return error.code() != std::errc::resource_unavailable_try_again
               ? print_failure(error)
               : fail(kFailed,
                      "cannot start more threads or processes; raise the limit (ulimit -u) or use "
                      "fewer threads (OMP_NUM_THREADS)");
  } catch (const std::exception& error) {
    return print_failure(error);
  }
}
