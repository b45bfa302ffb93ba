#include "core/io/copy_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/io/mapped_file.h"

namespace moe::io {

namespace fs = std::filesystem;

void copy_with_mode(const fs::path& from, const fs::path& to) {
  Descriptor source = open_to_read(from);
  struct stat status {};
  if (::fstat(source.get(), &status) != 0) {
    throw UserError("{}: cannot be read: {}", from.string(), std::strerror(errno));
  }
  const Descriptor copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                               status.st_mode & 0777));
  if (!copy.is_open()) {
    throw_write_error(errno, to);
  }
  write_all(copy, MappedFile(std::move(source), from).bytes(), to);
  sync(copy, to);
}

}  // namespace moe::io
