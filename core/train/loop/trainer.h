#pragma once
// The loop: batches -> gradients -> clip -> AdamW -> record, until the steps are done. Everything a
// user can get wrong is found before RUN is made. On the CPU the same settings give the same
// numbers bit for bit, for the same number of threads.

#include "core/train/loop/plan.h"

namespace moe::train {

// Trains and leaves RUN/final. UserError: what prepare() and RunFolder say. std::runtime_error: a
// loss or gradient that is no number; names the step and the last good checkpoint; what --eval-data
// says (held_out.h). Interrupted: stop_requested said so; a checkpoint of the steps done was saved.
//
// A RUN that is there goes on from its newest whole checkpoint when the settings are the same; on
// the CPU the result is that of a run never stopped, bit for bit. A finished one is left as it is
// (on_start is called, no step).
//
// `ranks`: of a run of several processes, each of which calls this with the same settings; the
// first one writes RUN and is the only one whose callbacks tell of the whole. The numbers are those
// of one process (core/distributed/world.h says when).
void train(const TrainSettings& settings, const TrainCallbacks& callbacks,
           distributed::Comm* ranks = nullptr);

}  // namespace moe::train
