#include "core/train/observe/journal.h"

#include "core/train/observe/report.h"

namespace moe::train {

Journal::Journal(const RunFolder& folder, int64_t steps)
    : folder_(folder),
      metrics_(folder.metrics(), steps),
      events_(folder.path(), folder.metrics()),
      history_(read_history(folder.metrics())) {}

void Journal::append(const OrderedJson& line) {
  metrics_.append(line);
  const Json json(line);
  events_.append(json);
  history_.add(json, folder_.metrics().string());
}

void Journal::report() const { write_report(folder_.path(), history_, folder_.report()); }

}  // namespace moe::train
