#include "cli/process_start.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "core/base/error.h"

namespace moe::cli {
namespace {

// Opens /dev/null as the lowest free descriptor, for each of 0, 1 and 2 that is closed. Standard
// output is opened for reading, so that writes to it fail.
void reserve_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

ssize_t write_or_drop(void* /*cookie*/, const char* bytes, size_t size) {
  for (size_t written = 0; written < size;) {
    const ssize_t count = write(STDERR_FILENO, bytes + written, size - written);
    if (count > 0) {
      written += static_cast<size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  return static_cast<ssize_t>(size);
}

}  // namespace

void prepare_process() {
  reserve_standard_descriptors();
  if (FILE* const stream = fopencookie(nullptr, "w", {nullptr, write_or_drop, nullptr, nullptr})) {
    std::setvbuf(stream, nullptr, _IONBF, 0);
    stderr = stream;
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

bool finish_output(int error) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    return true;
  }
  error = errno != 0 ? errno : error;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0) {
    return false;
  }
  throw UserError("standard output cannot be written{}; free some space or write elsewhere",
                  error == 0 ? "" : fmt::format(" ({})", std::strerror(error)));
}

}  // namespace moe::cli
