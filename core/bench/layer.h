#pragma once
// One MoE layer, forward and backward, in parts, beside what the machine can do in the same run:
// the roof is at::mm on as many rows as the router serves, at the experts' shapes. T tokens, D
// model width, F expert width, E experts.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/bench/timing.h"
#include "core/route/counters.h"
#include "core/route/router_settings.h"

namespace moe::bench {

struct LayerSettings {
  int64_t tokens = 4096, width = 1024, inner = 2816, experts = 8;  // T, D, F, E
  int64_t ep_ranks = 0;                                            // W; 0 = E
  double skew = 0;          // added to the logits: expert j gets -skew * j, so that loads differ
  int64_t repeats = 7;      // after one to warm up; medians are reported
  bool times_layer = true;  // false: routing and products only
  c10::Device device = c10::kCPU;
  bool bf16 = false;  // products of rows rounded to bf16, as --precision bf16
};

struct LayerReport {
  std::string router;
  Timing roof;      // at::mm, the forward and both backward products of `rows` rows in one matrix
  Timing products;  // the grouped expert products, forward and backward
  Timing routing;   // logits, plan, weights, losses, counters, and their gradients
  Timing counting;  // the counters alone, read back to the host
  Timing layer;     // all of it, with gathering and combining
  std::map<std::string, double> parts_s;  // of the layer, each once (core/model/llama/timeline.h)
  uint64_t peak_bytes = 0;                // of the process, by the end of this router
  double flop = 0;                        // of the products, forward and backward: 18 D F a row
  route::CounterValues counted;
};

LayerReport bench_layer(const LayerSettings& settings, const route::RouterSettings& router);

OrderedJson to_json(const LayerSettings& settings);
OrderedJson to_json(const LayerReport& report);

}  // namespace moe::bench
