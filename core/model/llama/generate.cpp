#include "core/model/llama/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/model/llama/kv_cache.h"
#include "core/model/llama/memory_need.h"
#include "kernels/cpu/logsumexp.h"
#include "kernels/cpu/skinny_gemm.h"

namespace moe::model {

using at::Tensor;

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

namespace {

// Returns the index of the largest of `count` numbers, the first of equal ones, and 0 if all are
// NaN. Takes a tenth of the time of at::argmax.
int64_t first_largest(const float* numbers, int64_t count) {
  const float* end = numbers + count;
  const float* largest = std::find(numbers, end, kernels::row_max(numbers, count));
  return largest == end ? 0 : largest - numbers;
}

}  // namespace

int64_t pick_token(const Tensor& logits, double temperature, double top_p, double uniform) {
  if (temperature <= 0 && logits.is_cpu() && logits.is_contiguous() &&
      logits.scalar_type() == at::kFloat) {
    return first_largest(logits.const_data_ptr<float>(), logits.numel());
  }
  if (temperature <= 0) {
    return logits.argmax().item<int64_t>();
  }
  const auto [scores, order] = (logits.to(at::kDouble) / temperature)
                                   .softmax(0)
                                   .cpu()
                                   .sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const auto probability = scores.accessor<double, 1>();
  int64_t kept_tokens = 0;
  double mass = 0;
  while (kept_tokens < scores.size(0) && (kept_tokens == 0 || mass < top_p)) {
    mass += probability[kept_tokens++];
  }
  double threshold = uniform * mass;
  for (int64_t rank = 0; rank < kept_tokens; ++rank) {
    threshold -= probability[rank];
    if (threshold < 0) {
      return order[rank].item<int64_t>();
    }
  }
  return order[kept_tokens - 1].item<int64_t>();
}

namespace {

// One prompt on its way.
struct Row {
  size_t index = 0;    // of the prompt
  int64_t memory = 0;  // part of KeptMemory
  KvCache cache;
  std::vector<int64_t> ids = {};  // new ones
  std::mt19937_64 random;
};

bool has_ended(const Row& row, const Llama& model, const GenerateSettings& settings) {
  const auto& ends = settings.eos_ids;
  // The last new token is not in the cache yet.
  return static_cast<int64_t>(row.ids.size()) >= settings.max_tokens ||
         row.cache.length() + 1 >= model.config().max_position_embeddings ||
         (!row.ids.empty() && (std::find(ends.begin(), ends.end(), row.ids.back()) != ends.end() ||
                               (settings.stops && settings.stops(row.ids))));
}

void add_token(const Tensor& logits, const GenerateSettings& settings, Row& row) {
  const double uniform = static_cast<double>(row.random() >> 11) * 0x1.0p-53;
  row.ids.push_back(pick_token(logits, settings.temperature, settings.top_p, uniform));
}

// How many tokens all prompts begin with, each keeping one of its own.
int64_t common_beginning(const std::vector<std::vector<int64_t>>& prompts) {
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

// The memory of the rows' keys and values, one block, so that its pages can be large; a row that
// ends gives its part to the next.
class KeptMemory {
 public:
  // For `rows` sequences of `tokens` tokens. A cache on a GPU takes none of it.
  KeptMemory(const Llama& model, int64_t rows, int64_t tokens)
      : tokens_(tokens),
        parts_(
            at::empty({rows, model.device().is_cpu() ? KvCache::numel(model.config(), tokens) : 0},
                      at::kFloat)) {
    for (int64_t part = 0; part < rows; ++part) {
      free_.push_back(part);
    }
  }
  int64_t tokens() const { return tokens_; }
  int64_t take() {
    MOE_CHECK(!free_.empty());
    const int64_t part = free_.back();
    free_.pop_back();
    return part;
  }
  void give_back(int64_t part) { free_.push_back(part); }
  Tensor part(int64_t index) const { return parts_[index]; }

 private:
  int64_t tokens_;
  Tensor parts_;  // [rows, floats of a row]
  std::vector<int64_t> free_;
};

// The rows of generate_all(), at most `most_rows` at once.
class RowBatch {
 public:
  RowBatch(const Llama& model, const RoutingOptions& routing, const GenerateSettings& settings,
           const std::vector<std::vector<int64_t>>& prompts, int64_t most_rows)
      : model_(model), routing_(routing), settings_(settings), prompts_(prompts) {
    const bool can_share = model.device().is_cpu() && prompts.size() > 1;
    const auto common = can_share ? common_beginning(prompts) : 0;
    if (common > 0) {
      const auto prefix =
          std::make_shared<KvCache>(model.config(), KvCacheOptions{.capacity = common});
      const auto& first = prompts.front();
      forward({first.begin(), first.begin() + common}, {common}, {prefix.get()});
      prefix_ = prefix;
    }
    memory_.emplace(model, most_rows, room_of_a_row());
  }

  size_t size() const { return rows_.size(); }

  // Takes prompts in, and gives each its first token.
  void start(std::span<const size_t> indices) {
    std::vector<Tensor> last;  // hidden states, [1, D] each
    std::vector<Row*> started;
    for (const size_t index : indices) {
      rows_.push_back(std::make_unique<Row>(new_row(index)));
      if (const Tensor hidden = last_of_prompt(*rows_.back()); hidden.defined()) {
        last.push_back(hidden);
        started.push_back(rows_.back().get());
      }
    }
    if (!started.empty()) {
      add_tokens(at::cat(last), started);
    }
  }

  const std::vector<int64_t>& ids() const { return rows_.front()->ids; }

  // Another token for each.
  void step() {
    std::vector<int64_t> fresh;
    std::vector<KvCache*> caches;
    std::vector<Row*> all;
    for (const auto& row : rows_) {
      fresh.push_back(row->ids.back());
      caches.push_back(&row->cache);
      all.push_back(row.get());
    }
    const std::vector<int64_t> lengths(rows_.size(), 1);
    add_tokens(forward(fresh, lengths, caches), all);
  }

  // Hands over those that have ended.
  void finish(const OnGenerated& done) {
    std::erase_if(rows_, [&](const auto& row) {
      const bool is_done = row->ids.empty() || has_ended(*row, model_, settings_);
      if (is_done) {
        memory_->give_back(row->memory);
        done(row->index, row->ids);
      }
      return is_done;
    });
  }

 private:
  int64_t common() const { return prefix_ == nullptr ? 0 : prefix_->length(); }

  // Tokens behind the common beginning that a row has room for at first: most answers end before.
  int64_t room_of_a_row() const {
    constexpr int64_t kRoomOfAnswer = 512;
    int64_t longest = 0;
    for (const auto& prompt : prompts_) {
      longest = std::max(longest, static_cast<int64_t>(prompt.size()) - common());
    }
    const int64_t window = model_.config().max_position_embeddings - common();
    return std::min(longest + std::min(settings_.max_tokens, kRoomOfAnswer),
                    std::max(longest, window));
  }

  Row new_row(size_t index) {
    const int64_t part = memory_->take();
    return {index,
            part,
            KvCache(model_.config(),
                    {model_.device(), memory_->tokens(), prefix_, memory_->part(part)}),
            {},
            std::mt19937_64(settings_.seed)};
  }

  // [1, D], the final hidden state of the row's prompt, which is then kept; undefined where there
  // is no room for a token behind it.
  Tensor last_of_prompt(Row& row) const {
    const auto& prompt = prompts_[row.index];
    const auto size = static_cast<int64_t>(prompt.size()), own = size - common();
    if (size >= model_.config().max_position_embeddings || settings_.max_tokens <= 0) {
      return {};
    }
    return forward({prompt.begin() + common(), prompt.end()}, {own}, {&row.cache});
  }

  // hidden [rows, D]: another token for each.
  void add_tokens(const Tensor& hidden, const std::vector<Row*>& rows) {
    const Tensor logits = model_.head(hidden);  // [rows, V]
    for (size_t i = 0; i < rows.size(); ++i) {
      add_token(logits[static_cast<int64_t>(i)], settings_, *rows[i]);
    }
  }

  // [sequences, D], the final hidden state of each one's last token.
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
  std::optional<KeptMemory> memory_;
  std::vector<std::unique_ptr<Row>> rows_;
};

}  // namespace

int64_t rows_at_once(const ModelConfig& config, int64_t prompt_tokens, int64_t answer_tokens,
                     uint64_t available_bytes) {
  const int64_t tokens = std::min(prompt_tokens + answer_tokens, config.max_position_embeddings);
  const uint64_t row = kept_bytes(config, std::max<int64_t>(1, tokens));
  return std::clamp<int64_t>(static_cast<int64_t>(available_bytes / row), 1,
                             kernels::kMostSkinnyRows);
}

void generate_all(const Llama& model, const RoutingOptions& routing,
                  const GenerateSettings& settings, const GenerateBatch& prompts) {
  if (prompts.wanted.empty()) {
    return;
  }
  const at::NoGradGuard no_gradients;
  // A GPU's products depend on the number of rows.
  const size_t rows = model.device().is_cpu() ? static_cast<size_t>(prompts.rows) : 1;
  RowBatch batch(model, routing, settings, prompts.prompts,
                 static_cast<int64_t>(std::min(rows, prompts.wanted.size())));
  for (std::span<const size_t> left = prompts.wanted; !left.empty() || batch.size() > 0;) {
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
  const at::NoGradGuard no_gradients;
  const std::vector<std::vector<int64_t>> prompts{prompt};
  std::vector<int64_t> ids;
  RowBatch batch(model, routing, settings, prompts, /*most_rows=*/1);
  batch.start(std::vector<size_t>{0});
  while (batch.size() > 0) {
    if (on_token && !batch.ids().empty()) {
      on_token(batch.ids().back());
    }
    batch.finish([&](size_t /*index*/, const std::vector<int64_t>& all) { ids = all; });
    if (batch.size() > 0) {
      batch.step();
    }
  }
  return ids;
}

}  // namespace moe::model
