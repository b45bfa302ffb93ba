#pragma once
// An output folder that all ranks of a run write into, and that exists whole or not at all: rank 0
// stages and commits it (core/io/staged_folder.h), the others write into what it made. Whatever
// fails on one rank fails on all, and then nothing appears.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "core/distributed/comm.h"
#include "core/io/staged_folder.h"

namespace moe::model {

// Everything but path() and ranks() is a collective of the ranks.
class SharedFolder {
 public:
  // UserError on all ranks: what StagedFolder refuses, or a rank that does not see the folder.
  SharedFolder(const std::filesystem::path& out, bool force, distributed::Comm& ranks);

  const std::filesystem::path& path() const { return path_; }  // write here
  distributed::Comm& ranks() const { return ranks_; }
  // Runs `body` on rank 0 alone, for what one can do; or on every rank. It talks to nobody.
  void by_first(const std::function<void()>& body) const;
  void by_all(const std::function<void()>& body) const;
  void commit();  // all have written

 private:
  distributed::Comm& ranks_;
  std::unique_ptr<io::StagedFolder> staged_;  // of rank 0
  std::filesystem::path path_;
};

// UserError when `mark`, a file that rank 0 made in `folder`, does not show within `seconds`: other
// machines may learn of it late.
void await_mark(const std::filesystem::path& folder, const std::string& mark, int64_t rank,
                double seconds);

}  // namespace moe::model
