#pragma once
// A process that runs this command line as one rank. It dies with its parent, however that dies.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "core/distributed/environment.h"

namespace moe::distributed {

class Child {
 public:
  // `group`: the process group that it joins, 0 = one of its own. Standard error of a rank that
  // does not speak comes here, its input is empty, and what it prints is dropped. Of the
  // descriptors of this process it has the standard streams and those in `inherited`.
  Child(int64_t rank, const Variables& variables, pid_t group, bool speaks,
        const std::vector<int>& inherited);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  int64_t rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool has_ended() const { return status_.has_value(); }
  int exit_code() const;             // 128 + the signal that ended it; of one that has ended
  std::string describe_end() const;  // "signal 9, Killed", "exit code 3"

  void reap();    // does not wait
  void listen();  // takes what it has said on standard error

  // Its last words.
  const std::string& said() const { return said_; }

 private:
  int64_t rank_;
  pid_t pid_ = -1;
  int standard_error_ = -1;
  std::optional<int> status_;
  std::string said_;
};

}  // namespace moe::distributed
