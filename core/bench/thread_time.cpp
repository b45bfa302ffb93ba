#include "core/bench/thread_time.h"

#include <ATen/Parallel.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/bench/timing.h"
#include "core/model/llama/timeline.h"

namespace moe::bench {

namespace {

// More threads of OpenMP than there are processors, which do nothing. libgomp's threads look at
// memory 300,000 times before they sleep, but only 100 times where there are so many of them: while
// this lives none counts its waiting as work.
class IdleTeam {
 public:
  IdleTeam() : thread_([this] { run(); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_there_; });
  }
  ~IdleTeam() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  IdleTeam(const IdleTeam&) = delete;
  IdleTeam& operator=(const IdleTeam&) = delete;

 private:
  void run() {
    const int processors = static_cast<int>(std::thread::hardware_concurrency());
    int threads = 0;
#pragma omp parallel num_threads(processors + 1) reduction(+ : threads)
    threads += 1;
    std::unique_lock lock(mutex_);
    is_there_ = threads > 0;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stops_; });
  }

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool is_there_ = false, stops_ = false;
  std::thread thread_;  // last: it uses all of the above
};

// While it lives, loops are shared by so many threads.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~WithThreads() { at::set_num_threads(before_); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  int before_;
};

// Processor time of this thread and of the whole process.
model::Clocks read_thread_clocks() {
  return {read_clock_s(CLOCK_THREAD_CPUTIME_ID), read_clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

ThreadTime time_between(const model::Clocks& before, const model::Clocks& after) {
  const double caller_s = after[0] - before[0];
  return {caller_s, after[1] - before[1] - caller_s};
}

// What a neighbour on the machine adds is in the repeats that took more.
void keep_least(const ThreadTime& found, ThreadTime& least) {
  if (least.work_s() == 0 || found.work_s() < least.work_s()) {
    least = found;
  }
}

}  // namespace

double serial_share(const ThreadTime& time, int threads) {
  return threads == 1
             ? 1
             : (time.caller_s - time.others_s / static_cast<double>(threads - 1)) / time.work_s();
}

CountedWork count_work(int threads, int repeats, const std::function<void()>& work) {
  const IdleTeam idle;
  const WithThreads shared(threads);
  CountedWork counted{threads, {}, {}};
  work();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const model::Clocks before = read_thread_clocks();
    work();
    keep_least(time_between(before, read_thread_clocks()), counted.all);
    for (const auto& [name, passed] : model::part_clocks(work, read_thread_clocks)) {
      keep_least(time_between({}, passed), counted.parts[name]);
    }
  }
  return counted;
}

OrderedJson to_json(const CountedWork& counted, const CountedWork& alone) {
  const int threads = counted.threads;
  const auto numbers = [&](const ThreadTime& time, const ThreadTime& by_one) {
    OrderedJson json = {{"caller_ms", 1e3 * time.caller_s}, {"others_ms", 1e3 * time.others_s}};
    if (threads > 1) {
      json["serial_share"] = serial_share(time, threads);
      json["speedup"] = by_one.work_s() / time.caller_s;
    }
    return json;
  };
  OrderedJson json = {{"threads", threads}};
  json.update(numbers(counted.all, alone.all));
  json["parts"] = OrderedJson::object();
  for (const auto& [name, time] : counted.parts) {
    const auto found = alone.parts.find(name);
    json["parts"][name] = numbers(time, found == alone.parts.end() ? ThreadTime{} : found->second);
  }
  return json;
}

}  // namespace moe::bench
