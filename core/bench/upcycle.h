#pragma once
// Upcycling a folder, against what the disk takes by plain large writes in the same run: by turns,
// a gigabyte each, so that others who use the disk stretch both.

#include <filesystem>

#include "core/bench/timing.h"
#include "core/model/convert/upcycle.h"

namespace moe::bench {

struct UpcycleReport {
  uint64_t bytes = 0;      // of tensors written
  Timing upcycle;          // the whole command's work, synced to the disk
  Timing disk;             // as many bytes written and synced, between its pieces
  uint64_t anonymous = 0;  // bytes at most above those at the start
};

// `settings.out` names a folder to make and remove again, `repeats` times. UserError: what
// plan_upcycle() and upcycle() say.
UpcycleReport bench_upcycle(const std::filesystem::path& dense, model::UpcycleSettings settings,
                            int64_t repeats);

OrderedJson to_json(const UpcycleReport& report);

}  // namespace moe::bench
