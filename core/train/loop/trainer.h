#pragma once
// Training loop: batches -> gradients -> clipping -> AdamW -> metrics. On the CPU, runs with equal
// settings and an equal number of threads are equal bit for bit.

#include "core/train/loop/plan.h"

namespace moe::train {

// Trains and writes RUN/final. Resumes an existing run with the same settings from its newest
// intact checkpoint; on the CPU the result equals that of an uninterrupted run bit for bit. A
// complete run is left unchanged (on_start is called, no step is run).
//
// `ranks` is null for a single process. Otherwise each rank calls train() with the same settings
// and its own callbacks; rank 0 writes RUN. The results are those of a single process
// (core/distributed/comm.h).
//
// Throws UserError if settings, model, data or RUN are invalid, before any file is written;
// std::runtime_error if several losses or gradients in a row are not finite, naming the step and
// the last good checkpoint; Interrupted if stop_requested() returned true, after saving a
// checkpoint unless no step is done.
void train(const TrainSettings& settings, const TrainCallbacks& callbacks,
           distributed::Comm* ranks = nullptr);

}  // namespace moe::train
