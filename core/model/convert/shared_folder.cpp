#include "core/model/convert/shared_folder.h"

#include <chrono>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/io/file.h"

namespace moe::model {

namespace fs = std::filesystem;

namespace {

constexpr double kAwaitSeconds = 10;  // network file systems keep names for some seconds

// A name that nothing left by another run, or lying on another machine, can have.
std::string unique_mark() {
  std::random_device random;
  return fmt::format(".seen-by-all-{:08x}{:08x}", random(), random());
}

}  // namespace

void await_mark(const fs::path& folder, const std::string& mark, int64_t rank, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  std::error_code error;
  while (!fs::exists(folder / mark, error)) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) {
      throw UserError(
          "rank {} does not see {}, which rank 0 makes: all ranks write one folder; give an output "
          "on a file system that they share",
          rank, folder.string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

SharedFolder::SharedFolder(const fs::path& out, bool force, distributed::Comm& ranks)
    : ranks_(ranks) {
  std::string mark;
  by_first([&] {
    staged_ = std::make_unique<io::StagedFolder>(out, force);
    path_ = fs::absolute(staged_->path());
    mark = unique_mark();
    io::write_file(path_ / mark, std::string());
  });
  path_ = distributed::gather_texts(ranks_, path_.string()).front();
  mark = distributed::gather_texts(ranks_, mark).front();
  by_all([&] { await_mark(path_, mark, ranks_.rank(), kAwaitSeconds); });
  by_first([&] { fs::remove(path_ / mark); });
}

void SharedFolder::by_first(const std::function<void()>& body) const {
  distributed::on_all_ranks(&ranks_, [&] {
    if (ranks_.rank() == 0) {
      body();
    }
  });
}

void SharedFolder::by_all(const std::function<void()>& body) const {
  distributed::on_all_ranks(&ranks_, body);
}

void SharedFolder::commit() {
  ranks_.barrier();
  by_first([&] { staged_->commit(); });
}

}  // namespace moe::model
