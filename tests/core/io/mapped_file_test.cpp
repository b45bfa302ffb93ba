// A file that is cut short while it is mapped ends the process with a sentence that names it, and a
// fault elsewhere goes where it went before. Each case faults in a child of its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moe::io {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBytes = size_t{3} << 16;  // of several pages, whatever a page is

struct Ending {
  int code = 0;  // exit code, or minus the signal
  std::string err;
};

Ending end_of(const std::function<void()>& work) {
  const test::TempDir folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    ::signal(SIGBUS, SIG_DFL);  // not the sanitizer's
    work();
    ::_exit(99);  // nothing happened
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status),
          test::read_file(folder / "err")};
}

void touch(const std::byte* place) {
  static_cast<void>(*const_cast<const volatile std::byte*>(place));
}

const std::byte* map_by_hand(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY);
  void* data = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, descriptor, 0);
  fs::resize_file(file, 0);
  return static_cast<const std::byte*>(data);
}

TEST_CASE("a file cut short while it is mapped is named, and the exit code is 1", "[io]") {
  const test::TempDir folder;
  const auto broken = folder / "broken\033.bin", whole = folder / "whole.bin";
  test::write_file(broken, std::string(kBytes, 'x'));
  test::write_file(whole, std::string(kBytes, 'y'));
  const auto read_broken = [&](bool moves) {
    MappedFile gone(whole);  // its entry is used again
    gone = MappedFile(broken);
    MappedFile other(whole);
    if (moves) {
      std::swap(gone, other);
    }
    fs::resize_file(broken, 1);
    touch((moves ? gone : other).bytes().data());
    touch((moves ? other : gone).bytes().data());  // its first page is still there
    touch(&(moves ? other : gone).bytes()[kBytes - 1]);
  };
  for (const bool moves : {false, true}) {
    const Ending ending = end_of([&] { read_broken(moves); });
    CHECK(ending.code == 1);
    CHECK(ending.err == "moe: " + (folder / "broken?.bin").string() +
                            ": was cut short while it was read, or its disk failed; put the whole "
                            "file there and start again\n");
    fs::resize_file(broken, kBytes);
  }
}

TEST_CASE("a fault elsewhere goes to the handler that was there before", "[io]") {
  const test::TempDir folder;
  const auto file = folder / "mapped.bin", other = folder / "other.bin";
  test::write_file(file, std::string(kBytes, 'x'));
  const auto fault_elsewhere = [&] {
    const MappedFile mapped(file);
    touch(map_by_hand(other));
  };
  for (const bool with_info : {false, true}) {
    test::write_file(other, std::string(kBytes, 'x'));
    const Ending ending = end_of([&] {
      struct sigaction before = {};
      if (with_info) {
        before.sa_flags = SA_SIGINFO;
        before.sa_sigaction = [](int, siginfo_t* info, void*) {
          ::_exit(info->si_addr != nullptr ? 7 : 8);
        };
      } else {
        before.sa_handler = [](int) { ::_exit(6); };
      }
      ::sigaction(SIGBUS, &before, nullptr);
      fault_elsewhere();
    });
    CHECK(ending.code == (with_info ? 7 : 6));
    CHECK(ending.err.empty());
  }
  test::write_file(other, std::string(kBytes, 'x'));
  CHECK(end_of(fault_elsewhere).code == -SIGBUS);  // by default
  CHECK(end_of([&] {
          const MappedFile mapped(file);
          ::raise(SIGBUS);
        }).code == -SIGBUS);
}

}  // namespace
}  // namespace moe::io
