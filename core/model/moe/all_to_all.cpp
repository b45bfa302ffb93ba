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

struct RowsOnTheWay {
  RowsOnTheWay(dist::Comm& comm, std::vector<int64_t> to_others, std::vector<int64_t> from_others)
      : group(comm),
        layer(comm.place.layer),
        sent(std::move(to_others)),
        received(std::move(from_others)) {}

  // `rows` of `out_rows` leave; what comes is there after end().
  Tensor begin(const Tensor& rows, const std::vector<int64_t>& out_rows,
               const std::vector<int64_t>& in_rows) {
    const int64_t coming = std::accumulate(in_rows.begin(), in_rows.end(), int64_t{0});
    leaving = rows.contiguous();
    arriving = at::empty({coming, rows.size(1)}, rows.options());
    const int64_t layer_now = std::exchange(group.place.layer, layer);
    transfer = group.all_to_all(leaving, out_rows, arriving, in_rows);
    group.place.layer = layer_now;
    return arriving;
  }

  Tensor end() {
    MOE_CHECK(transfer != nullptr, "nothing is on the way");
    transfer->wait();
    transfer.reset();
    leaving = Tensor();
    return std::move(arriving);
  }

  dist::Comm& group;
  int64_t layer;  // where it was made: backward says so too
  std::vector<int64_t> sent, received;
  std::unique_ptr<dist::Transfer> transfer;
  Tensor leaving, arriving;  // held until all is there
};

namespace {

using State = std::shared_ptr<RowsOnTheWay>;

struct KeptState : torch::CustomClassHolder {
  explicit KeptState(State its_state) : state(std::move(its_state)) {}
  State state;
};

void keep(AutogradContext* context, const State& state) {
  context->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<KeptState>(state));
}

State kept(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<KeptState>(context->saved_data["state"].toCapsule())
      ->state;
}

struct Start : torch::autograd::Function<Start> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const State& state) {
    keep(context, state);
    return state->begin(rows, state->sent, state->received);
  }
  // Finish sent the gradient; it is here only now.
  static variable_list backward(AutogradContext* context, variable_list /*placeholders*/) {
    return {kept(context)->end(), Tensor()};
  }
};

struct Finish : torch::autograd::Function<Finish> {
  static Tensor forward(AutogradContext* context, const Tensor& arriving, const State& state) {
    keep(context, state);
    state->end();
    return arriving.detach();
  }
  // What travels is not ready to be shown: autograd gets a placeholder of the shape that it wants.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const State state = kept(context);
    state->begin(gradients[0], state->received, state->sent);
    return {gradients[0], Tensor()};
  }
};

}  // namespace

RowExchange::RowExchange(dist::Comm& group, std::vector<int64_t> sent,
                         std::vector<int64_t> received)
    : state_(std::make_shared<RowsOnTheWay>(group, std::move(sent), std::move(received))) {}

Tensor RowExchange::start(const Tensor& rows) const { return Start::apply(rows, state_); }

Tensor RowExchange::finish(const Tensor& arriving) const { return Finish::apply(arriving, state_); }

}  // namespace moe::model
