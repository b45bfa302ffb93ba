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
using Numbers = std::vector<int64_t>;

namespace {

// The work of every process, in rows, and what lending one more expert would make of it.
class Work {
 public:
  explicit Work(const std::vector<Numbers>& loads)
      : loads_(loads),
        local_(static_cast<int64_t>(loads.front().size() / loads.size())),
        rows_(loads.size(), 0),
        lent_(loads.front().size(), false) {
    for (const Numbers& of_place : loads) {
      for (size_t expert = 0; expert < of_place.size(); ++expert) {
        rows_[expert / local_] += of_place[expert];
      }
    }
  }

  // Whether an expert was lent to good effect.
  bool lend_one() {
    const auto busiest = std::max_element(rows_.begin(), rows_.end()) - rows_.begin();
    int64_t most = 0, best = -1;
    for (int64_t expert = busiest * local_; expert < (busiest + 1) * local_; ++expert) {
      const int64_t others = lent_[expert] ? 0 : rows_of_others(expert);
      if (others > most) {
        most = others;
        best = expert;
      }
    }
    if (best < 0) {
      return false;
    }
    Numbers rows = rows_;
    for (size_t place = 0; place < rows.size(); ++place) {
      const bool is_owner = static_cast<int64_t>(place) == busiest;
      rows[place] += kLendingRows + (is_owner ? -most : loads_[place][best]);
    }
    if (*std::max_element(rows.begin(), rows.end()) >= rows_[busiest]) {
      return false;
    }
    rows_ = rows;
    lent_[best] = true;
    return true;
  }

  Numbers lent() const {
    Numbers experts;
    for (size_t expert = 0; expert < lent_.size(); ++expert) {
      if (lent_[expert]) {
        experts.push_back(static_cast<int64_t>(expert));
      }
    }
    return experts;
  }

 private:
  int64_t rows_of_others(int64_t expert) const {
    int64_t rows = 0;
    for (size_t place = 0; place < loads_.size(); ++place) {
      rows += static_cast<int64_t>(place) == expert / local_ ? 0 : loads_[place][expert];
    }
    return rows;
  }

  const std::vector<Numbers>& loads_;
  int64_t local_;
  Numbers rows_;
  std::vector<bool> lent_;
};

struct KeptLending : torch::CustomClassHolder {
  explicit KeptLending(Lending its_lending) : lending(std::move(its_lending)) {}
  Lending lending;
};

// Every expert straight from the holder's weights into its place among the borrowed.
Tensor borrow(const Tensor& held, const Lending& lending) {
  const auto lent = static_cast<int64_t>(lending.owner.size());
  Tensor borrowed = at::empty({lent - lending.mine(), held.size(1), held.size(2)}, held.options());
  int64_t next = 0;
  for (size_t i = 0; i < lending.owner.size(); ++i) {
    const bool is_mine = lending.owner[i] == lending.group->rank();
    lending.group->broadcast(is_mine ? held[lending.local[i]] : borrowed[next++], lending.owner[i]);
  }
  return borrowed;
}

// Adds to `gradient` [E/G, N, M] what the others have of the experts that are held here.
void give_back(const Tensor& gradient, const Tensor& borrowed, const Lending& lending) {
  dist::Comm& group = *lending.group;
  const int64_t mine = lending.mine();
  Numbers sent(group.size(), 0), received(group.size(), mine);
  for (const int64_t owner : lending.owner) {
    sent[owner] += 1;
  }
  sent[group.rank()] = received[group.rank()] = 0;
  const int64_t others = group.size() - 1;
  const Tensor terms =
      at::empty({others * mine, borrowed.size(1), borrowed.size(2)}, borrowed.options());
  group.all_to_all(borrowed.contiguous(), sent, terms, received)->wait();
  int64_t next = 0;
  for (int64_t place = 0; place < others; ++place) {
    for (size_t i = 0; i < lending.owner.size(); ++i) {
      if (lending.owner[i] == group.rank()) {
        gradient[lending.local[i]].add_(terms[next++]);
      }
    }
  }
}

struct Lend : torch::autograd::Function<Lend> {
  static variable_list forward(AutogradContext* context, const Tensor& held,
                               const c10::intrusive_ptr<KeptLending>& kept) {
    context->saved_data["lending"] = c10::IValue::make_capsule(kept);
    return {held.view(held.sizes()), borrow(held, kept->lending)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto kept =
        c10::static_intrusive_pointer_cast<KeptLending>(context->saved_data["lending"].toCapsule());
    const bool is_own = gradients[0].is_contiguous() && gradients[0].storage().use_count() == 1;
    const Tensor gradient = is_own ? gradients[0] : gradients[0].contiguous().clone();
    give_back(gradient, gradients[1], kept->lending);
    return {gradient, Tensor()};
  }
};

}  // namespace

Numbers choose_lent(const std::vector<Numbers>& loads) {
  MOE_CHECK(!loads.empty() && loads.front().size() % loads.size() == 0);
  Work work(loads);
  while (work.lend_one()) {
  }
  return work.lent();
}

Lending::Lending(dist::Comm& among, const Numbers& lent, int64_t local_experts) : group(&among) {
  for (const int64_t expert : lent) {
    owner.push_back(expert / local_experts);
    local.push_back(expert % local_experts);
  }
}

int64_t Lending::mine() const { return std::count(owner.begin(), owner.end(), group->rank()); }

LentWeights lend(const Tensor& held, const Lending& lending) {
  if (lending.owner.empty()) {
    return {held, held.narrow(0, 0, 0)};
  }
  const auto both = Lend::apply(held, c10::make_intrusive<KeptLending>(lending));
  return {both[0], both[1]};
}

}  // namespace moe::model
