#pragma once
// Copies that differ. Experts that begin as equal copies stay alike for a long while; a variation
// breaks the tie at the price of a part of the parent's function.

#include <cstdint>
#include <string>

#include "core/io/safetensors_writer.h"
#include "core/model/convert/granularity.h"

namespace moe::model {

struct Variation {
  enum class Kind {
    kNone,
    // Drop-Upcycling (Nakamura et al. 2025, section 3): floor(share * F) of an expert's F
    // intermediate dimensions are drawn anew, N(mean, std^2) of what stood in them, matrix by
    // matrix. gate, up and down of an expert share the dimensions unless `separate`.
    kDrop,
    // N(0, (share * std of the matrix)^2) is added to every weight.
    kNoise,
  };
  Kind kind = Kind::kNone;
  double share = 0;
  bool separate = false;

  explicit operator bool() const { return kind != Kind::kNone; }
};

// "none", "drop:0.5", "drop:0.5,separate" or "noise:0.01". UserError: anything else, a share of
// dimensions that is not between 0 and 1 (both left out), noise that is not positive.
Variation parse_variation(const std::string& text);
std::string to_string(const Variation& variation);
// UserError: a drop of less than one of an expert's `width` dimensions.
void check_variation(const Variation& variation, int64_t width);

// Sends the varied matrix to `writer`, reading the parent's twice (first mean and deviation) and
// holding a row at a time; its name is like model.layers.3.mlp.experts.7.up_proj.weight. Values
// follow from `seed` and the names of tensor and expert alone.
void write_varied(io::SafetensorsWriter& writer, const ExpertMatrix& matrix,
                  const Variation& variation, uint64_t seed);

}  // namespace moe::model
