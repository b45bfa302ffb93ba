// Bounds the spinning of OpenMP threads: by default libgomp's threads poll a barrier 300,000 times
// before they sleep, which makes a training step several times slower when other processes use the
// cores. libgomp reads GOMP_SPINCOUNT in its constructor. Therefore this file sets the variable,
// unless the user has, and executes the program again before any constructor runs. Must be linked
// as an object file, because no other file refers to it.

#include <alloca.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <climits>
#include <cstring>

namespace {

// Best value in tests/bench/all.py --rows spin.
char kSetting[] = "GOMP_SPINCOUNT=2000";

bool sets(const char* entry, const char* variable) {
  const size_t length = std::strlen(variable);
  return std::strncmp(entry, variable, length) == 0 && entry[length] == '=';
}

// Runs before the sanitizers are initialised, so it must not be instrumented.
__attribute__((no_sanitize_address, no_sanitize_undefined, no_sanitize_thread)) void
execute_with_spin_count(int /*argc*/, char** argv, char** environment) {
  if (getauxval(AT_BASE) == 0) {  // started by an explicit call of the dynamic loader
    return;
  }
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (sets(environment[count], "OMP_WAIT_POLICY") || sets(environment[count], "GOMP_SPINCOUNT")) {
      return;
    }
  }
  auto** const extended = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (size_t index = 0; index < count; ++index) {
    extended[index] = environment[index];
  }
  extended[count] = kSetting;
  extended[count + 1] = nullptr;
  // Resolves the link, because ps and pgrep would show "exe" as the name of the process.
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length > 0) {
    path[length] = '\0';
    execve(path, argv, extended);
  }
  // Else, for example if the program was deleted, it continues with libgomp's default.
}

__attribute__((section(".preinit_array"),
               used)) void (*const kBeforeConstructors)(int, char**,
                                                        char**) = execute_with_spin_count;

}  // namespace
