#pragma once
// How work would run where every thread has a core, counted on a machine that has fewer: by the
// processor time of each thread, which no other thread stretches. A thread that waits sleeps
// meanwhile, so that what is counted is work.
//
// Every loop gives the thread that calls it the first share, and none is longer
// (at::parallel_for). So the caller's processor time is how long the work takes on as many cores,
// where memory is fast enough and waking a thread takes nothing, neither of which is counted here.

#include <functional>
#include <map>
#include <string>

#include "core/base/json.h"

namespace moe::bench {

struct ThreadTime {
  double caller_s = 0;  // of the thread that calls
  double others_s = 0;  // of all others together

  double work_s() const { return caller_s + others_s; }
};

// What one thread computes alone as a share of all work. With serial work S and work P that is
// shared, the caller takes S + P / n and each other thread P / n: S = caller - others / (n - 1).
// Where shares differ, what the caller computes beyond the mean of the others counts too: they
// wait for it.
double serial_share(const ThreadTime& time, int threads);

// Work as some threads share it.
struct CountedWork {
  int threads = 1;
  ThreadTime all;
  std::map<std::string, ThreadTime> parts;  // of model::part_seconds()
};

// The least of `repeats` calls of `work`, after one to warm up, and of as many for its parts.
// Leaves the number of threads as it was.
CountedWork count_work(int threads, int repeats, const std::function<void()>& work);

// `alone` is the same work by one thread.
OrderedJson to_json(const CountedWork& counted, const CountedWork& alone);

}  // namespace moe::bench
