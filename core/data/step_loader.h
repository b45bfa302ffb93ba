#pragma once
// The batches of the steps to come, made by a thread of its own while the step before them is
// computed, so that training does not wait for its data. Every step comes with the cursor behind
// it: a checkpoint keeps that of the last step that was used, whatever was made ahead.

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/data/batches.h"

namespace moe::data {

struct StepBatches {
  std::vector<Batch> batches;
  Cursor cursor;  // where the stream stands after them
};

class StepLoader {
 public:
  // `batches` a step. At most `steps_ahead` steps are held beside the one given out. Keeps the
  // stream's reference to its examples.
  StepLoader(BatchStream stream, int64_t batches, size_t steps_ahead = 2);
  ~StepLoader();  // ends the thread after the batch it is making
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  // Waits where the next step is not ready. Throws what the stream threw in making it, this time
  // and every other.
  StepBatches next();

 private:
  void work();

  BatchStream stream_;  // the thread's
  int64_t batches_;
  size_t steps_ahead_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<StepBatches> ready_;
  std::exception_ptr error_;  // comes after what is ready
  bool stops_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace moe::data
