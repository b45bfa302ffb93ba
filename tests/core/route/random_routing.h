#pragma once
// Random inputs of routing, and plans as rows that can be compared and printed.

#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/route/route.h"
#include "tests/core/route/reference.h"
#include "tests/support/catch.h"

namespace moe::test {

struct RandomRouting {
  at::Tensor logits;  // [T, E] f32
  route::RoutingGroup group;
};

// `grid` > 0 rounds logits to its multiples, for ties; `padding` is the share of padding tokens.
inline RandomRouting random_routing(std::mt19937& random, int64_t tokens, int64_t experts,
                                    int64_t ranks, double grid = 0, double padding = 0) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  RandomRouting result;
  std::vector<float> logits;
  const double skew = uniform(random) < 0.5 ? 0.0 : 0.3;
  for (int64_t i = 0; i < tokens * experts; ++i) {
    const double a = normal(random) - skew * static_cast<double>(i % experts);
    logits.push_back(static_cast<float>(grid > 0 ? std::round(a / grid) * grid : a));
  }
  result.logits = at::tensor(logits, at::kFloat).view({tokens, experts});
  result.group = route::partition_tokens(tokens, ranks);
  if (uniform(random) < 0.5) {  // uneven, interleaved source ranks
    for (auto& source_rank : result.group.source_rank) {
      source_rank =
          static_cast<int64_t>(uniform(random) * uniform(random) * static_cast<double>(ranks));
    }
  }
  for (auto& source_rank : result.group.source_rank) {
    source_rank = uniform(random) < padding ? -1 : source_rank;
  }
  return result;
}

inline Matrix matrix_of(const at::Tensor& values) {
  const at::Tensor wide = values.detach().to(at::kDouble).contiguous();
  const auto* next = wide.data_ptr<double>();
  Matrix matrix(wide.size(0));
  for (auto& row : matrix) {
    row.assign(next, next + wide.size(1));
    next += wide.size(1);
  }
  return matrix;
}

inline std::vector<int64_t> numbers_of(const at::Tensor& values) {
  const at::Tensor host = values.contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

// Returns the used rows; checks that unused rows are last.
inline std::vector<ReferenceRow> used_rows(const at::Tensor& token, const at::Tensor& expert,
                                           const at::Tensor& choice, const at::Tensor& count,
                                           const route::RoutingGroup& group, int64_t experts) {
  const auto tokens = numbers_of(token), of_expert = numbers_of(expert),
             choices = numbers_of(choice), counts = numbers_of(count);
  std::vector<ReferenceRow> rows;
  bool ended = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (of_expert[i] == experts) {
      ended = true;
    } else {
      CHECK_FALSE(ended);
      rows.push_back(
          {of_expert[i], group.source_rank.at(tokens[i]), tokens[i], choices[i], counts[i]});
    }
  }
  return rows;
}

inline std::vector<ReferenceRow> used_rows(const route::Plan& plan,
                                           const route::RoutingGroup& group, int64_t experts) {
  return used_rows(plan.token, plan.expert, plan.choice, plan.count, group, experts);
}

inline std::vector<ReferenceRow> refused_rows(const route::Plan& plan,
                                              const route::RoutingGroup& group, int64_t experts) {
  return used_rows(plan.overflow_token, plan.overflow_expert, plan.overflow_choice,
                   at::ones_like(plan.overflow_token), group, experts);
}

// Returns "e0:t3 e0:t5+ir2 e1:t0+fr", for readable failures.
inline std::string words_of(const std::vector<ReferenceRow>& rows, int64_t k) {
  std::string words;
  for (const auto& row : rows) {
    words += (words.empty() ? "e" : " e") + std::to_string(row.expert) + ":t" +
             std::to_string(row.token);
    words += row.choice == k ? "+fr" : row.choice > k ? "+ir" + std::to_string(row.count) : "";
  }
  return words;
}

// Returns the examples of all families, each with every set of modifiers.
inline std::vector<route::RouterSettings> all_routers() {
  std::vector<route::RouterSettings> routers;
  for (const auto& family : route::router_families()) {
    for (const auto& example : family.examples) {
      std::vector<route::RouterSettings> forms = {route::parse_router(example)};
      const size_t options = route::router_options(forms.front()).size();
      for (size_t option = 0; option < options; ++option) {
        const bool is_modifier = route::router_options(forms.front())[option].position ==
                                 route::OptionPosition::kModifier;
        const size_t before = is_modifier ? forms.size() : 0;
        for (size_t i = 0; i < before; ++i) {
          forms.push_back(forms[i]);
          route::set_option(route::router_options(forms.back())[option], "on");
        }
      }
      routers.insert(routers.end(), forms.begin(), forms.end());
    }
  }
  return routers;
}

inline bool fits(const route::RouterSettings& settings, int64_t experts) {
  try {
    route::check_router(settings, experts);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace moe::test
