// A thread computes one group of heads of one sequence, or of a prefix and the sequences that
// continue it.

#include "kernels/ops/causal_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <numeric>

#include "kernels/cpu/gemm.h"
#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

template <typename T>
T* data_ptr_as(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

bool is_bf16(const Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

std::vector<int64_t> first_tokens(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> first(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), first.begin(), int64_t{0});
  return first;
}

// Calls each(index, group) for all indices below `count` and all groups, in parallel.
template <typename Each>
void for_each_pair(size_t count, int64_t groups, Each each) {
  at::parallel_for(0, static_cast<int64_t>(count) * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      each(static_cast<size_t>(pair / groups), pair % groups);
    }
  });
}

template <typename T>
AttentionInput<T> input_at(const Tensor& qkv, const Rotation& rotation, const AttentionHeads& heads,
                           int64_t first, int64_t length) {
  return {data_ptr_as<const T>(qkv) + first * heads.row(), rotation.cosine.const_data_ptr<float>(),
          rotation.sine.const_data_ptr<float>(), length, heads};
}

template <typename T>
void attention_forward(const Tensor& qkv, const Rotation& rotation, const AttentionHeads& heads,
                       const std::vector<int64_t>& lengths, const Tensor& out,
                       const Tensor& log_sum) {
  const auto first = first_tokens(lengths);
  for_each_pair(lengths.size(), heads.kv_heads, [&](size_t i, int64_t group) {
    AttentionCpu<T>::forward(input_at<T>(qkv, rotation, heads, first[i], lengths[i]), group,
                             data_ptr_as<T>(out) + first[i] * heads.heads * heads.width,
                             data_ptr_as<float>(log_sum) + first[i] * heads.heads);
  });
}

// saved: qkv, cosine, sine, out, log_sum.
template <typename T>
void attention_backward(const variable_list& saved, const AttentionHeads& heads,
                        const std::vector<int64_t>& lengths, const Tensor& grad_out,
                        const Tensor& grad_qkv) {
  const auto first = first_tokens(lengths);
  for_each_pair(lengths.size(), heads.kv_heads, [&](size_t i, int64_t group) {
    const int64_t output = first[i] * heads.heads * heads.width;
    AttentionCpu<T>::backward(
        input_at<T>(saved[0], {saved[1], saved[2]}, heads, first[i], lengths[i]), group,
        data_ptr_as<const T>(saved[3]) + output,
        data_ptr_as<const float>(saved[4]) + first[i] * heads.heads,
        data_ptr_as<const T>(grad_out) + output, data_ptr_as<T>(grad_qkv) + first[i] * heads.row());
  });
}

// A prefix and the sequences that continue it.
struct PrefixTree {
  size_t prefix;
  std::vector<size_t> branches;
};

std::vector<PrefixTree> prefix_trees(const std::vector<int64_t>& prefix_index) {
  std::vector<PrefixTree> trees;
  std::vector<size_t> tree_index(prefix_index.size());  // of each prefix
  for (size_t sequence = 0; sequence < prefix_index.size(); ++sequence) {
    const int64_t prefix = prefix_index[sequence];
    TORCH_CHECK(prefix < static_cast<int64_t>(sequence) &&
                    (prefix < 0 || prefix_index[static_cast<size_t>(prefix)] < 0),
                "sequence ", sequence, " continues ", prefix);
    if (prefix < 0) {
      tree_index[sequence] = trees.size();
      trees.push_back({sequence, {}});
    } else {
      trees[tree_index[static_cast<size_t>(prefix)]].branches.push_back(sequence);
    }
  }
  return trees;
}

template <typename T>
void prefix_forward(const Tensor& qkv, const Rotation& rotation, const AttentionHeads& heads,
                    const std::vector<int64_t>& lengths, const std::vector<PrefixTree>& trees,
                    const Tensor& out) {
  const auto first = first_tokens(lengths);
  const auto output_at = [&](size_t sequence) {
    return data_ptr_as<T>(out) + first[sequence] * heads.heads * heads.width;
  };
  for_each_pair(trees.size(), heads.kv_heads, [&](size_t i, int64_t group) {
    const PrefixTree& tree = trees[i];
    PrefixOutputs<T> outs{output_at(tree.prefix), {}};
    std::vector<AttentionInput<T>> branches;
    for (const size_t branch : tree.branches) {
      branches.push_back(input_at<T>(qkv, rotation, heads, first[branch], lengths[branch]));
      branches.back().position = lengths[tree.prefix];
      branches.back().cosine += lengths[tree.prefix] * heads.width;
      branches.back().sine += lengths[tree.prefix] * heads.width;
      outs.branches.push_back(output_at(branch));
    }
    const auto prefix = input_at<T>(qkv, rotation, heads, first[tree.prefix], lengths[tree.prefix]);
    AttentionCpu<T>::shared_prefix(prefix, branches, group, outs, nullptr);
  });
}

KvRun kv_run(const KvBlock& block, int64_t group, int64_t length) {
  if (!block.keys.defined()) {
    return {nullptr, nullptr, 0};
  }
  return {block.keys.data_ptr<float>() + group * block.keys.stride(0),
          block.values.data_ptr<float>() + group * block.values.stride(0), length};
}

template <typename T>
void cached_forward(const Tensor& qkv, const AttentionHeads& heads,
                    const std::vector<int64_t>& lengths, const std::vector<KvCacheView>& caches,
                    const Rotation& rotation, const Tensor& out) {
  const auto first = first_tokens(lengths);
  for_each_pair(lengths.size(), heads.kv_heads, [&](size_t i, int64_t group) {
    const KvCacheView& past = caches[i];
    AttentionInput<T> in = input_at<T>(qkv, rotation, heads, first[i], lengths[i]);
    in.cosine += first[i] * heads.width;
    in.sine += first[i] * heads.width;
    in.position = past.prefix_length + past.length;
    AttentionCpu<T>::cached(in, group, kv_run(past.prefix, group, past.prefix_length),
                            kv_run(past.own, group, past.length),
                            data_ptr_as<T>(out) + first[i] * heads.heads * heads.width);
  });
}

// Throws c10::Error for wrong shapes. `rows` is the minimum number of rows of the rotation tables.
void check_attention(const Tensor& qkv, const AttentionHeads& heads,
                     const std::vector<int64_t>& lengths, int64_t rows, const Rotation& rotation) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TORCH_CHECK(has_causal_attention(qkv) && qkv.dim() == 2 && qkv.size(0) == tokens &&
                  qkv.size(1) == heads.row() && heads.heads % heads.kv_heads == 0 &&
                  heads.width % 2 == 0,
              "qkv is ", qkv.sizes(), ", lengths sum to ", tokens);
  TORCH_CHECK(rotation.cosine.size(0) >= rows && rotation.cosine.size(1) == heads.width,
              "rotation is ", rotation.cosine.sizes(), ", needs ", rows, " rows");
}

void check_no_gradient(const Tensor& qkv) {
  TORCH_CHECK(!(at::GradMode::is_enabled() && qkv.requires_grad()),
              "this attention is not differentiable");
}

Rotation contiguous_tables(const Rotation& rotation) {
  return {rotation.cosine.contiguous(), rotation.sine.contiguous()};
}

Tensor empty_output(const Tensor& qkv, const AttentionHeads& heads) {
  return at::empty({qkv.size(0), heads.heads * heads.width}, qkv.options());
}

// `numbers`: H, G, A. Returns the output, and log_sum [T, H] f32 for backward.
std::tuple<Tensor, Tensor> causal_attention_cpu(const Tensor& qkv, const Tensor& cosine,
                                                const Tensor& sine, at::IntArrayRef numbers,
                                                at::IntArrayRef lengths) {
  const AttentionHeads heads{numbers[0], numbers[1], numbers[2]};
  const Tensor out = empty_output(qkv, heads);
  const Tensor log_sum = at::empty({qkv.size(0), heads.heads}, cosine.options());
  const auto kernel = is_bf16(qkv) ? attention_forward<uint16_t> : attention_forward<float>;
  kernel(qkv, {cosine, sine}, heads, lengths.vec(), out, log_sum);
  return {out, log_sum};
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& qkv_in, const Tensor& cosine,
                        const Tensor& sine,
                        std::vector<int64_t> numbers,  // H, G, A
                        std::vector<int64_t> lengths) {
    RECORD_USER_SCOPE("attention");
    const Tensor qkv = qkv_in.contiguous();
    const auto [out, log_sum] = call<"moe::causal_attention", decltype(causal_attention_cpu)>(
        qkv, cosine, sine, numbers, lengths);
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
    const Tensor grad_qkv = at::empty(saved[0].sizes(), saved[0].options());
    const auto kernel =
        is_bf16(saved[0]) ? attention_backward<uint16_t> : attention_backward<float>;
    kernel(saved, heads, lengths, gradients[0].contiguous(), grad_qkv);
    return {grad_qkv, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(moe, CPU, library) { library.impl("causal_attention", &causal_attention_cpu); }

bool has_causal_attention(const Tensor& qkv) {
  return has_kernel<"moe::causal_attention">(qkv.device()) && is_f32_or_bf16(qkv);
}

int64_t max_positions(const std::vector<int64_t>& lengths,
                      const std::vector<int64_t>& prefix_index) {
  int64_t positions = 0;
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    const int64_t prefix = prefix_index.empty() ? -1 : prefix_index[sequence];
    const int64_t past = prefix < 0 ? 0 : lengths[static_cast<size_t>(prefix)];
    positions = std::max(positions, past + lengths[sequence]);
  }
  return positions;
}

Tensor causal_attention(const Tensor& qkv, const AttentionHeads& heads,
                        const std::vector<int64_t>& lengths, const Rotation& rotation) {
  check_attention(qkv, heads, lengths, max_positions(lengths, {}), rotation);
  return CausalAttention::apply(qkv, rotation.cosine.contiguous(), rotation.sine.contiguous(),
                                std::vector<int64_t>{heads.heads, heads.kv_heads, heads.width},
                                lengths);
}

Tensor shared_prefix_attention(const Tensor& qkv_in, const AttentionHeads& heads,
                               const std::vector<int64_t>& lengths,
                               const std::vector<int64_t>& prefix_index, const Rotation& rotation) {
  RECORD_USER_SCOPE("attention");
  TORCH_CHECK(prefix_index.size() == lengths.size());
  check_no_gradient(qkv_in);
  check_attention(qkv_in, heads, lengths, max_positions(lengths, prefix_index), rotation);
  const Tensor qkv = qkv_in.contiguous(), out = empty_output(qkv, heads);
  const auto kernel = is_bf16(qkv) ? prefix_forward<uint16_t> : prefix_forward<float>;
  kernel(qkv, contiguous_tables(rotation), heads, lengths, prefix_trees(prefix_index), out);
  return out;
}

int64_t kv_numel(const AttentionHeads& heads, int64_t capacity) {
  return 2 * heads.kv_heads * at::ceil_div(capacity, kKeyBlock) * kKeyBlock * heads.width;
}

KvBlock view_kv_block(const Tensor& memory, const AttentionHeads& heads, int64_t capacity) {
  const int64_t blocks = at::ceil_div(capacity, kKeyBlock), half = memory.numel() / 2;
  return {memory.narrow(0, 0, half).view({heads.kv_heads, blocks, heads.width, kKeyBlock}),
          memory.narrow(0, half, half).view({heads.kv_heads, blocks * kKeyBlock, heads.width})};
}

KvBlock make_kv_block(const AttentionHeads& heads, int64_t capacity) {
  return view_kv_block(at::empty({kv_numel(heads, capacity)}, at::kFloat), heads, capacity);
}

KvBlock grow_kv_block(const KvBlock& block, const AttentionHeads& heads, int64_t capacity) {
  KvBlock larger = make_kv_block(heads, capacity);
  larger.keys.narrow(1, 0, block.keys.size(1)).copy_(block.keys);
  larger.values.narrow(1, 0, block.values.size(1)).copy_(block.values);
  return larger;
}

Tensor cached_attention(const Tensor& qkv_in, const AttentionHeads& heads,
                        const std::vector<int64_t>& lengths, const std::vector<KvCacheView>& caches,
                        const Rotation& rotation) {
  TORCH_CHECK(caches.size() == lengths.size() && rotation.cosine.size(0) == qkv_in.size(0));
  check_no_gradient(qkv_in);
  check_attention(qkv_in, heads, lengths, qkv_in.size(0), rotation);
  for (size_t i = 0; i < lengths.size(); ++i) {
    TORCH_CHECK(lengths[i] > 0 && caches[i].length + lengths[i] <= caches[i].own.values.size(1),
                "capacity ", caches[i].own.values.size(1), ", cached positions ", caches[i].length,
                ", new positions ", lengths[i]);
  }
  RECORD_USER_SCOPE("attention");
  const Tensor qkv = qkv_in.contiguous(), out = empty_output(qkv, heads);
  const auto kernel = is_bf16(qkv) ? cached_forward<uint16_t> : cached_forward<float>;
  kernel(qkv, heads, lengths, caches, contiguous_tables(rotation), out);
  return out;
}

}  // namespace moe::kernels
