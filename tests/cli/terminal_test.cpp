// Output of moe train, eval and generate on a pseudo-terminal of 72 columns.

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cli/commands.h"

using namespace moe::test;

namespace {

constexpr unsigned short kColumns = 72;

// Returns everything that the binary writes to its terminal.
std::string run_on_terminal(Words words) {
  words.insert(words.begin(), moe_binary());
  std::vector<char*> arguments;
  for (auto& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  winsize size{24, kColumns, 0, 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  std::string text;
  std::vector<char> part(4096);
  for (ssize_t got = 0; (got = ::read(terminal, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  CHECK(WEXITSTATUS(status) == 0);
  return text;
}

// Splits at newlines and at carriage returns, after which a step line is overwritten.
std::vector<std::string> lines_of(std::string text) {
  std::vector<std::string> lines;
  for (size_t at = text.find_first_of("\r\n"); !text.empty(); at = text.find_first_of("\r\n")) {
    lines.push_back(text.substr(0, at));
    text.erase(0, at == std::string::npos ? at : at + 1);
  }
  return lines;
}

}  // namespace

TEST_CASE("a step line fits the terminal, and lines of evaluations are kept", "[cli]") {
  const TempDir dir;
  const std::string data = tiny("instruct.jsonl");
  const Words train = {"train",  tiny("model"), "-o",          (dir / "run").string(),
                       "--data", data,          "--eval-data", data};
  const std::string text =
      run_on_terminal(joined(train, {"--steps", "4", "--seq-len", "64", "--micro-batch", "1",
                                     "--threads", "1", "--eval-rows", "2", "--eval-every", "2"}));
  INFO(text);
  const std::string erase = "\x1b[K";
  int steps = 0;
  for (const std::string& line : lines_of(text)) {
    if (line.find("] ") != std::string::npos && line.find(" left  step ") != std::string::npos) {
      ++steps;
      CHECK(line.size() - (line.rfind(erase, 0) == 0 ? erase.size() : 0) < kColumns);
    }
  }
  CHECK(steps >= 2);
  CHECK(text.find("[========================] 0.0 s left  step 4/4  loss ") != std::string::npos);
  CHECK(text.find("\r\x1b[Kstep 2  held-out loss ") !=
        std::string::npos);                                             // the step line is erased
  CHECK(text.find("\r\nstep 4  held-out loss ") != std::string::npos);  // the last one is kept
  CHECK(text.find("\r\nstep 0  held-out loss ") != std::string::npos);
}

TEST_CASE("the progress of an evaluation shows rate, remaining time and accuracy", "[cli]") {
  const std::string text =
      run_on_terminal({"eval", tiny("model"), "--tasks", tiny("quiz.jsonl"), "--batch-tokens", "1",
                       "--threads", "1", "--running-accuracy"});
  INFO(text);
  int lines = 0;
  for (const std::string& line : lines_of(text)) {
    if (line.find(" requests/s, left ") != std::string::npos) {
      ++lines;
      CHECK(line.find(", acc 0.") != std::string::npos);
      CHECK(line.size() - (line.starts_with("\x1b[K") ? 3 : 0) < kColumns);
    }
  }
  CHECK(lines >= 1);
  CHECK(text.find("quiz  100 %, ") != std::string::npos);  // too narrow for the bar
  CHECK(text.find(" of 360\r\n") != std::string::npos);    // the last one is kept
}

TEST_CASE("control characters of a generated text are escaped only on a terminal", "[cli]") {
  const std::string model = (source_folder() / "recipes/tiny/model").string();
  const Words words = {"generate", model, "--prompt", "\x1b[31mred\u009b", "--max-tokens", "2"};
  const std::string shown = run_on_terminal(words);
  INFO(shown);
  CHECK(shown.find('\x1b') == std::string::npos);
  CHECK(shown.find("\\x1b[31mred\\x9b") != std::string::npos);
  CHECK(run_moe(words).out.find("\x1b[31mred\u009b") != std::string::npos);
}
