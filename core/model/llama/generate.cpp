#include "core/model/llama/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>

#include "core/base/error.h"
#include "core/model/llama/memory_need.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/device.h"
#include "kernels/ops/operations.h"

namespace moe::model {
namespace {

using at::Tensor;

struct Row {
  size_t index = 0;  // of the prompt
  Tensor memory;     // of the cache
  KvCache cache;
  std::vector<int64_t> ids = {};  // new tokens
  std::mt19937_64 random;
};

// Returns the length of the common prefix of all prompts, shorter than every prompt.
int64_t common_prefix(const std::vector<std::vector<int64_t>>& prompts) {
  const auto& first = prompts.front();
  size_t common = first.size();
  for (const auto& prompt : prompts) {
    MOE_CHECK(!prompt.empty());
    common = std::min(common, prompt.size() - 1);
    const auto end = first.begin() + static_cast<int64_t>(common);
    common = static_cast<size_t>(std::mismatch(first.begin(), end, prompt.begin()).first -
                                 first.begin());
  }
  return static_cast<int64_t>(common);
}

// Prompts that are continued concurrently. `shares_prefix`: their common prefix is computed once.
class RowBatch {
 public:
  RowBatch(const Llama& model, const RoutingOptions& routing, const GenerateSettings& settings,
           const std::vector<std::vector<int64_t>>& prompts, int64_t max_rows, bool shares_prefix)
      : model_(model), routing_(routing), settings_(settings), prompts_(prompts) {
    const auto common = shares_prefix ? common_prefix(prompts) : 0;
    if (common > 0) {
      const auto prefix =
          std::make_shared<KvCache>(model.config(), KvCacheOptions{.capacity = common});
      const auto& first = prompts.front();
      forward({first.begin(), first.begin() + common}, {common}, {prefix.get()});
      prefix_ = prefix;
    }
    capacity_ = row_capacity();
    const bool has_blocks = kernels::has_kernel<"moe::causal_attention">(model.device());
    const int64_t numel = has_blocks ? KvCache::numel(model.config(), capacity_) : 0;
    free_memory_ = at::empty({max_rows, numel}, at::kFloat).unbind(0);
  }

  size_t size() const { return rows_.size(); }

  // Adds prompts and generates the first token of each.
  void start(std::span<const size_t> indices) {
    std::vector<Tensor> last;  // hidden states, [1, D] each
    std::vector<Row*> started;
    for (const size_t index : indices) {
      rows_.push_back(std::make_unique<Row>(new_row(index)));
      if (const Tensor hidden = compute_prompt(*rows_.back()); hidden.defined()) {
        last.push_back(hidden);
        started.push_back(rows_.back().get());
      }
    }
    if (!started.empty()) {
      add_tokens(at::cat(last), started);
    }
  }

  // Generates a token for each row.
  void step() {
    std::vector<int64_t> last_ids;
    std::vector<KvCache*> caches;
    std::vector<Row*> rows;
    for (const auto& row : rows_) {
      last_ids.push_back(row->ids.back());
      caches.push_back(&row->cache);
      rows.push_back(row.get());
    }
    add_tokens(forward(last_ids, std::vector<int64_t>(rows.size(), 1), caches), rows);
  }

  // Removes finished rows and passes them to `done`.
  void finish(const OnGenerated& done) {
    std::erase_if(rows_, [&](const auto& row) {
      if (!row->ids.empty() && !has_ended(*row)) {
        return false;
      }
      free_memory_.push_back(row->memory);
      done(row->index, row->ids);
      return true;
    });
  }

 private:
  bool has_ended(const Row& row) const {
    // The last new token is not in the cache yet.
    return (settings_.stops && settings_.stops(row.ids)) ||
           std::ssize(row.ids) >= settings_.max_tokens ||
           row.cache.length() + 1 >= model_.config().max_position_embeddings ||
           std::ranges::find(settings_.eos_ids, row.ids.back()) != settings_.eos_ids.end();
  }

  int64_t prefix_length() const { return prefix_ == nullptr ? 0 : prefix_->length(); }

  // Returns the initial capacity of a row in tokens after the common prefix.
  int64_t row_capacity() const {
    constexpr int64_t kAnswerTokens = 512;
    int64_t longest = 0;
    for (const auto& prompt : prompts_) {
      longest = std::max(longest, std::ssize(prompt) - prefix_length());
    }
    const int64_t window = model_.config().max_position_embeddings - prefix_length();
    return std::min(longest + std::min(settings_.max_tokens, kAnswerTokens),
                    std::max(longest, window));
  }

  Row new_row(size_t index) {
    MOE_CHECK(!free_memory_.empty());
    const Tensor memory = free_memory_.back();
    free_memory_.pop_back();
    KvCache cache(model_.config(), {model_.device(), capacity_, prefix_, memory});
    return {index, memory, std::move(cache), {}, std::mt19937_64(settings_.seed)};
  }

  // Returns the last hidden state [1, D] of the prompt of the row and caches its keys and values.
  // Returns an undefined tensor if no token can be generated.
  Tensor compute_prompt(Row& row) const {
    const auto& prompt = prompts_[row.index];
    if (std::ssize(prompt) >= model_.config().max_position_embeddings ||
        settings_.max_tokens <= 0) {
      return {};
    }
    const std::vector<int64_t> ids(prompt.begin() + prefix_length(), prompt.end());
    return forward(ids, {std::ssize(ids)}, {&row.cache});
  }

  // Samples the next token of each row from hidden [rows, D].
  void add_tokens(const Tensor& hidden, const std::vector<Row*>& rows) {
    const Tensor logits = model_.head(hidden);  // [rows, V]
    for (size_t i = 0; i < rows.size(); ++i) {
      const double uniform = (rows[i]->random() >> 11) * 0x1.0p-53;
      rows[i]->ids.push_back(pick_token(logits[static_cast<int64_t>(i)], settings_.temperature,
                                        settings_.top_p, uniform));
    }
  }

  // Returns the hidden state of each sequence's last token [sequences, D].
  Tensor forward(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths,
                 const std::vector<KvCache*>& caches) const {
    Packed tokens{.ids = at::tensor(ids, at::kLong), .lengths = lengths, .caches = caches};
    if (ids.size() > lengths.size()) {
      std::vector<int64_t> last;
      for (int64_t row = -1; const int64_t length : lengths) {
        last.push_back(row += length);
      }
      tokens.output_rows = at::tensor(last, at::kLong);
    }
    return model_.forward(tokens, routing_).hidden;
  }

  const Llama& model_;
  const RoutingOptions& routing_;
  const GenerateSettings& settings_;
  const std::vector<std::vector<int64_t>>& prompts_;
  std::shared_ptr<const KvCache> prefix_;
  int64_t capacity_ = 0;             // initial, of a row
  std::vector<Tensor> free_memory_;  // of unused caches; parts of one block, for huge pages
  std::vector<std::unique_ptr<Row>> rows_;
};

}  // namespace

RoutingOptions generation_routing(const RoutingOptions& stored) {
  RoutingOptions routing = stored;
  routing.router = route::generation_router(stored.router);
  return routing;
}

uint64_t generate_bytes(const ModelConfig& config, const RoutingOptions& routing,
                        int64_t prompt_tokens, const GenerateSettings& settings,
                        at::Device device) {
  const int64_t tokens =
      std::min(prompt_tokens + settings.max_tokens, config.max_position_embeddings);
  return bytes_to_copy(config, Storage::kStored, device) +
         forward_bytes(config, routing.router, prompt_tokens, tokens, device);
}

int64_t pick_token(const Tensor& logits, double temperature, double top_p, double uniform) {
  if (temperature <= 0) {
    return kernels::call<"moe::argmax", int64_t(const Tensor&)>(logits);
  }
  const auto [scores, order] = (logits.to(at::kDouble) / temperature)
                                   .softmax(0)
                                   .cpu()
                                   .sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const auto probability = scores.accessor<double, 1>();
  int64_t nucleus = 0;  // number of tokens
  double mass = 0;
  while (nucleus < scores.size(0) && (nucleus == 0 || mass < top_p)) {
    mass += probability[nucleus++];
  }
  double threshold = uniform * mass;
  int64_t rank = 0;
  while (rank < nucleus - 1 && !((threshold -= probability[rank]) < 0)) {
    ++rank;
  }
  return order[rank].item<int64_t>();
}

int64_t rows_at_once(const ModelConfig& config, int64_t prompt_tokens, int64_t answer_tokens,
                     uint64_t available_bytes) {
  const int64_t tokens = std::min(prompt_tokens + answer_tokens, config.max_position_embeddings);
  const uint64_t row_bytes = kv_cache_bytes(config, std::max<int64_t>(1, tokens));
  return std::clamp<int64_t>(static_cast<int64_t>(available_bytes / row_bytes), 1,
                             kernels::kMaxSkinnyRows);
}

void generate_all(const Llama& model, const RoutingOptions& routing,
                  const GenerateSettings& settings, const GenerateBatch& prompts) {
  if (prompts.indices.empty()) {
    return;
  }
  const at::NoGradGuard no_gradients;
  // Answers must not depend on the other prompts.
  const bool is_invariant = kernels::device_traits(model.device()).is_row_invariant;
  const size_t rows = is_invariant ? static_cast<size_t>(prompts.rows) : 1;
  RowBatch batch(model, routing, settings, prompts.prompts,
                 static_cast<int64_t>(std::min(rows, prompts.indices.size())),
                 is_invariant && prompts.prompts.size() > 1);
  for (std::span<const size_t> left = prompts.indices; !left.empty() || batch.size() > 0;) {
    if (batch.size() > 0) {
      batch.step();
    }
    batch.finish(prompts.done);
    while (!left.empty() && batch.size() < rows) {
      const size_t count = std::min(left.size(), rows - batch.size());
      batch.start(left.first(count));
      left = left.subspan(count);
      batch.finish(prompts.done);
    }
  }
}

std::vector<int64_t> generate(const Llama& model, const RoutingOptions& routing,
                              const std::vector<int64_t>& prompt, const GenerateSettings& settings,
                              const std::function<void(int64_t)>& on_token) {
  MOE_CHECK(!prompt.empty());
  GenerateSettings reporting = settings;
  reporting.stops = [&](const std::vector<int64_t>& ids) {
    if (on_token) {
      on_token(ids.back());
    }
    return settings.stops && settings.stops(ids);
  };
  std::vector<int64_t> result;
  const auto set_result = [&](size_t /*index*/, const std::vector<int64_t>& ids) { result = ids; };
  const std::vector<std::vector<int64_t>> prompts{prompt};
  const std::vector<size_t> indices{0};
  generate_all(model, routing, reporting, {prompts, indices, /*rows=*/1, set_result});
  return result;
}

}  // namespace moe::model
