#include "core/upcycle/inspect.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/base/error.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"
#include "core/upcycle/expert_sources.h"

namespace moe::model {
namespace {

using at::Tensor;

namespace fs = std::filesystem;

constexpr int64_t kBlockValues = int64_t{1} << 16;  // of each expert

void explain(Inspection& out) {
  if (!out.config.moe) {
    out.stock.emplace_back(fmt::format("all of it: a dense {} folder", out.config.model_type));
    return;
  }
  const MoeConfig& moe = *out.config.moe;
  const route::HfCompatibility stock = moe.router.family->hf_compatibility(moe.router, moe.experts);
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
    out.stock.push_back(fmt::format("router_jitter_noise {}: stock training adds it, moe does not",
                                    moe.router_jitter));
  }
}

// Returns `count` values of each source, from index `begin` on: [sources, count] f64.
Tensor read_block(const std::vector<ExpertMatrix>& sources, int64_t begin, int64_t count) {
  Tensor block = at::empty({std::ssize(sources), count}, at::kFloat);
  float* row = block.data_ptr<float>();
  for (const auto& source : sources) {
    source.file->file().drop(read_values(source, begin, std::span(row, count)));
    row += count;
  }
  return block.to(at::kDouble);
}

// Returns the cosines of a Gram matrix. A zero vector has cosine 0 with all vectors.
Tensor normalize_gram(const Tensor& gram) {
  const Tensor norms = gram.diagonal().sqrt().clamp_min(1e-300);
  return gram / norms.unsqueeze(0) / norms.unsqueeze(1);
}

// Returns the mean cosine of pairs of equal slices in different groups, 1 if there is one group.
double pair_mean(const Tensor& cosines, int64_t granularity) {
  const int64_t groups = cosines.size(0) / granularity;
  const Tensor pairs =  // [groups, groups, slices]
      cosines.reshape({groups, granularity, groups, granularity}).diagonal(0, 1, 3);
  const double others = pairs.sum().item<double>() - cosines.diagonal().sum().item<double>();
  return groups < 2 ? 1.0 : others / (groups * (groups - 1) * granularity);
}

ModelConfig read_checked_config(const io::Checkpoint& folder) {
  ModelConfig config = parse_config(folder.config(), folder.config_name());
  check_tensors(folder, config);
  return config;
}

// Returns the name of a matrix of an expert within its layer. `part` is an index of kDenseTensors.
std::string expert_tensor(const ModelConfig& config, int64_t expert, size_t part) {
  const MoeNames names = moe_names(config.moe->form);
  return fmt::format("{}{}{}", names.experts, expert,
                     std::array{names.gate, names.up, names.down}[part]);
}

constexpr std::array kDenseTensors = {"mlp.gate_proj.weight", "mlp.up_proj.weight",
                                      "mlp.down_proj.weight"};

void check_comparable(const io::Checkpoint& mixture, const ModelConfig& config,
                      const io::Checkpoint& other, const ModelConfig& other_config) {
  const auto refuse_if = [&](bool differs, const std::string& difference) {
    USER_ERROR_IF(differs, "{} and {}: {}", mixture.folder().string(), other.folder().string(),
                  difference);
  };
  refuse_if(!config.moe,
            "the first is a dense folder; experts are compared, so the first must be a mixture");
  const MoeConfig& moe = *config.moe;
  refuse_if(moe.experts % moe.granularity != 0,
            fmt::format("{} experts are not a multiple of moe.granularity {}", moe.experts,
                        moe.granularity));
  refuse_if(config.hidden_size != other_config.hidden_size,
            fmt::format("widths {} and {} cannot be compared", config.hidden_size,
                        other_config.hidden_size));
  for (const int64_t layer : moe.layers) {
    refuse_if(layer >= other_config.layers, fmt::format("only the first has a layer {}", layer));
    const bool is_moe = other_config.is_moe_layer(layer);
    const int64_t own_width = moe.expert_width * (is_moe ? 1 : moe.granularity);
    const int64_t width = is_moe ? other_config.moe->expert_width : other_config.intermediate_size;
    refuse_if(width != own_width,
              fmt::format("the experts of layer {} have width {}, those of the second {}", layer,
                          own_width, width));
    const int64_t experts = is_moe ? other_config.moe->experts : moe.experts;
    refuse_if(experts != moe.experts,
              fmt::format("layer {} has {} experts and {}", layer, moe.experts, experts));
  }
}

// Returns the cosines [E + N, E + N] of the E experts of a layer of `mixture` and the N matrices of
// `other`: its E experts, or the slices of its dense feed-forward.
Tensor expert_cosines(const io::Checkpoint& mixture, const ModelConfig& config,
                      const io::Checkpoint& other, const ModelConfig& other_config, int64_t layer) {
  const int64_t experts = config.moe->experts;
  const bool is_moe = other_config.is_moe_layer(layer);
  const std::string prefix = layer_prefix(layer);
  const int64_t slices = config.moe->granularity;
  const int64_t count = experts + (is_moe ? experts : slices);
  Tensor gram = at::zeros({count, count}, at::kDouble);
  for (size_t part = 0; part < kDenseTensors.size(); ++part) {
    std::vector<ExpertMatrix> sources;
    for (int64_t expert = 0; expert < experts; ++expert) {
      sources.push_back(expert_slice(mixture, prefix + expert_tensor(config, expert, part), 0, 1));
    }
    for (int64_t expert = 0; expert < count - experts; ++expert) {
      sources.push_back(
          is_moe ? expert_slice(other, prefix + expert_tensor(other_config, expert, part), 0, 1)
                 : expert_slice(other, prefix + kDenseTensors[part], expert, slices));
    }
    const int64_t elements = sources[0].info.elements();
    for (int64_t begin = 0; begin < elements; begin += kBlockValues) {
      const Tensor block = read_block(sources, begin, std::min(kBlockValues, elements - begin));
      gram.addmm_(block, block.t());
    }
  }
  return normalize_gram(gram);
}

Tensor router_rows(const io::Checkpoint& folder, const ModelConfig& config, int64_t layer) {
  const std::string name = layer_prefix(layer) + moe_names(config.moe->form).router;
  const int64_t elements = folder.info(name).elements();
  return read_block({expert_slice(folder, name, 0, 1)}, 0, elements)
      .view({config.moe->experts, elements / config.moe->experts});
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
  out.config = read_checked_config(checkpoint);
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
  const uint64_t ranks = out.config.moe ? out.config.moe->ep_ranks : 1;
  out.bytes_per_rank = out.bytes - expert_bytes + expert_bytes / ranks;
  const fs::path tokenizer = io::tokenizer_file(folder);
  out.tokenizer = tokenizer.empty() ? "none" : tokenizer.filename().string();
  if (out.config.moe) {
    out.function = stored_verdict(checkpoint);
    if (out.function.state == StoredVerdict::State::kNoCertificate &&
        out.config.moe->source_name.empty()) {
      out.function.words = "not measured: config.json names no dense model as its source";
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

std::vector<LayerDistances> expert_distances(const io::Checkpoint& mixture,
                                             const io::Checkpoint& other) {
  const ModelConfig config = read_checked_config(mixture),
                    other_config = read_checked_config(other);
  check_comparable(mixture, config, other, other_config);
  const int64_t experts = config.moe->experts, slices = config.moe->granularity;
  std::vector<LayerDistances> result;
  for (const int64_t layer : config.moe->layers) {
    LayerDistances distances;
    distances.layer = layer;
    const Tensor cosines = expert_cosines(mixture, config, other, other_config, layer);
    const Tensor own = cosines.slice(0, 0, experts);
    distances.between_experts = pair_mean(own.slice(1, 0, experts), slices);
    const Tensor to_other = own.slice(1, experts);  // [E, E], or [E, G] if dense there
    distances.to_other =
        other_config.is_moe_layer(layer)
            ? to_other.diagonal().mean().item<double>()
            : to_other.reshape({-1, slices, slices}).diagonal(0, 1, 2).mean().item<double>();
    const Tensor rows = router_rows(mixture, config, layer);
    distances.between_routers = pair_mean(normalize_gram(rows.mm(rows.t())), slices);
    if (other_config.is_moe_layer(layer)) {
      const Tensor all = at::cat({rows, router_rows(other, other_config, layer)});
      distances.router_to_other =
          normalize_gram(all.mm(all.t())).diagonal(experts).mean().item<double>();
    }
    result.push_back(distances);
  }
  return result;
}

OrderedJson to_json(const std::vector<LayerDistances>& layers) {
  OrderedJson list = OrderedJson::array();
  for (const auto& layer : layers) {
    OrderedJson entry = {{"layer", layer.layer},
                         {"cosine_between_experts", layer.between_experts},
                         {"cosine_to_other", layer.to_other},
                         {"cosine_between_router_rows", layer.between_routers},
                         {"cosine_of_router_rows_to_other", nullptr}};
    if (layer.router_to_other) {
      entry["cosine_of_router_rows_to_other"] = *layer.router_to_other;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace moe::model
