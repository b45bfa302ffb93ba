#include "core/model/convert/inspect.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/io/checkpoint.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

std::string tokenizer_of(const fs::path& folder) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (fs::exists(folder / name)) {
      return name;
    }
  }
  return "none";
}

void explain(Inspection& out) {
  if (!out.config.moe) {
    out.stock.emplace_back(fmt::format("all of it: a dense {} folder", out.config.model_type));
    return;
  }
  const MoeConfig& moe = *out.config.moe;
  const route::StockWords stock = moe.router.family->stock_words(moe.router, moe.experts);
  const bool is_own = !route::own_architecture(moe.router).model_type.empty();
  if (is_own || moe.gate_scale != 1.0) {
    out.stock.push_back(fmt::format(
        "nothing: model_type {} is refused by stock tools, which would compute something else",
        out.model_type));
    out.needs_moe = is_own ? stock.not_computed
                           : std::vector<std::string>{fmt::format("gate_scale {}", moe.gate_scale)};
    return;
  }
  out.stock = stock.computed;
  out.needs_moe = stock.not_computed;
  if (moe.router_jitter > 0) {
    out.stock.push_back(fmt::format(
        "router_jitter_noise {}: stock training adds it, moe trains without", moe.router_jitter));
  }
}

}  // namespace

std::string layer_ranges(const std::vector<int64_t>& layers) {
  std::string text;
  for (size_t first = 0; first < layers.size();) {
    size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ", ";
    text += first == last ? fmt::format("{}", layers[first])
                          : fmt::format("{}-{}", layers[first], layers[last]);
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

Inspection inspect(const fs::path& folder) {
  const io::Checkpoint checkpoint(folder);
  Inspection out;
  out.folder = folder.string();
  out.config = parse_config(checkpoint.config(), checkpoint.config_name());
  check_tensors(checkpoint, out.config);
  out.model_type = get_string(checkpoint.config(), "model_type", checkpoint.config_name(), "llama");
  out.parameters = count_parameters(out.config);
  std::map<std::string, uint64_t> by_dtype;
  uint64_t expert_bytes = 0;
  for (const auto& info : checkpoint.tensors()) {
    const auto bytes = static_cast<uint64_t>(info.bytes());
    by_dtype[io::dtype_name(info.dtype)] += bytes;
    out.bytes += bytes;
    expert_bytes += info.name.find(".experts.") == std::string::npos ? 0 : bytes;
  }
  out.bytes_by_dtype.assign(by_dtype.begin(), by_dtype.end());
  const uint64_t ranks = out.config.moe ? static_cast<uint64_t>(out.config.moe->ep_ranks) : 1;
  out.bytes_per_rank = out.bytes - expert_bytes + expert_bytes / ranks;
  out.tokenizer = tokenizer_of(folder);
  if (out.config.moe) {
    out.function = stored_verdict(checkpoint);
    if (out.function.state == StoredVerdict::State::kNoCertificate &&
        out.config.moe->source_name.empty()) {
      out.function.words = "not measured: the folder names no dense model that it was made from";
    }
  }
  explain(out);
  return out;
}

OrderedJson to_json(const Inspection& inspection) {
  const ModelConfig& config = inspection.config;
  OrderedJson out;
  out["folder"] = inspection.folder;
  out["model_type"] = inspection.model_type;
  out["parameters"] = {{"total", inspection.parameters.total},
                       {"active", inspection.parameters.active}};
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["layers"] = config.layers;
  out["heads"] = config.heads;
  out["kv_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  out["qkv_bias"] = config.qkv_bias;
  out["qk_norm"] = config.qk_norm;
  out["dtype"] = config.dtype;
  out["moe"] = nullptr;
  if (config.moe) {
    out["moe"] = {{"layers", config.moe->layers},
                  {"experts", config.moe->experts},
                  {"expert_width", config.moe->expert_width},
                  {"shared_expert_width", config.moe->shared_expert_width},
                  {"granularity", config.moe->granularity},
                  {"router", route::to_string(config.moe->router)},
                  {"gate_scale", config.moe->gate_scale},
                  {"ep_ranks", config.moe->ep_ranks},
                  {"preserves_function", inspection.function.words},
                  {"function",
                   {{"state", to_string(inspection.function.state)},
                    {"verdict", inspection.function.verdict.empty()
                                    ? OrderedJson()
                                    : OrderedJson(inspection.function.verdict)}}}};
  }
  out["bytes"] = inspection.bytes;
  out["bytes_per_rank"] = inspection.bytes_per_rank;
  out["bytes_by_dtype"] = OrderedJson::object();
  for (const auto& [dtype, bytes] : inspection.bytes_by_dtype) {
    out["bytes_by_dtype"][dtype] = bytes;
  }
  out["tokenizer"] = inspection.tokenizer;
  out["stock_tools"] = inspection.stock;
  out["needs_moe"] = inspection.needs_moe;
  return out;
}

}  // namespace moe::model
