#include "core/model/convert/expert_distances.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"
#include "core/model/convert/granularity.h"

namespace moe::model {
namespace {

using at::Tensor;

constexpr int64_t kComparedValues = int64_t{1} << 16;

// [sources, count] in f64: the numbers from `begin` on of each.
Tensor read_block(const std::vector<ExpertMatrix>& sources, int64_t begin, int64_t count) {
  Tensor block = at::empty({static_cast<int64_t>(sources.size()), count}, at::kFloat);
  float* row = block.data_ptr<float>();
  for (const auto& source : sources) {
    source.file->file().drop(
        read_values(source, begin, std::span(row, static_cast<size_t>(count))));
    row += count;
  }
  return block.to(at::kDouble);
}

// Adds the inner products of all sources with one another: gram [n, n].
void add_products(const std::vector<ExpertMatrix>& sources, Tensor& gram) {
  const int64_t elements = sources[0].info.elements();
  for (int64_t begin = 0; begin < elements; begin += kComparedValues) {
    const Tensor block = read_block(sources, begin, std::min(kComparedValues, elements - begin));
    gram.addmm_(block, block.t());
  }
}

// The cosines in place of the products; a vector of zeros has cosine 0 with all others.
Tensor cosines_of(const Tensor& gram) {
  const Tensor norms = gram.diagonal().sqrt().clamp_min(1e-300);
  return gram / norms.unsqueeze(0) / norms.unsqueeze(1);
}

// Over pairs of the same slice, of experts that are `granularity` slices a group.
double mean_of_pairs(const Tensor& cosines, int64_t granularity) {
  const int64_t groups = cosines.size(0) / granularity;
  const Tensor pairs =  // [groups, groups, slices]
      cosines.reshape({groups, granularity, groups, granularity}).diagonal(0, 1, 3);
  const double others = pairs.sum().item<double>() - cosines.diagonal().sum().item<double>();
  return groups < 2 ? 1.0 : others / static_cast<double>(groups * (groups - 1) * granularity);
}

ModelConfig config_of(const io::Checkpoint& folder) {
  ModelConfig config = parse_config(folder.config(), folder.config_name());
  check_tensors(folder, config);
  return config;
}

std::vector<std::string> expert_tensors(const ModelConfig& config, int64_t expert) {
  const MoeNames names = moe_names(config.moe->form);
  std::vector<std::string> found;
  for (const auto& part : {names.gate, names.up, names.down}) {
    found.push_back(fmt::format("{}{}{}", names.experts, expert, part));
  }
  return found;
}

// The same three of a dense layer.
const std::vector<std::string> kDenseTensors = {"mlp.gate_proj.weight", "mlp.up_proj.weight",
                                                "mlp.down_proj.weight"};

void check_comparable(const io::Checkpoint& mixture, const ModelConfig& config,
                      const io::Checkpoint& other, const ModelConfig& other_config) {
  const auto refuse = [&](const std::string& what) {
    throw UserError("{} and {}: {}", mixture.folder().string(), other.folder().string(), what);
  };
  if (!config.moe) {
    refuse("the first is a dense folder; experts are compared, so a mixture stands first");
  }
  if (config.moe->experts % config.moe->granularity != 0) {
    refuse(fmt::format("{} experts are no groups of moe.granularity {}", config.moe->experts,
                       config.moe->granularity));
  }
  if (config.hidden_size != other_config.hidden_size) {
    refuse(fmt::format("widths {} and {} cannot be compared", config.hidden_size,
                       other_config.hidden_size));
  }
  for (const int64_t layer : config.moe->layers) {
    if (layer >= other_config.layers) {
      refuse(fmt::format("layer {} is in the first alone", layer));
    }
    const bool both = other_config.is_moe_layer(layer);
    const int64_t granularity = both ? 1 : config.moe->granularity;
    const int64_t width = both ? other_config.moe->expert_width : other_config.intermediate_size;
    if (width != config.moe->expert_width * granularity) {
      refuse(fmt::format("the experts of layer {} have width {}, what they are compared with {}",
                         layer, config.moe->expert_width * granularity, width));
    }
    if (both && other_config.moe->experts != config.moe->experts) {
      refuse(fmt::format("layer {} has {} experts and {}", layer, config.moe->experts,
                         other_config.moe->experts));
    }
  }
}

// [E + other, E + other] cosines of the experts, then of what they are compared with: E experts, or
// the slices of a dense feed-forward.
Tensor expert_cosines(const io::Checkpoint& mixture, const ModelConfig& config,
                      const io::Checkpoint& other, const ModelConfig& other_config, int64_t layer) {
  const int64_t experts = config.moe->experts;
  const bool both = other_config.is_moe_layer(layer);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const int64_t slices = config.moe->granularity;
  const int64_t count = experts + (both ? experts : slices);
  Tensor gram = at::zeros({count, count}, at::kDouble);
  for (size_t part = 0; part < kDenseTensors.size(); ++part) {
    std::vector<ExpertMatrix> sources;
    for (int64_t expert = 0; expert < experts; ++expert) {
      sources.push_back(slice_of(mixture, prefix + expert_tensors(config, expert)[part], 0, 1));
    }
    for (int64_t expert = 0; expert < count - experts; ++expert) {
      sources.push_back(
          both ? slice_of(other, prefix + expert_tensors(other_config, expert)[part], 0, 1)
               : slice_of(other, prefix + kDenseTensors[part], expert, slices));
    }
    add_products(sources, gram);
  }
  return cosines_of(gram);
}

Tensor router_rows(const io::Checkpoint& folder, const ModelConfig& config, int64_t layer) {
  const std::string name =
      fmt::format("model.layers.{}.{}", layer, moe_names(config.moe->form).router);
  const int64_t elements = folder.info(name).elements();
  return read_block({slice_of(folder, name, 0, 1)}, 0, elements)
      .view({config.moe->experts, elements / config.moe->experts});
}

}  // namespace

std::vector<LayerDistances> expert_distances(const io::Checkpoint& mixture,
                                             const io::Checkpoint& other) {
  const ModelConfig config = config_of(mixture), other_config = config_of(other);
  check_comparable(mixture, config, other, other_config);
  const int64_t experts = config.moe->experts, slices = config.moe->granularity;
  std::vector<LayerDistances> found;
  for (const int64_t layer : config.moe->layers) {
    LayerDistances distances;
    distances.layer = layer;
    const Tensor cosines = expert_cosines(mixture, config, other, other_config, layer);
    const Tensor own = cosines.slice(0, 0, experts);
    distances.between_experts = mean_of_pairs(own.slice(1, 0, experts), slices);
    const Tensor to_other = own.slice(1, experts);  // [E, E], or [E, G] of a dense layer
    distances.to_other =
        other_config.is_moe_layer(layer)
            ? to_other.diagonal().mean().item<double>()
            : to_other.reshape({-1, slices, slices}).diagonal(0, 1, 2).mean().item<double>();
    const Tensor rows = router_rows(mixture, config, layer);
    distances.between_routers = mean_of_pairs(cosines_of(rows.mm(rows.t())), slices);
    if (other_config.is_moe_layer(layer)) {
      const Tensor all = at::cat({rows, router_rows(other, other_config, layer)});
      distances.router_to_other =
          cosines_of(all.mm(all.t())).diagonal(experts).mean().item<double>();
    }
    found.push_back(distances);
  }
  return found;
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
