#include "core/base/descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

namespace moe {

Descriptor make_memory_file() {
  constexpr int kFirstNumber = STDERR_FILENO + 1;
  Descriptor file(memfd_create("moe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.is_open() && file.get() < kFirstNumber) {  // a standard stream was closed at the start
    file = Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, kFirstNumber));
  }
  if (!file.is_open() || fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) {
    throw std::system_error(errno, std::generic_category(), "a file in memory");
  }
  return file;
}

}  // namespace moe
