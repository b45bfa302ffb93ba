#include "core/model/convert/upcycle.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <span>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/resources.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/io/output_checks.h"
#include "core/io/staged_folder.h"
#include "core/model/config/layer_list.h"
#include "core/model/convert/dtype_conversion.h"
#include "core/model/convert/random_tensor.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSpaceMargin = uint64_t{1} << 20;  // headers, config, tokenizer
constexpr std::string_view kExperts = ".mlp.experts.", kSharedMatrix = ".mlp.shared_expert.",
                           kDown = ".down_proj.weight";
// Times a gate of zeros, whose sigmoid is a half, the shared expert is the dense feed-forward.
// Twice a number is exact in every type.
constexpr float kSharedScale = 2.0F;

void check_settings(const UpcycleSettings& settings, const io::Checkpoint& dense,
                    const ModelConfig& parent) {
  if (parent.moe) {
    throw UserError(
        "{}: is a mixture of experts already (router {}); upcycling starts from a dense folder",
        dense.folder().string(), route::to_string(parent.moe->router));
  }
  if (settings.experts < 1 || settings.experts > kMaxExperts) {
    throw UserError("--experts {}: must be between 1 and {}", settings.experts, kMaxExperts);
  }
  const int64_t copies = count_copies(settings.expert_parents);
  if (!settings.expert_parents.empty() && copies != settings.experts) {
    throw UserError("--experts {}: the --expert folders make {}; leave --experts out, or say it",
                    settings.experts, copies);
  }
  if (settings.expert_parents.empty() && settings.mean_rest) {
    throw UserError("--rest mean: is the mean of --expert folders, and there are none");
  }
  check_granularity(settings.granularity, settings.experts, kMaxExperts, parent.intermediate_size);
  if (settings.shared_expert && !settings.expert_parents.empty()) {
    throw UserError(
        "--shared-expert: routed experts begin with a down_proj of zeros, so that nothing of the "
        "--expert folders would be computed; leave one of the two out");
  }
  if (settings.shared_expert) {
    check_may_share(parent, dense.folder().string());
  }
  check_variation(settings.vary, parent.intermediate_size / settings.granularity);
  route::check_router(settings.router, settings.experts);
  const int64_t ranks = settings.ep_ranks.value_or(settings.experts);
  const int64_t experts = settings.experts * settings.granularity;
  if (ranks < 1 || experts % ranks != 0) {
    throw UserError(
        "--ep-ranks {}: {} experts do not divide over so many ranks; give a divisor of {}", ranks,
        experts, experts);
  }
  if (settings.gate_scale && !(std::isfinite(*settings.gate_scale) && *settings.gate_scale > 0)) {
    throw UserError("--gate-scale {}: must be a positive number, or auto", *settings.gate_scale);
  }
  if (settings.router_std && !(std::isfinite(*settings.router_std) && *settings.router_std >= 0)) {
    throw UserError("--router-std {}: must be zero or a positive number", *settings.router_std);
  }
  if (settings.router_std && settings.router_init.kind != RouterInit::Kind::kRandom) {
    throw UserError(
        "--router-std {}: only a random router is drawn, --router-init {} is scaled by "
        "--router-entropy; leave one out",
        *settings.router_std, to_string(settings.router_init));
  }
  check_router_init(settings.router_init, settings.router, settings.experts);
}

std::string name_of(const io::Checkpoint& checkpoint) {
  return fs::canonical(checkpoint.folder()).filename().string();
}

std::string file_sha256(const fs::path& file) {
  Sha256 hash;
  hash.update(io::MappedFile(file).bytes());
  return hash.hex();
}

std::string config_dtype(io::DType dtype) {
  return dtype == io::DType::kBF16 ? "bfloat16" : dtype == io::DType::kF16 ? "float16" : "float32";
}

bool given(const Json& json, const char* key) {
  return json.contains(key) && !json.at(key).is_null();
}

ModelConfig child_config(const io::Checkpoint& dense, const UpcycleSettings& settings,
                         const ModelConfig& parent, const std::string& sha256) {
  ModelConfig child = parent;
  if (settings.dtype) {
    child.dtype = config_dtype(*settings.dtype);
  } else if (!given(dense.config(), "dtype") && !given(dense.config(), "torch_dtype")) {
    child.dtype = config_dtype(dense.info("model.embed_tokens.weight").dtype);
  }
  MoeConfig moe;
  moe.layers = parse_layers(settings.layers, parent.layers);
  moe.granularity = settings.granularity;
  moe.experts = settings.experts * settings.granularity;
  moe.expert_width = parent.intermediate_size / settings.granularity;
  moe.shared_expert_width = settings.shared_expert ? parent.intermediate_size : 0;
  moe.router = route::with_granularity(settings.router, settings.granularity);
  moe.gate_scale = settings.gate_scale.value_or(1.0);
  moe.ep_ranks = settings.ep_ranks.value_or(settings.experts);
  moe.lb_coef = route::default_lb_coef(settings.router);
  moe.entropy_coef = route::default_entropy_coef(settings.router);
  moe.router_std = settings.router_std.value_or(parent.initializer_range);
  moe.router_seed = settings.seed;
  moe.source_name = name_of(dense);
  moe.source_sha256 = sha256;
  child.moe = std::move(moe);
  return child;
}

// The tensor `source` of a parent as `info` describes it: its bytes, converted where types differ.
io::TensorSource copied_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                               const std::string& source) {
  const io::DType from = parent.info(source).dtype;
  if (info.dtype == from) {
    return {info, [&parent, source](io::SafetensorsWriter& writer) {
              writer.copy(parent.file_of(source), source);
            }};
  }
  return {info, [&parent, source, from, to = info.dtype](io::SafetensorsWriter& writer) {
            const io::SafetensorsFile& file = parent.file_of(source);
            write_converted(file.bytes(source), from, writer, to);
            file.file().drop(file.bytes(source));
          }};
}

// A matrix of expert `expert`: the slice that it is of its parent's, varied where that is asked.
io::TensorSource sliced_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                               int64_t expert, const UpcycleSettings& settings) {
  const int64_t granularity = settings.granularity;
  return {info, [&parent, info, slice = expert % granularity, granularity, vary = settings.vary,
                 seed = static_cast<uint64_t>(settings.seed)](io::SafetensorsWriter& writer) {
            ExpertMatrix matrix = slice_of(parent, dense_name(info.name), slice, granularity);
            MOE_CHECK(matrix.info.shape == info.shape, "{}", info.name);
            matrix.info = info;
            vary ? write_varied(writer, matrix, vary, seed) : write_matrix(writer, matrix);
          }};
}

// Weights of 16 bits hold a power of two times any of them, and no other multiple of all.
void check_factor(int64_t granularity, io::DType dtype) {
  if (dtype != io::DType::kF32 && !std::has_single_bit(static_cast<uint64_t>(granularity))) {
    throw UserError(
        "--granularity {0}: down_proj is multiplied by it and stored in {1}, which would round and "
        "lose the parent's function; give a power of two, or --dtype fp32",
        granularity, config_dtype(dtype));
  }
}

void write_row(io::SafetensorsWriter& writer, std::span<const float> row, int64_t times) {
  for (int64_t i = 0; i < times; ++i) {
    writer.write(std::as_bytes(row));
  }
}

// A router [E G, D] whose rows are drawn as for G = 1, each for all slices of its group.
io::TensorSource drawn_router(const io::TensorInfo& info, const MoeConfig& moe) {
  return {info, [info, std = moe.router_std, seed = static_cast<uint64_t>(moe.router_seed),
                 granularity = moe.granularity](io::SafetensorsWriter& writer) {
            MOE_CHECK(info.dtype == io::DType::kF32, "{}", info.name);
            Random random(seed, info.name);
            std::vector<float> row(static_cast<size_t>(info.shape.at(1)));
            for (int64_t expert = 0; expert < info.shape[0]; expert += granularity) {
              random.fill_normal(row, std);
              write_row(writer, row, granularity);
            }
          }};
}

// 7 of model.layers.3.mlp.experts.7.up_proj.weight, nothing of other tensors.
std::optional<int64_t> expert_index(const std::string& name) {
  const size_t begin = name.find(kExperts);
  return begin == std::string::npos
             ? std::nullopt
             : std::optional(std::stoll(name.substr(begin + kExperts.size())));
}

// Whether a tensor of a mixture with a shared expert is zeros: its gate and the routed down_proj.
bool is_zero_beside_shared(const std::string& name) {
  return is_shared_expert_gate(name) || (expert_index(name) && name.ends_with(kDown));
}

bool is_shared_down(const std::string& name) {
  return name.find(kSharedMatrix) != std::string::npos && name.ends_with(kDown);
}

// The type that a tensor of the child is stored in: that of its source, or what --dtype says.
io::DType child_dtype(const io::TensorInfo& info, const io::Checkpoint& dense,
                      const UpcycleSettings& settings) {
  const std::string source = dense_name(info.name);
  return settings.dtype.value_or(dense.has(source) ? dense.info(source).dtype : info.dtype);
}

// One tensor of the child: drawn if it is a router, else from the dense folder or from other
// parents.
io::TensorSource child_tensor(io::TensorInfo info, const io::Checkpoint& dense,
                              const UpcycleSettings& settings, const UpcyclePlan& plan) {
  if (is_router(info.name)) {
    return drawn_router(info, *plan.child.moe);
  }
  if (is_router_bias(info.name)) {
    return {info, [info](io::SafetensorsWriter& writer) { write_constant(writer, info, 0.0F); }};
  }
  const std::string source = dense_name(info.name);
  info.dtype = child_dtype(info, dense, settings);
  if (settings.shared_expert && is_zero_beside_shared(info.name)) {
    return {info, [info](io::SafetensorsWriter& writer) { write_constant(writer, info, 0.0F); }};
  }
  if (is_shared_down(info.name)) {
    ExpertMatrix doubled = slice_of(dense, source, 0, 1);
    doubled.info = info;
    doubled.factor = kSharedScale;
    return {info, [doubled](io::SafetensorsWriter& writer) { write_matrix(writer, doubled); }};
  }
  if (const auto expert = expert_index(info.name)) {
    if (!settings.shared_expert) {  // beside which down_proj is zeros
      check_factor(settings.granularity, info.dtype);
    }
    const io::Checkpoint& parent = plan.expert_parents->of_expert(*expert);
    return settings.vary || settings.granularity > 1
               ? sliced_tensor(info, parent, *expert, settings)
               : copied_tensor(info, parent, source);
  }
  if (settings.mean_rest) {
    return {info, [info, parents = plan.expert_parents](io::SafetensorsWriter& writer) {
              write_mean(writer, info, parents->folders());
            }};
  }
  return copied_tensor(info, dense, source);
}

// The tensors of parents that a tensor of the child is made of; none for one that is drawn or
// constant.
std::vector<std::pair<const io::Checkpoint*, std::string>> parent_tensors(
    const std::string& name, const io::Checkpoint& dense, const UpcycleSettings& settings,
    const UpcyclePlan& plan) {
  if (is_router(name) || is_router_bias(name) ||
      (settings.shared_expert && is_zero_beside_shared(name))) {
    return {};
  }
  const std::string source = dense_name(name);
  if (const auto expert = expert_index(name)) {
    return {{&plan.expert_parents->of_expert(*expert), source}};
  }
  if (!settings.mean_rest || is_shared_down(name)) {
    return {{&dense, source}};
  }
  std::vector<std::pair<const io::Checkpoint*, std::string>> sources;
  for (const auto& parent : plan.expert_parents->folders()) {
    sources.emplace_back(parent.get(), source);
  }
  return sources;
}

bool holds_all_values(io::DType to, io::DType from) { return to == from || to == io::DType::kF32; }

// Adds a tensor of the child, whose sources are checked as it is written.
void add_tensor(const io::TensorInfo& info, const io::Checkpoint& dense,
                const UpcycleSettings& settings, UpcyclePlan& plan) {
  io::TensorSource tensor = child_tensor(info, dense, settings, plan);
  const auto sources = parent_tensors(info.name, dense, settings, plan);
  for (const auto& [parent, name] : sources) {
    plan.rounds_weights |= !holds_all_values(tensor.info.dtype, parent->info(name).dtype);
  }
  tensor.write = [write = std::move(tensor.write), sources,
                  finite = plan.finite](io::SafetensorsWriter& writer) {
    for (const auto& [parent, name] : sources) {
      finite->check(*parent, name);
    }
    write(writer);
  };
  plan.tensors.push_back(std::move(tensor));
}

void add_tensors(const io::Checkpoint& dense, const UpcycleSettings& settings, UpcyclePlan& plan) {
  for (const auto& info : expected_tensors(plan.child)) {
    add_tensor(info, dense, settings, plan);
  }
  for (const auto& info : shared_expert_tensors(plan.child)) {
    plan.tensors.push_back(
        {info, [info](io::SafetensorsWriter& writer) { write_constant(writer, info, 0.0F); }});
  }
  for (const auto& tensor : plan.tensors) {
    plan.bytes += static_cast<uint64_t>(tensor.info.bytes());
  }
}

// The routers of `start` in place of those that would be drawn, a row for each group of
// `granularity` experts.
void set_routers(std::vector<io::TensorSource>& tensors, const RouterStart& start,
                 int64_t granularity) {
  for (const auto& layer : start.layers) {
    const auto name = fmt::format("model.layers.{}.mlp.gate.weight", layer.layer);
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& tensor) { return tensor.info.name == name; });
    MOE_CHECK(found != tensors.end() && found->info.dtype == io::DType::kF32 &&
                  found->info.elements() == granularity * static_cast<int64_t>(layer.rows.size()),
              "{} of {} numbers", name, layer.rows.size());
    found->write = [rows = layer.rows, width = static_cast<size_t>(found->info.shape.at(1)),
                    granularity](io::SafetensorsWriter& writer) {
      for (size_t first = 0; first < rows.size(); first += width) {
        write_row(writer, std::span(rows).subspan(first, width), granularity);
      }
    };
  }
}

// What upcycle.json says as "router_init".
OrderedJson describe_routers(const MoeConfig& moe, const RouterInit& init,
                             const std::optional<RouterStart>& start) {
  OrderedJson json;
  if (init.kind == RouterInit::Kind::kRandom) {
    json["std"] = moe.router_std;
  } else {
    json["kind"] = init.kind == RouterInit::Kind::kPrompts ? "prompts" : "cluster";
    json["file_sha256"] = file_sha256(init.file);
  }
  json["seed"] = moe.router_seed;
  if (start) {
    json["entropy"] = init.wanted_entropy();
    json.update(to_json(*start));
  }
  return json;
}

// --force may replace an old result, never the model it is made from.
void check_out(const io::Checkpoint& dense, const UpcyclePlan& plan, const fs::path& out) {
  const auto check = [&](const fs::path& parent) {
    if (io::lies_in(parent, out)) {
      throw UserError("{}: holds the dense model {}; give another output folder", out.string(),
                      parent.string());
    }
  };
  check(dense.folder());
  for (const auto& parent : plan.expert_parents->folders()) {
    check(parent->folder());
  }
}

// Where a mixture that is only taken for one has a tensor from: whole experts from the dense
// feed-forward, slices from those of the first group, which are made.
std::string source_in_view(const std::string& name, int64_t granularity) {
  const auto expert = expert_index(name);
  if (!expert || granularity == 1) {
    return dense_name(name);
  }
  const size_t begin = name.find(kExperts) + kExperts.size();
  return fmt::format("{}{}{}", name.substr(0, begin), *expert % granularity,
                     name.substr(name.find('.', begin)));
}

OrderedJson describe_source(const std::string& name, const std::string& config_sha256,
                            const std::string& sampled_sha256) {
  return {{"name", name},
          {"config_sha256", config_sha256},
          {"tensor_names_types_shapes_and_first_4096_bytes_sha256", sampled_sha256}};
}

// Which expert is whose; null where all are the dense folder's.
OrderedJson describe_parents(const ExpertParents& parents) {
  OrderedJson list;
  for (const auto& parent : parents.folders()) {
    OrderedJson entry =
        describe_source(name_of(*parent), config_sha256(*parent), sampled_sha256(*parent));
    entry["experts"] = parents.experts_of(*parent);
    list.push_back(std::move(entry));
  }
  return list;
}

OrderedJson describe(const UpcyclePlan& plan, const UpcycleSettings& settings, double gate_scale,
                     const std::optional<RouterStart>& start) {
  const MoeConfig& moe = *plan.child.moe;
  const route::FunctionPreservation preserves =
      preserves_parent(moe, gate_scale, changes_function(settings, plan));
  OrderedJson out;
  out["moe_version"] = kVersion;
  out["source"] = describe_source(moe.source_name, plan.config_sha256, plan.sampled_sha256);
  if (settings.last_lr) {
    out["source"]["last_learning_rate"] = *settings.last_lr;
  }
  out["experts"] = moe.experts;
  out["granularity"] = moe.granularity;
  out["experts_from"] = describe_parents(*plan.expert_parents);
  out["rest"] = settings.mean_rest ? "mean" : "base";
  out["vary"] = to_string(settings.vary);
  out["shared_expert"] = settings.shared_expert;
  out["layers"] = moe.layers;
  out["layers_flag"] = settings.layers;
  out["router"] = route::to_string(moe.router);
  out["router_init"] = describe_routers(moe, settings.router_init, start);
  out["ep_ranks"] = moe.ep_ranks;
  out["gate_scale"] = gate_scale;
  out["dtype"] = settings.dtype ? plan.child.dtype : "keep";
  out["shard_bytes"] = settings.shard_bytes;
  out["tensor_bytes"] = plan.bytes;
  out["parameters"] = {
      {"dense", plan.dense.total}, {"total", plan.mixture.total}, {"active", plan.mixture.active}};
  out["preserves_function"] = {{"exact", preserves.exact}, {"words", preserves.words}};
  return out;
}

}  // namespace

std::string dense_name(const std::string& name) {
  if (const size_t shared = name.find(kSharedMatrix); shared != std::string::npos) {
    return name.substr(0, shared) + ".mlp." + name.substr(shared + kSharedMatrix.size());
  }
  const size_t begin = name.find(kExperts);
  if (begin == std::string::npos) {
    return name;
  }
  const size_t dot = name.find('.', begin + kExperts.size());
  MOE_CHECK(dot != std::string::npos, "{}", name);
  return name.substr(0, begin) + ".mlp" + name.substr(dot);
}

void FiniteWeights::check(const io::Checkpoint& parent, const std::string& name) {
  const io::SafetensorsFile& file = parent.file_of(name);
  if (!checked_.emplace(&file, name).second) {
    return;
  }
  constexpr size_t kBlockBytes = size_t{8} << 20;
  const auto bytes = parent.bytes(name);
  const io::DType dtype = parent.info(name).dtype;
  for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    const auto block = bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin));
    if (const auto found = find_non_finite(block, dtype)) {
      throw UserError(
          "{}: tensor '{}' has a weight that is NaN or infinite (value {}); a mixture of such a "
          "model computes nothing, give a checkpoint whose weights are finite",
          parent.folder().string(), printable(name),
          begin / static_cast<size_t>(io::dtype_bytes(dtype)) + *found);
    }
    file.file().drop(block);
  }
}

std::string changes_function(const UpcycleSettings& settings, const UpcyclePlan& plan) {
  std::vector<std::string> reasons;
  if (!settings.shared_expert) {  // beside it varied copies, too, add zeros
    if (!settings.expert_parents.empty()) {
      reasons.emplace_back("the experts come from other parents, which training has to reconcile");
    }
    if (settings.vary) {
      reasons.push_back(
          fmt::format("the copies are varied by --vary {}, which training has to recover",
                      to_string(settings.vary)));
    }
  }
  if (plan.rounds_weights) {
    reasons.push_back(
        fmt::format("the weights are rounded to {} (--dtype keep does not)", plan.child.dtype));
  }
  return reasons.empty() ? "" : fmt::format("not preserved: {}", fmt::join(reasons, ", and "));
}

void check_may_share(const ModelConfig& parent, const std::string& where) {
  if (parent.qk_norm) {
    throw UserError(
        "--shared-expert: {} is a {}, whose mixture is a qwen3_moe, and qwen3_moe has no shared "
        "expert; LLaMA, Mistral and Qwen2 folders can keep one",
        where, parent.model_type);
  }
}

route::FunctionPreservation preserves_parent(const MoeConfig& moe, double gate_scale,
                                             const std::string& difference) {
  if (!difference.empty()) {
    return {false, difference};
  }
  if (moe.shared_expert_width > 0) {
    return {true,
            "the shared expert is the dense feed-forward, and the routed experts start with a "
            "down_proj of zeros, so that they add nothing whatever the router does"};
  }
  return preserves_function(moe, gate_scale);
}

std::string config_sha256(const io::Checkpoint& checkpoint) {
  return file_sha256(checkpoint.folder() / "config.json");
}

std::string sampled_sha256(const io::Checkpoint& checkpoint) {
  constexpr size_t kSampleBytes = 4096;
  Sha256 hash;
  for (const auto& info : checkpoint.tensors()) {
    hash.update(fmt::format("{} {} {}\n", info.name, io::dtype_name(info.dtype),
                            io::shape_text(info.shape)));
    const auto bytes = checkpoint.bytes(info.name);
    hash.update(bytes.first(std::min(bytes.size(), kSampleBytes)));
  }
  return hash.hex();
}

UpcyclePlan plan_upcycle(const io::Checkpoint& dense, const UpcycleSettings& settings) {
  UpcyclePlan plan;
  plan.parent = parse_config(dense.config(), dense.config_name());
  check_settings(settings, dense, plan.parent);
  check_tensors(dense, plan.parent);
  plan.expert_parents = std::make_shared<const ExpertParents>(
      dense, plan.parent, settings.expert_parents, settings.granularity);
  plan.config_sha256 = config_sha256(dense);
  plan.sampled_sha256 = sampled_sha256(dense);
  // Read back as any reader will: whatever a config may not say is refused before the first byte.
  plan.child = child_config(dense, settings, plan.parent, plan.sampled_sha256);
  plan.child = parse_config(Json(config_json(plan.child, dense.config())), "the upcycled config");
  plan.dense = count_parameters(plan.parent);
  plan.mixture = count_parameters(plan.child);
  add_tensors(dense, settings, plan);
  return plan;
}

OrderedJson upcycle(const io::Checkpoint& dense, const UpcyclePlan& plan,
                    const UpcycleSettings& settings, const UpcycleHooks& hooks) {
  const auto& [on_bytes, certify, calibrate, start] = hooks;
  MOE_CHECK(settings.gate_scale || calibrate, "gate_scale is open and nothing measures it");
  MOE_CHECK(!settings.router_init.is_measured() || start, "nothing measures the routers");
  check_out(dense, plan, settings.out);
  io::check_space(settings.out, plan.bytes + kSpaceMargin);
  io::StagedFolder staged(settings.out, settings.force);
  ModelConfig child = plan.child;
  const auto write_config = [&] {
    staged.write_text("config.json", config_json(child, dense.config()).dump(2) + "\n");
  };
  write_config();
  io::copy_tokenizer_files(dense.folder(), staged.path());
  std::vector<io::TensorSource> tensors = plan.tensors;
  std::optional<RouterStart> started;
  if (settings.router_init.is_measured()) {
    for (const auto& info : dense.tensors()) {  // the dense model is run first
      plan.finite->check(dense, info.name);
    }
    started = start();
    set_routers(tensors, *started, settings.granularity);
  }
  io::write_tensors(staged.path(), tensors, settings.shard_bytes, on_bytes);
  Calibration calibration{child.moe->gate_scale, {}, {}};
  if (calibrate) {
    calibration = calibrate(staged.path());
    child.moe->gate_scale = calibration.gate_scale;
    write_config();
  }
  OrderedJson report = describe(plan, settings, child.moe->gate_scale, started);
  std::vector<std::string> warnings = started ? advice(*started) : std::vector<std::string>();
  if (calibrate) {
    report["calibration"] = calibration.report;
    warnings.insert(warnings.end(), calibration.warnings.begin(), calibration.warnings.end());
  }
  if (calibrate || started) {
    report["warnings"] = warnings;
  }
  if (certify) {
    report["certificate"] = certify(staged.path());
  }
  staged.write_text(kUpcycleReport, report.dump(2) + "\n");
  staged.commit();
  return report;
}

route::RouterSettings upcycled_router(const route::RouterRequest& router) {
  return route::requested_router(router, route::parse_router(kUpcycledRouter));
}

route::RouterRequest router_of_opened(const UpcycleRequest& request,
                                      const route::RouterRequest& router) {
  return request.experts ? route::RouterRequest{} : router;
}

io::Checkpoint open_checkpoint(const fs::path& folder, const UpcycleRequest& request,
                               const route::RouterRequest& router, bool force_memory) {
  check_request(request);
  io::Checkpoint checkpoint(folder);
  if (!request.experts) {
    return checkpoint;
  }
  UpcycleSettings settings;
  settings.experts = *request.experts;
  settings.layers = request.layers;
  settings.seed = request.seed;
  settings.granularity = request.granularity;
  settings.shared_expert = request.shared_expert;
  settings.router = upcycled_router(router);
  settings.ep_ranks = router.ep_ranks;
  const UpcyclePlan plan = plan_upcycle(checkpoint, settings);
  std::map<std::string, std::string> sources;
  std::vector<io::TensorSource> made;
  uint64_t bytes = 0;
  std::map<std::pair<io::DType, std::vector<int64_t>>, std::string> zeros;  // one is enough
  for (const auto& tensor : plan.tensors) {
    const io::TensorInfo& info = tensor.info;
    const std::string source = source_in_view(info.name, request.granularity);
    bool is_made = is_shared_down(info.name) ||
                   (checkpoint.has(source) ? checkpoint.info(source).shape != info.shape
                                           : source == info.name);
    std::string mapped = source;
    if (request.shared_expert && is_zero_beside_shared(info.name)) {
      const auto [same, is_new] = zeros.try_emplace({info.dtype, info.shape}, info.name);
      is_made = is_new;
      mapped = same->second;
    }
    if (!is_made) {
      sources[info.name] = mapped;
    } else {
      made.push_back(tensor);
      bytes += static_cast<uint64_t>(tensor.info.bytes());
    }
  }
  if (request.granularity > 1 || request.shared_expert) {
    check_memory({bytes, 1, fmt::format("taking {} as a mixture", folder.string()),
                  "moe upcycle writes the mixture to the disk instead"},
                 force_memory);
  }
  return checkpoint.as_model(Json(config_json(plan.child, checkpoint.config())), sources, made);
}

}  // namespace moe::model
