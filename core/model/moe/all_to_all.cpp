#include "core/model/moe/all_to_all.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace moe::model {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AllToAllState {
  AllToAllState(distributed::Comm& comm, std::vector<int64_t> to_others,
                std::vector<int64_t> from_others)
      : group(comm),
        layer(comm.trace.layer),
        send_counts(std::move(to_others)),
        receive_counts(std::move(from_others)) {}

  // Starts sending `rows`, counts[q] of them to process q. The buffer it returns is filled by
  // finish().
  Tensor start(const Tensor& rows, const std::vector<int64_t>& counts_out,
               const std::vector<int64_t>& counts_in) {
    const int64_t incoming = std::accumulate(counts_in.begin(), counts_in.end(), int64_t{0});
    send_buffer = rows.contiguous();
    receive_buffer = at::empty({incoming, rows.size(1)}, rows.options());
    const int64_t layer_before = std::exchange(group.trace.layer, layer);
    transfer = group.all_to_all(send_buffer, counts_out, receive_buffer, counts_in);
    group.trace.layer = layer_before;
    return receive_buffer;
  }

  Tensor finish() {
    MOE_CHECK(transfer != nullptr, "no all-to-all was started");
    transfer->wait();
    transfer.reset();
    send_buffer = Tensor();
    return std::move(receive_buffer);
  }

  distributed::Comm& group;
  int64_t layer;  // of the forward; failures in backward name it too
  std::vector<int64_t> send_counts, receive_counts;
  std::unique_ptr<distributed::Transfer> transfer;
  Tensor send_buffer, receive_buffer;  // must live until the transfer has ended
};

namespace {

using State = std::shared_ptr<AllToAllState>;

struct SavedState : torch::CustomClassHolder {
  explicit SavedState(State saved) : state(std::move(saved)) {}
  State state;
};

void save_state(AutogradContext* context, const State& state) {
  context->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<SavedState>(state));
}

State saved_state(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<SavedState>(context->saved_data["state"].toCapsule())
      ->state;
}

struct Start : torch::autograd::Function<Start> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const State& state) {
    save_state(context, state);
    return state->start(rows, state->send_counts, state->receive_counts);
  }
  // Finish::backward has sent the gradient; here it is waited for.
  static variable_list backward(AutogradContext* context, variable_list /*placeholders*/) {
    return {saved_state(context)->finish(), Tensor()};
  }
};

struct Finish : torch::autograd::Function<Finish> {
  static Tensor forward(AutogradContext* context, const Tensor& receive_buffer,
                        const State& state) {
    save_state(context, state);
    state->finish();
    return receive_buffer.detach();
  }
  // Autograd wants a gradient of this shape now, but the real one is still on its way: it gets a
  // placeholder, and Start::backward ignores it.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const State state = saved_state(context);
    state->start(gradients[0], state->receive_counts, state->send_counts);
    return {gradients[0], Tensor()};
  }
};

}  // namespace

AllToAllRows::AllToAllRows(distributed::Comm& group, std::vector<int64_t> send_counts,
                           std::vector<int64_t> receive_counts)
    : state_(std::make_shared<AllToAllState>(group, std::move(send_counts),
                                             std::move(receive_counts))) {}

Tensor AllToAllRows::start(const Tensor& rows) const { return Start::apply(rows, state_); }

Tensor AllToAllRows::finish(const Tensor& receive_buffer) const {
  return Finish::apply(receive_buffer, state_);
}

}  // namespace moe::model
