// The app: commands, one catch for every error, exit codes (0 done, 1 the run failed, 2 the user
// can mend it, 130 interrupted after saving).

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <system_error>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/process_start.h"
#include "cli/reference.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "kernels/cpu/caching_allocator.h"

namespace {

constexpr int kFailed = 1, kUserError = 2, kInterrupted = 130;

// CLI11's sentence, with the nearest known flag or command where one was not understood.
std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const CLI::App* scope = &app;  // the command that was named last: flags are those of it
  std::string name = "moe";      // as the user wrote it: "moe bench comm"
  int depth = 0;
  for (; !scope->get_subcommands().empty(); ++depth) {
    scope = scope->get_subcommands().front();
    name += " " + scope->get_name();
  }
  const std::vector<std::string> commands = moe::cli::subcommand_names(*scope);
  if (!commands.empty() && argc > depth + 1 && argv[depth + 1][0] != '-') {
    const std::string word = argv[depth + 1], near = moe::nearest_name(word, commands);
    const std::string whole = (name + " " + word).substr(4);  // without "moe "
    return fmt::format("unknown command '{}'{}; known: {}", whole,
                       near.empty() ? "" : ", did you mean '" + near + "'?",
                       fmt::join(commands, ", "));
  }
  for (int index = 2; index < argc; ++index) {
    if (std::string(argv[index - 1]) == "--config" && !std::filesystem::exists(argv[index])) {
      const std::string instead = moe::cli::row_instead(argv[index]);
      if (!instead.empty()) {
        return instead;
      }
    }
  }
  auto known_flags = moe::cli::long_flags(*scope);
  known_flags.push_back("--config");
  for (int index = 1; index < argc; ++index) {
    std::string word = argv[index];
    word = word.substr(0, word.find('='));
    if (word.rfind("--", 0) == 0 &&
        std::find(known_flags.begin(), known_flags.end(), word) == known_flags.end()) {
      const std::string near = moe::nearest_name(word, known_flags);
      return fmt::format("unknown flag '{}'{}; see {} --help", word,
                         near.empty() ? "" : ", did you mean '" + near + "'?", name);
    }
  }
  return fmt::format("{}; see {} --help", error.what(), name);
}

// A value that is empty is a variable of a script that was not set. Two texts may be empty: that to
// go on from, and that to tokenise.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() > 0 && !option->check_name("--prompt") &&
        !option->check_name("TEXT")) {
      option->check([](const std::string& value) {
        return value.empty() ? "the value is empty; give one, or leave the flag out" : "";
      });
    }
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    refuse_empty_values(*command);
  }
}

// What the standard library says of a name that cannot be: the user can give another.
int print_filesystem_error(const std::filesystem::filesystem_error& error) {
  const std::errc code = static_cast<std::errc>(error.code().value());
  const bool is_of_name =
      code == std::errc::filename_too_long || code == std::errc::not_a_directory ||
      code == std::errc::permission_denied || code == std::errc::too_many_symbolic_link_levels ||
      code == std::errc::read_only_file_system;
  moe::print_text(stderr, "moe: {}: {}{}\n", moe::message_text(error.path1().string()),
                  error.code().message(), is_of_name ? "; give another name" : "");
  return is_of_name ? kUserError : kFailed;
}

// Prints a failure of the machine, or of moe itself, which the user can only report. The errors of
// LibTorch carry a stack trace after their message.
int print_failure(const std::exception& error) {
  const std::string what = error.what();
  const std::string words = what.substr(0, what.find("\nException raised from "));
  if (words.ends_with(std::strerror(EMFILE))) {  // LibTorch's file store says no more than that
    moe::print_text(stderr, "moe: too many open files; raise the limit (ulimit -n)\n");
    return kFailed;
  }
  const bool is_internal = dynamic_cast<const std::logic_error*>(&error) != nullptr ||
                           dynamic_cast<const moe::Json::exception*>(&error) != nullptr;
  moe::print_text(stderr, "moe: {}{}{}\n", is_internal ? "internal error: " : "",
                  moe::terminal_text(words),
                  is_internal ? "; please report it with the command that you ran" : "");
  return kFailed;
}

int run(int argc, char** argv) {
  CLI::App app{
      "moe: turn a dense LLaMA checkpoint into a mixture of experts, train it, evaluate it", "moe"};
  app.set_version_flag("--version", std::string("moe ") + moe::kVersion);
  app.require_subcommand(1);
  moe::cli::add_upcycle(app);
  moe::cli::add_init(app);
  moe::cli::add_train(app);
  moe::cli::add_report(app);
  moe::cli::add_eval(app);
  moe::cli::add_route(app);
  moe::cli::add_bench(app);
  moe::cli::add_inspect(app);
  moe::cli::add_generate(app);
  moe::cli::add_tokenize(app);
  moe::cli::add_quickstart(app);
  moe::cli::add_completion(app);
  moe::cli::read_recipes(app);
  refuse_empty_values(app);
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
  add_page("--manual", moe::cli::manual_page,
           "print them as a manual page: moe --manual | man -l -");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help and --version
    std::ostringstream text;               // printed by us, so that a full disk is reported
    const int code = app.exit(success, text, text);
    moe::print_text("{}", text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    throw moe::UserError("{}", explain(app, error, argc, argv));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  moe::cli::prepare_process();
  moe::kernels::use_caching_allocator();
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // LibTorch's profiler, on the lack of a GPU
  try {
    int code = 0, output_error = 0;
    try {
      code = run(argc, argv);
    } catch (const std::system_error& error) {  // fmt, if standard output cannot be written
      if (std::ferror(stdout) == 0) {
        throw;
      }
      output_error = error.code().value();
    }
    return moe::cli::finish_output(output_error) ? code : kFailed;
  } catch (const moe::UserError& error) {
    moe::print_text(stderr, "moe: {}\n", moe::message_text(error.what()));
    return kUserError;
  } catch (const moe::Interrupted& stopped) {
    moe::print_text(stderr, "moe: {}\n", moe::message_text(stopped.what()));
    return kInterrupted;
  } catch (const std::bad_alloc&) {
    moe::print_text(stderr, "moe: out of memory\n");
    return kFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    return print_filesystem_error(error);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return print_failure(error);
    }
    moe::print_text(
        stderr,
        "moe: the system starts no more threads or processes (see ulimit -u); end other "
        "programs or use fewer threads (OMP_NUM_THREADS)\n");
    return kFailed;
  } catch (const std::exception& error) {
    return print_failure(error);
  }
}
