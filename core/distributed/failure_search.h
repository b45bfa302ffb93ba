#pragma once
// Why an operation of this rank with others does not end, in one sentence. Included by sources that
// use c10d.

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/distributed/process_group.h"

namespace moe::distributed {

// An operation under way, as the heartbeat and the sentence of a failure name it.
struct Operation {
  const char* name;
  Position position;
  int64_t number;  // of its communicator's operations
  c10::intrusive_ptr<c10d::Work> work;
};

// Of operations among `ranks`, numbers of the run. `membership` outlives it.
class FailureSearch {
 public:
  FailureSearch(Membership& membership, std::vector<int64_t> ranks, bool on_gpu)
      : membership_(membership), ranks_(std::move(ranks)), on_gpu_(on_gpu) {}

  // Of one that has been waited for so long; nothing while there is hope.
  std::optional<RankFailed> find(const Operation& operation, Seconds waited) const;
  // A connection broke, or on GPUs anything did, of which `words` are all that is known: finds out
  // with which rank, in a few intervals of heartbeats.
  RankFailed find_broken(const Operation& operation, const std::string& words) const;

 private:
  Membership& membership_;
  std::vector<int64_t> ranks_;
  bool on_gpu_;
};

}  // namespace moe::distributed
