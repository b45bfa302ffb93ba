#pragma once
// Launches recorded once and replayed in one call (a CUDA graph): where a device is faster than the
// host can launch, the host is out of the way.
//
// What can be recorded: work whose sizes and launches are the same every time and which neither
// waits for the device nor copies between it and the host. A MoE layer routed by top-k or with a
// capacity is such, in bf16 (kernels/ops/permute.h, LibTorch's grouped products), and so are the
// forward and backward of a micro-batch whose sequences are as long every time
// (core/train/loop/micro_batch_graphs.h). Nor could other dropless routers be, whose buffers would
// be as large as all tokens at every expert.
//
// The rest of a step of training stays outside. The head takes the tokens that have a target, whose
// number differs. Between the gradients' norm and the update the host decides: a norm that is no
// number, or an outlier, must leave the weights as they are; and AdamW's kernel takes the learning
// rate and the count of updates by value. There is little to win: an update is six launches a
// parameter (tests/core/train/emulated_cuda), of LLaMA-2-7B's shape with 8 layers (51 parameters,
// 55 with top-1 in every other layer) some 330, or 1.7 ms of the host at 5 us each, 0.5 % of its
// step of 340 ms if the GPU waited for each of them. It waits for hardly any: those of the norm are
// queued while it runs backward, and AdamW's take it a fifth of a millisecond each. What is left is
// the one read of the norm, some 20 us.

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
