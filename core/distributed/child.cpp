#include "core/distributed/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "core/base/error.h"

namespace moe::distributed {
namespace {

constexpr size_t kMostKept = 16 << 10;  // bytes of last words

// This process's command line.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) {
    arguments.push_back(word);
  }
  return arguments;
}

// Texts as exec takes them; `texts` outlives it.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const Variables& added) {
  Variables all = process_variables();
  for (const auto& [name, value] : added) {
    all[name] = value;
  }
  std::vector<std::string> texts;
  for (const auto& [name, value] : all) {
    texts.push_back(name + "=" + value);
  }
  return texts;
}

// The way from fork to exec: nothing here allocates, for other threads held locks when we forked.
[[noreturn]] void become_rank(char** arguments, char** environment, pid_t parent, pid_t group,
                              int standard_error, const std::vector<int>& inherited) {
  setpgid(0, group);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {  // it died before we asked to be told
    _exit(1);
  }
  if (standard_error >= 0) {
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    dup2(standard_error, STDERR_FILENO);
  }
  for (const int descriptor : inherited) {
    fcntl(descriptor, F_SETFD, 0);  // not closed on exec
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve("/proc/self/exe", arguments, environment);
  _exit(127);
}

}  // namespace

Child::Child(int64_t rank, const Variables& variables, pid_t group, bool speaks,
             const std::vector<int>& inherited)
    : rank_(rank) {
  std::vector<std::string> arguments = own_arguments();
  std::vector<std::string> environment = environment_with(variables);
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  std::array<int, 2> ends = {-1, -1};
  if (!speaks && pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::runtime_error(fmt::format("no pipe for rank {}: {}", rank, std::strerror(errno)));
  }
  if (!speaks) {  // it may write without looking
    fcntl(ends[1], F_SETFL, 0);
  }
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    become_rank(const_cast<char**>(argument_pointers.data()),
                const_cast<char**>(environment_pointers.data()), parent, group, ends[1], inherited);
  }
  const int error = errno;
  if (!speaks) {
    close(ends[1]);
    standard_error_ = ends[0];
  }
  if (pid_ < 0) {
    throw std::runtime_error(
        fmt::format("rank {} cannot be started: {}", rank, std::strerror(error)));
  }
  setpgid(pid_, group == 0 ? pid_ : group);  // whoever of the two comes first
}

Child::Child(Child&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, -1)),
      standard_error_(std::exchange(other.standard_error_, -1)),
      status_(other.status_),
      said_(std::move(other.said_)) {}

Child::~Child() {
  if (pid_ > 0 && !has_ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (standard_error_ >= 0) {
    close(standard_error_);
  }
}

void Child::reap() {
  int status = 0;
  if (!has_ended() && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
  }
}

void Child::listen() {
  std::array<char, 4096> bytes;
  ssize_t count = 0;
  while (standard_error_ >= 0 && (count = read(standard_error_, bytes.data(), bytes.size())) > 0) {
    said_.append(bytes.data(), static_cast<size_t>(count));
  }
  if (said_.size() > kMostKept) {
    said_.erase(0, said_.size() - kMostKept);
  }
}

int Child::exit_code() const {
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

std::string Child::describe_end() const {
  return WIFEXITED(*status_)
             ? fmt::format("exit code {}", WEXITSTATUS(*status_))
             : fmt::format("signal {}, {}", WTERMSIG(*status_), strsignal(WTERMSIG(*status_)));
}

}  // namespace moe::distributed
