#pragma once
// Launches recorded once and replayed in one call (a CUDA graph): where a device is faster than the
// host can launch, the host is out of the way.
//
// What can be recorded: work whose sizes and launches are the same every time and which neither
// waits for the device nor copies between it and the host. A MoE layer routed by top-k or with a
// capacity is such, in bf16 (kernels/ops/permute.h, LibTorch's grouped products), and so are the
// forward and backward of a micro-batch whose sequences are as long every time
// (core/train/loop/micro_batch_graphs.h). The rest of a step of training is not: the head takes the
// tokens that have a target, and a gradient that is no number must stop the update before the
// weights move. Nor are other dropless routers, whose buffers would be as large as all tokens at
// every expert.

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

namespace moe::kernels {

class RecordedGraph {
 public:
  virtual ~RecordedGraph() = default;
  // What was recorded, on the current stream, reading and writing the same memory as then.
  virtual void replay() = 0;
};

// Runs `work` a few times on `device`, a GPU, then records it. The tensors that it reads and those
// that it leaves to its caller must be held as long as it is replayed. Throws what LibTorch says
// where `work` cannot be recorded.
std::unique_ptr<RecordedGraph> record_graph(const std::function<void()>& work, c10::Device device);

// The same of several works that are run, and may be replayed, one after the other in this order
// alone: what one has done with is memory for those behind it. What is in tensors that the caller
// holds stays. `forget`: called before they are recorded, lets go of what the runs left, which
// would lie beside what the graphs leave.
std::vector<std::unique_ptr<RecordedGraph>> record_graphs(
    const std::vector<std::function<void()>>& works, c10::Device device,
    const std::function<void()>& forget = [] {});

}  // namespace moe::kernels
