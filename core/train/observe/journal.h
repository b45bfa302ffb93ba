#pragma once
// What a run writes of its steps: metrics.jsonl, the same for TensorBoard, report.html. One process
// of a run keeps it.

#include "core/train/observe/event_file.h"
#include "core/train/observe/history.h"
#include "core/train/observe/metrics.h"
#include "core/train/run/run_folder.h"

namespace moe::train {

class Journal {
 public:
  // Goes on behind the first `steps` steps that the folder's files tell of. `folder` outlives it.
  Journal(const RunFolder& folder, int64_t steps);

  void append(const OrderedJson& line);
  void report() const;  // writes the page anew

 private:
  const RunFolder& folder_;
  MetricsFile metrics_;
  EventFile events_;
  History history_;
};

}  // namespace moe::train
