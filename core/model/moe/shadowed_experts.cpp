#include "core/model/moe/shadowed_experts.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace moe::model {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

namespace {

// The work of every process, in rows, and what shadowing one more expert would make of it.
class Workload {
 public:
  explicit Workload(const std::vector<Counts>& tokens_per_expert)
      : tokens_(tokens_per_expert),
        local_experts_(
            static_cast<int64_t>(tokens_per_expert.front().size() / tokens_per_expert.size())),
        rows_(tokens_per_expert.size(), 0),
        is_shadowed_(tokens_per_expert.front().size(), false) {
    for (const Counts& of_process : tokens_per_expert) {
      for (size_t expert = 0; expert < of_process.size(); ++expert) {
        rows_[expert / local_experts_] += of_process[expert];
      }
    }
  }

  // Shadows one more expert; false where none shortens the longest work.
  bool shadow_one() {
    const auto busiest = std::max_element(rows_.begin(), rows_.end()) - rows_.begin();
    int64_t most_rows = 0, best = -1;
    for (int64_t e = busiest * local_experts_; e < (busiest + 1) * local_experts_; ++e) {
      const int64_t rows = is_shadowed_[e] ? 0 : rows_of_others(e);
      if (rows > most_rows) {
        most_rows = rows;
        best = e;
      }
    }
    if (best < 0) {
      return false;
    }
    Counts rows = rows_;
    for (size_t process = 0; process < rows.size(); ++process) {
      const bool is_owner = static_cast<int64_t>(process) == busiest;
      rows[process] += kShadowingRows + (is_owner ? -most_rows : tokens_[process][best]);
    }
    if (*std::max_element(rows.begin(), rows.end()) >= rows_[busiest]) {
      return false;
    }
    rows_ = rows;
    is_shadowed_[best] = true;
    return true;
  }

  Counts shadowed() const {
    Counts experts;
    for (size_t expert = 0; expert < is_shadowed_.size(); ++expert) {
      if (is_shadowed_[expert]) {
        experts.push_back(static_cast<int64_t>(expert));
      }
    }
    return experts;
  }

 private:
  int64_t rows_of_others(int64_t expert) const {
    int64_t rows = 0;
    for (size_t process = 0; process < tokens_.size(); ++process) {
      const bool is_owner = static_cast<int64_t>(process) == expert / local_experts_;
      rows += is_owner ? 0 : tokens_[process][expert];
    }
    return rows;
  }

  const std::vector<Counts>& tokens_;
  int64_t local_experts_;
  Counts rows_;
  std::vector<bool> is_shadowed_;
};

struct SavedShadowing : torch::CustomClassHolder {
  explicit SavedShadowing(Shadowing saved) : shadowing(std::move(saved)) {}
  Shadowing shadowing;
};

// The replicas of experts that others own, each received straight into its row.
Tensor receive_replicas(const Tensor& weights, const Shadowing& shadowing) {
  const auto shadowed = static_cast<int64_t>(shadowing.owner.size());
  Tensor replicas = at::empty(
      {shadowed - shadowing.owned_count(), weights.size(1), weights.size(2)}, weights.options());
  int64_t next = 0;
  for (size_t i = 0; i < shadowing.owner.size(); ++i) {
    const bool is_owned = shadowing.owner[i] == shadowing.group->rank();
    shadowing.group->broadcast(is_owned ? weights[shadowing.local_index[i]] : replicas[next++],
                               shadowing.owner[i]);
  }
  return replicas;
}

// Adds to `gradient` [E/G, N, M] what the replicas on other processes have of the experts owned
// here; `replicas` is the gradient of the replicas here.
void reduce_to_owners(const Tensor& gradient, const Tensor& replicas, const Shadowing& shadowing) {
  distributed::Comm& group = *shadowing.group;
  const int64_t owned = shadowing.owned_count();
  Counts send_counts(group.size(), 0), receive_counts(group.size(), owned);
  for (const int64_t owner : shadowing.owner) {
    send_counts[owner] += 1;
  }
  send_counts[group.rank()] = receive_counts[group.rank()] = 0;
  const int64_t others = group.size() - 1;
  const Tensor terms =
      at::empty({others * owned, replicas.size(1), replicas.size(2)}, replicas.options());
  group.all_to_all(replicas.contiguous(), send_counts, terms, receive_counts)->wait();
  int64_t next = 0;
  for (int64_t other = 0; other < others; ++other) {
    for (size_t i = 0; i < shadowing.owner.size(); ++i) {
      if (shadowing.owner[i] == group.rank()) {
        gradient[shadowing.local_index[i]].add_(terms[next++]);
      }
    }
  }
}

struct Shadow : torch::autograd::Function<Shadow> {
  static variable_list forward(AutogradContext* context, const Tensor& weights,
                               const c10::intrusive_ptr<SavedShadowing>& saved) {
    context->saved_data["shadowing"] = c10::IValue::make_capsule(saved);
    return {weights.view(weights.sizes()), receive_replicas(weights, saved->shadowing)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = c10::static_intrusive_pointer_cast<SavedShadowing>(
        context->saved_data["shadowing"].toCapsule());
    // A gradient that nobody else holds is added to in place.
    const bool is_unshared =
        gradients[0].is_contiguous() && gradients[0].storage().use_count() == 1;
    const Tensor gradient = is_unshared ? gradients[0] : gradients[0].contiguous().clone();
    reduce_to_owners(gradient, gradients[1], saved->shadowing);
    return {gradient, Tensor()};
  }
};

}  // namespace

Counts choose_shadowed(const std::vector<Counts>& tokens_per_expert) {
  MOE_CHECK(!tokens_per_expert.empty() &&
            tokens_per_expert.front().size() % tokens_per_expert.size() == 0);
  Workload work(tokens_per_expert);
  while (work.shadow_one()) {
  }
  return work.shadowed();
}

Shadowing::Shadowing(distributed::Comm& among, const Counts& shadowed, int64_t local_experts)
    : group(&among) {
  for (const int64_t expert : shadowed) {
    owner.push_back(expert / local_experts);
    local_index.push_back(expert % local_experts);
  }
}

int64_t Shadowing::owned_count() const {
  return std::count(owner.begin(), owner.end(), group->rank());
}

ShadowedWeights shadow_weights(const Tensor& weights, const Shadowing& shadowing) {
  if (shadowing.owner.empty()) {
    return {weights, weights.narrow(0, 0, 0)};
  }
  const auto both = Shadow::apply(weights, c10::make_intrusive<SavedShadowing>(shadowing));
  return {both[0], both[1]};
}

}  // namespace moe::model
