// Checks, shares out (sequence, group) pairs among threads, and is the one autograd node. A
// sequence stands in such a pair with all that continue it.

#include "kernels/ops/causal_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename Number>
Number* data_of(const Tensor& tensor) {
  return static_cast<Number*>(tensor.data_ptr());
}

// Calls each(first token, length, group) for every pair.
template <typename Each>
void for_each_pair(const std::vector<int64_t>& lengths, int64_t groups, Each each) {
  std::vector<int64_t> first(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), first.begin(), int64_t{0});
  const auto pairs = static_cast<int64_t>(lengths.size()) * groups;
  at::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const auto sequence = static_cast<size_t>(pair / groups);
      each(first[sequence], lengths[sequence], pair % groups);
    }
  });
}

template <typename Number>
AttentionInput<Number> input_at(const Tensor& qkv, const Rotation& rotation,
                                const AttentionHeads& heads, int64_t first, int64_t length) {
  return {data_of<const Number>(qkv) + first * heads.row(), rotation.cosine.const_data_ptr<float>(),
          rotation.sine.const_data_ptr<float>(), length, heads};
}

template <typename Number>
void forward_all(const Tensor& qkv, const Rotation& rotation, const AttentionHeads& heads,
                 const std::vector<int64_t>& lengths, const Tensor& out, const Tensor& log_sum) {
  for_each_pair(lengths, heads.kv_heads, [&](int64_t first, int64_t length, int64_t group) {
    causal_attention_forward_cpu(input_at<Number>(qkv, rotation, heads, first, length), group,
                                 data_of<Number>(out) + first * heads.heads * heads.width,
                                 data_of<float>(log_sum) + first * heads.heads);
  });
}

struct Kept {
  Tensor qkv, out, log_sum;
  Rotation rotation;
};

template <typename Number>
void backward_all(const Kept& kept, const AttentionHeads& heads,
                  const std::vector<int64_t>& lengths, const Tensor& grad_out,
                  const Tensor& grad_qkv) {
  for_each_pair(lengths, heads.kv_heads, [&](int64_t first, int64_t length, int64_t group) {
    const int64_t from = first * heads.heads * heads.width;
    causal_attention_backward_cpu(input_at<Number>(kept.qkv, kept.rotation, heads, first, length),
                                  group, data_of<const Number>(kept.out) + from,
                                  data_of<const float>(kept.log_sum) + first * heads.heads,
                                  data_of<const Number>(grad_out) + from,
                                  data_of<Number>(grad_qkv) + first * heads.row());
  });
}

// A sequence, and those that continue it.
struct PrefixTree {
  size_t prefix;
  std::vector<size_t> branches;
};

std::vector<PrefixTree> trees_of(const std::vector<int64_t>& lengths,
                                 const std::vector<int64_t>& continues) {
  std::vector<PrefixTree> trees;
  std::vector<size_t> tree_of(lengths.size());
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    const int64_t before = continues[sequence];
    TORCH_CHECK(before < static_cast<int64_t>(sequence) &&
                    (before < 0 || continues[static_cast<size_t>(before)] < 0),
                "sequence ", sequence, " continues ", before);
    tree_of[sequence] = before < 0 ? trees.size() : tree_of[static_cast<size_t>(before)];
    if (before < 0) {
      trees.push_back({sequence, {}});
    } else {
      trees[tree_of[sequence]].branches.push_back(sequence);
    }
  }
  return trees;
}

template <typename Number>
void forward_trees(const Tensor& qkv, const Rotation& rotation, const AttentionHeads& heads,
                   const std::vector<int64_t>& lengths, const std::vector<PrefixTree>& trees,
                   const Tensor& out) {
  std::vector<int64_t> first(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), first.begin(), int64_t{0});
  const auto output_of = [&](size_t sequence) {
    return data_of<Number>(out) + first[sequence] * heads.heads * heads.width;
  };
  const auto pairs = static_cast<int64_t>(trees.size()) * heads.kv_heads;
  at::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const PrefixTree& tree = trees[static_cast<size_t>(pair / heads.kv_heads)];
      PrefixOutputs<Number> outs{output_of(tree.prefix), {}};
      std::vector<AttentionInput<Number>> branches;
      for (const size_t branch : tree.branches) {
        branches.push_back(input_at<Number>(qkv, rotation, heads, first[branch], lengths[branch]));
        branches.back().position = lengths[tree.prefix];
        branches.back().cosine += lengths[tree.prefix] * heads.width;
        branches.back().sine += lengths[tree.prefix] * heads.width;
        outs.branches.push_back(output_of(branch));
      }
      const auto prefix =
          input_at<Number>(qkv, rotation, heads, first[tree.prefix], lengths[tree.prefix]);
      shared_prefix_attention_cpu<Number>(prefix, branches, pair % heads.kv_heads, outs, nullptr);
    }
  });
}

// Returns the largest number of positions of a sequence, including the sequence that it continues.
int64_t max_positions(const std::vector<int64_t>& lengths, const std::vector<int64_t>& continues) {
  int64_t positions = 0;
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    const int64_t before = continues.empty() ? -1 : continues[sequence];
    const int64_t past = before < 0 ? 0 : lengths[static_cast<size_t>(before)];
    positions = std::max(positions, past + lengths[sequence]);
  }
  return positions;
}

void check_attention(const Tensor& qkv, const AttentionHeads& heads,
                     const std::vector<int64_t>& lengths, const std::vector<int64_t>& continues,
                     const Rotation& rotation) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TORCH_CHECK(has_causal_attention(qkv) && qkv.dim() == 2 && qkv.size(0) == tokens &&
                  qkv.size(1) == heads.row() && heads.heads % heads.kv_heads == 0 &&
                  heads.width % 2 == 0,
              "qkv is ", qkv.sizes(), ", lengths sum to ", tokens);
  const int64_t longest = max_positions(lengths, continues);
  TORCH_CHECK(rotation.cosine.size(0) >= longest && rotation.cosine.size(1) == heads.width,
              "rotation is ", rotation.cosine.sizes(), ", the longest sequence ", longest);
}

bool is_bf16(const Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& given, const Tensor& cosine,
                        const Tensor& sine,
                        std::vector<int64_t> numbers,  // H, G, A
                        std::vector<int64_t> lengths) {
    const AttentionHeads heads{numbers[0], numbers[1], numbers[2]};
    RECORD_USER_SCOPE("attention");
    const Tensor qkv = given.contiguous();
    Tensor out = at::empty({qkv.size(0), heads.heads * heads.width}, qkv.options());
    const Tensor log_sum = at::empty({qkv.size(0), heads.heads}, cosine.options());
    const auto all = is_bf16(qkv) ? forward_all<uint16_t> : forward_all<float>;
    all(qkv, {cosine, sine}, heads, lengths, out, log_sum);
    context->save_for_backward({qkv, cosine, sine, out, log_sum});
    context->saved_data["heads"] = std::move(numbers);
    context->saved_data["lengths"] = std::move(lengths);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto numbers = context->saved_data["heads"].toIntVector();
    const auto lengths = context->saved_data["lengths"].toIntVector();
    const AttentionHeads heads{numbers[0], numbers[1], numbers[2]};
    const Kept kept{saved[0], saved[3], saved[4], {saved[1], saved[2]}};
    const Tensor grad_qkv = at::empty(kept.qkv.sizes(), kept.qkv.options());
    const auto all = is_bf16(kept.qkv) ? backward_all<uint16_t> : backward_all<float>;
    all(kept, heads, lengths, gradients[0].contiguous(), grad_qkv);
    variable_list result(5);
    result[0] = grad_qkv;
    return result;
  }
};

}  // namespace

bool has_causal_attention(const Tensor& qkv) {
  return qkv.is_cpu() && (qkv.scalar_type() == at::kFloat || is_bf16(qkv));
}

Tensor causal_attention(const Tensor& qkv, const AttentionHeads& heads,
                        const std::vector<int64_t>& lengths, const Rotation& rotation) {
  check_attention(qkv, heads, lengths, {}, rotation);
  return CausalAttention::apply(qkv, rotation.cosine.contiguous(), rotation.sine.contiguous(),
                                std::vector<int64_t>{heads.heads, heads.kv_heads, heads.width},
                                lengths);
}

Tensor shared_prefix_attention(const Tensor& given, const AttentionHeads& heads,
                               const std::vector<int64_t>& lengths,
                               const std::vector<int64_t>& continues, const Rotation& rotation) {
  RECORD_USER_SCOPE("attention");
  TORCH_CHECK(continues.size() == lengths.size() &&
              !(at::GradMode::is_enabled() && given.requires_grad()));
  check_attention(given, heads, lengths, continues, rotation);
  const Tensor qkv = given.contiguous();
  const Tensor out = at::empty({qkv.size(0), heads.heads * heads.width}, qkv.options());
  const auto all = is_bf16(qkv) ? forward_trees<uint16_t> : forward_trees<float>;
  all(qkv, {rotation.cosine.contiguous(), rotation.sine.contiguous()}, heads, lengths,
      trees_of(lengths, continues), out);
  return out;
}

}  // namespace moe::kernels
