#pragma once
// Random weights as a stream into a file: a tensor's values follow from (seed, its name) and from
// nothing else, so they do not depend on other tensors, shards, or the number of processes
// (core/model/README.md).

#include <cstdint>
#include <string>

#include "core/io/safetensors_writer.h"

namespace moe::model {

// N(0, std^2), drawn as F32 and rounded to the tensor's type. `stream` names the numbers; it is the
// tensor's name but where two tensors shall be equal.
void write_normal(io::SafetensorsWriter& writer, const io::TensorInfo& info, double std,
                  uint64_t seed, const std::string& stream);

void write_constant(io::SafetensorsWriter& writer, const io::TensorInfo& info, float value);

}  // namespace moe::model
