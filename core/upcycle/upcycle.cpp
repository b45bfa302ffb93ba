#include "core/upcycle/upcycle.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/resources.h"
#include "core/base/sha256.h"
#include "core/base/version.h"
#include "core/io/output_checks.h"
#include "core/io/staged_folder.h"
#include "core/model/config/folder_tensors.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExperts = ".mlp.experts.", kSharedMatrix = ".mlp.shared_expert.",
                           kDown = ".down_proj.weight";
// Factor of the shared down_proj: the gate of the shared expert starts at sigmoid(0) = 1/2.
// Multiplication by two is exact in every dtype.
constexpr float kSharedScale = 2.0F;

void check_settings(const UpcycleSettings& settings, const io::Checkpoint& dense,
                    const ModelConfig& parent) {
  USER_ERROR_IF(
      parent.moe,
      "{}: is a mixture of experts already (router {}); upcycling starts from a dense folder",
      dense.folder().string(), route::to_string(parent.moe->router));
  USER_ERROR_IF(settings.experts < 1 || settings.experts > kMaxExperts,
                "--experts {}: must be between 1 and {}", settings.experts, kMaxExperts);
  const int64_t copies = count_copies(settings.expert_parents);
  USER_ERROR_IF(!settings.expert_parents.empty() && copies != settings.experts,
                "--experts {}: the --expert folders provide {}; remove --experts, or set it to {}",
                settings.experts, copies, copies);
  USER_ERROR_IF(settings.expert_parents.empty() && settings.mean_rest,
                "--rest mean: needs --expert folders");
  USER_ERROR_IF(settings.mean_rest && settings.vocabulary.vocab_size > 0,
                "--add-tokens: cannot be combined with --rest mean; moe train adds them later");
  check_granularity(settings.granularity, settings.experts, kMaxExperts, parent.intermediate_size);
  USER_ERROR_IF(settings.shared_expert && !settings.expert_parents.empty(),
                "--shared-expert: routed experts begin with a down_proj of zeros, so that nothing "
                "of the --expert folders would be computed; leave one of the two out");
  if (settings.shared_expert) {
    check_shared_expert(parent, dense.folder().string());
  }
  check_variation(settings.vary, parent.intermediate_size / settings.granularity);
  route::check_router(settings.router, settings.experts);
  const int64_t ranks = settings.ep_ranks.value_or(settings.experts);
  const int64_t experts = settings.experts * settings.granularity;
  USER_ERROR_IF(ranks < 1 || experts % ranks != 0,
                "--ep-ranks {}: {} experts do not divide over so many ranks; use a divisor of {}",
                ranks, experts, experts);
  USER_ERROR_IF(
      settings.gate_scale && !(std::isfinite(*settings.gate_scale) && *settings.gate_scale > 0),
      "--gate-scale {}: must be a positive number, or auto", *settings.gate_scale);
  USER_ERROR_IF(
      settings.router_std && !(std::isfinite(*settings.router_std) && *settings.router_std >= 0),
      "--router-std {}: must be zero or a positive number", *settings.router_std);
  USER_ERROR_IF(
      settings.router_std && settings.router_init.kind != RouterInitSettings::Kind::kRandom,
      "--router-std {}: only a random router is drawn, --router-init {} is scaled by "
      "--router-entropy; leave one out",
      *settings.router_std, to_string(settings.router_init));
  check_router_init(settings.router_init, settings.router, settings.experts);
}

std::string folder_name(const io::Checkpoint& checkpoint) {
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

ModelConfig child_config(const io::Checkpoint& dense, const UpcycleSettings& settings,
                         const ModelConfig& parent, const std::string& sha256) {
  ModelConfig child = parent;
  child.vocab_size = std::max(parent.vocab_size, settings.vocabulary.vocab_size);
  if (settings.dtype) {
    child.dtype = config_dtype(*settings.dtype);
  } else if (dense.config().value("dtype", Json()).is_null() &&
             dense.config().value("torch_dtype", Json()).is_null()) {
    child.dtype = config_dtype(dense.info("model.embed_tokens.weight").dtype);
  }
  MoeConfig& moe = child.moe.emplace(mixture_config(parent, settings.layers, settings.experts,
                                                    settings.granularity, settings.router));
  moe.shared_expert_width = settings.shared_expert ? parent.intermediate_size : 0;
  moe.gate_scale = settings.gate_scale.value_or(1.0);
  moe.ep_ranks = settings.ep_ranks.value_or(settings.experts);
  moe.router_std = settings.router_std.value_or(parent.initializer_range);
  moe.router_seed = settings.seed;
  moe.source_name = folder_name(dense);
  moe.source_sha256 = sha256;
  return child;
}

void check_factor(int64_t granularity, io::DType dtype) {
  USER_ERROR_IF(
      dtype != io::DType::kF32 && !std::has_single_bit(static_cast<uint64_t>(granularity)),
      "--granularity {0}: down_proj is multiplied by it and stored in {1}, which would round and "
      "lose the parent's function; give a power of two, or --dtype fp32",
      granularity, config_dtype(dtype));
}

void write_row(io::SafetensorsWriter& writer, std::span<const float> row, int64_t times) {
  for (int64_t i = 0; i < times; ++i) {
    writer.write(std::as_bytes(row));
  }
}

// Returns a random router [E G, D]. Each row of the router with G = 1 is repeated G times.
io::TensorSource random_router(const io::TensorInfo& info, const MoeConfig& moe) {
  return {info, [info, std = moe.router_std, seed = moe.router_seed,
                 granularity = moe.granularity](io::SafetensorsWriter& writer) {
            MOE_CHECK(info.dtype == io::DType::kF32, "{}", info.name);
            Random random(seed, info.name);
            std::vector<float> row(info.shape.at(1));
            for (int64_t expert = 0; expert < info.shape[0]; expert += granularity) {
              random.fill_normal(row, std);
              write_row(writer, row, granularity);
            }
          }};
}

// Returns 7 for model.layers.3.mlp.experts.7.up_proj.weight, nothing for other tensors.
std::optional<int64_t> expert_index(const std::string& name) {
  const size_t begin = name.find(kExperts);
  return begin == std::string::npos
             ? std::nullopt
             : std::optional(std::stoll(name.substr(begin + kExperts.size())));
}

// Returns true for the tensors that are 0 in a mixture with a shared expert: the gate of the shared
// expert, and down_proj of routed experts.
bool is_zero_with_shared_expert(const std::string& name) {
  return is_shared_expert_gate(name) || (expert_index(name) && name.ends_with(kDown));
}

bool is_shared_down(const std::string& name) {
  return name.find(kSharedMatrix) != std::string::npos && name.ends_with(kDown);
}

// Tensor of the child, and the tensors of parents that it is computed from (none if random or
// constant).
struct ChildTensor {
  io::TensorSource out;
  std::vector<std::pair<const io::Checkpoint*, std::string>> sources;
};

ChildTensor child_tensor(io::TensorInfo info, const io::Checkpoint& dense,
                         const UpcycleSettings& settings, const UpcyclePlan& plan) {
  if (is_router(info.name)) {
    return {random_router(info, *plan.child.moe), {}};
  }
  if (is_router_bias(info.name)) {
    return {constant_tensor(info, 0.0F), {}};
  }
  const std::string source = dense_name(info.name);
  info.dtype = settings.dtype.value_or(dense.has(source) ? dense.info(source).dtype : info.dtype);
  if (settings.shared_expert && is_zero_with_shared_expert(info.name)) {
    return {constant_tensor(info, 0.0F), {}};
  }
  if (is_shared_down(info.name)) {
    ExpertMatrix doubled = expert_slice(dense, source, 0, 1);
    doubled.factor = kSharedScale;
    return {matrix_tensor(info, doubled), {{&dense, source}}};
  }
  if (const auto expert = expert_index(info.name)) {
    const int64_t slices = settings.granularity;
    if (!settings.shared_expert) {  // with a shared expert, down_proj is 0
      check_factor(slices, info.dtype);
    }
    const io::Checkpoint& parent = plan.expert_parents->parent(*expert);
    return {settings.vary || slices > 1
                ? matrix_tensor(info, expert_slice(parent, source, *expert % slices, slices),
                                settings.vary, settings.seed)
                : copied_tensor(info, parent, source),
            {{&parent, source}}};
  }
  if (const auto& added = settings.vocabulary; added.changes(source)) {
    return {extended_tensor(info, dense, added.begin, added.end), {{&dense, source}}};
  }
  if (!settings.mean_rest) {
    return {copied_tensor(info, dense, source), {{&dense, source}}};
  }
  ChildTensor mean{mean_tensor(info, plan.expert_parents), {}};
  for (const auto& parent : plan.expert_parents->checkpoints()) {
    mean.sources.emplace_back(parent.get(), source);
  }
  return mean;
}

// Adds a tensor of the child to the plan. Its sources are checked for NaN when it is written.
void add_tensor(const io::TensorInfo& info, const io::Checkpoint& dense,
                const UpcycleSettings& settings, UpcyclePlan& plan) {
  auto [tensor, sources] = child_tensor(info, dense, settings, plan);
  const io::DType to = tensor.info.dtype;
  for (const auto& [parent, name] : sources) {
    plan.rounds_weights |= to != parent->info(name).dtype && to != io::DType::kF32;
  }
  tensor.write = [write = std::move(tensor.write), sources = std::move(sources),
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
    plan.tensors.push_back(constant_tensor(info, 0.0F));
  }
  for (const auto& tensor : plan.tensors) {
    plan.bytes += tensor.info.bytes();
  }
}

// Replaces the random routers by the routers of `init`, with each row repeated `granularity` times.
void set_routers(std::vector<io::TensorSource>& tensors, const RouterInit& init,
                 int64_t granularity) {
  for (const auto& layer : init.layers) {
    const auto name = layer_prefix(layer.layer) + "mlp.gate.weight";
    const auto tensor = std::ranges::find(
        tensors, name, [](const io::TensorSource& source) { return source.info.name; });
    MOE_CHECK(tensor != tensors.end() && tensor->info.dtype == io::DType::kF32 &&
                  tensor->info.elements() == granularity * std::ssize(layer.rows),
              "{} of {} numbers", name, layer.rows.size());
    tensor->write = [rows = layer.rows, width = static_cast<size_t>(tensor->info.shape.at(1)),
                     granularity](io::SafetensorsWriter& writer) {
      for (size_t first = 0; first < rows.size(); first += width) {
        write_row(writer, std::span(rows).subspan(first, width), granularity);
      }
    };
  }
}

OrderedJson describe_routers(const MoeConfig& moe, const RouterInitSettings& init,
                             const std::optional<RouterInit>& measured) {
  OrderedJson json;
  if (init.kind == RouterInitSettings::Kind::kRandom) {
    json["std"] = moe.router_std;
  } else {
    json["kind"] = init.kind == RouterInitSettings::Kind::kPrompts ? "prompts" : "cluster";
    json["file_sha256"] = file_sha256(init.file);
  }
  json["seed"] = moe.router_seed;
  if (measured) {
    json["entropy"] = init.target_entropy();
    json.update(to_json(*measured));
  }
  return json;
}

// Throws UserError if OUT contains a parent, even with --force.
void check_out(const io::Checkpoint& dense, const UpcyclePlan& plan, const fs::path& out) {
  const auto check = [&](const io::Checkpoint& parent) {
    USER_ERROR_IF(io::is_within(parent.folder(), out),
                  "{}: contains the dense model {}; choose another output folder", out.string(),
                  parent.folder().string());
  };
  check(dense);
  for (const auto& parent : plan.expert_parents->checkpoints()) {
    check(*parent);
  }
}

// Returns the name of the tensor that tensor `name` of open_checkpoint() is a view of: the dense
// matrix, or with granularity the same slice in the first group, which is in memory.
std::string view_source(const std::string& name, int64_t granularity) {
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

// Returns a list of the parents and their experts; null if all experts come from the dense folder.
OrderedJson describe_parents(const ExpertParents& parents) {
  OrderedJson list;
  for (const auto& parent : parents.checkpoints()) {
    OrderedJson entry =
        describe_source(folder_name(*parent), config_sha256(*parent), sampled_sha256(*parent));
    entry["experts"] = parents.experts(*parent);
    list.push_back(std::move(entry));
  }
  return list;
}

OrderedJson describe(const UpcyclePlan& plan, const UpcycleSettings& settings, double gate_scale,
                     const std::optional<RouterInit>& measured) {
  const MoeConfig& moe = *plan.child.moe;
  const route::FunctionPreservation preserves =
      preserves_parent(moe, gate_scale, describe_difference(settings, plan));
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
  out["router_init"] = describe_routers(moe, settings.router_init, measured);
  out["ep_ranks"] = moe.ep_ranks;
  out["gate_scale"] = gate_scale;
  if (!settings.vocabulary.words.empty()) {
    out["vocabulary"] = settings.vocabulary.words;
  }
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

std::string describe_difference(const UpcycleSettings& settings, const UpcyclePlan& plan) {
  std::vector<std::string> reasons;
  if (!settings.shared_expert) {  // with a shared expert, routed experts add 0
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

void check_shared_expert(const ModelConfig& parent, const std::string& where) {
  USER_ERROR_IF(parent.qk_norm,
                "--shared-expert: {} is a {}, whose mixture is a qwen3_moe, and qwen3_moe has no "
                "shared expert; LLaMA, Mistral and Qwen2 folders can keep one",
                where, parent.model_type);
}

route::FunctionPreservation preserves_parent(const MoeConfig& moe, double gate_scale,
                                             const std::string& difference) {
  if (!difference.empty()) {
    return {false, difference};
  }
  if (moe.shared_expert_width > 0) {
    return {true,
            "the shared expert is the dense feed-forward, and the routed experts start with a "
            "down_proj of zeros, so they add nothing for any router"};
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
  // Parses the config of the child as it will be written, so that errors precede any output.
  plan.child = child_config(dense, settings, plan.parent, plan.sampled_sha256);
  plan.child = parse_config(Json(config_json(plan.child, dense.config())), "the upcycled config");
  plan.dense = count_parameters(plan.parent);
  plan.mixture = count_parameters(plan.child);
  add_tensors(dense, settings, plan);
  return plan;
}

OrderedJson upcycle(const io::Checkpoint& dense, const UpcyclePlan& plan,
                    const UpcycleSettings& settings, const UpcycleHooks& hooks) {
  MOE_CHECK(settings.gate_scale || hooks.calibrate, "auto gate_scale without a calibration");
  MOE_CHECK(!settings.router_init.is_measured() || hooks.init_routers, "router_init without hook");
  check_out(dense, plan, settings.out);
  io::check_space(settings.out, plan.bytes + kSpaceMargin);
  io::StagedFolder staged(settings.out, settings.force);
  ModelConfig child = plan.child;
  const auto write_config = [&] {
    staged.write_text("config.json", config_json(child, dense.config()).dump(2) + "\n");
  };
  write_config();
  io::copy_tokenizer_files(dense.folder(), staged.path(), settings.vocabulary.files);
  std::vector<io::TensorSource> tensors = plan.tensors;
  std::optional<RouterInit> measured;
  std::vector<std::string> warnings;
  if (settings.router_init.is_measured()) {
    for (const auto& info : dense.tensors()) {  // init_routers() runs the dense model
      plan.finite->check(dense, info.name);
    }
    measured = hooks.init_routers();
    set_routers(tensors, *measured, settings.granularity);
    warnings = router_warnings(*measured);
  }
  io::write_tensors(staged.path(), tensors, settings.shard_bytes, hooks.on_bytes);
  OrderedJson calibrated;
  if (hooks.calibrate) {
    const Calibration calibration = hooks.calibrate(staged.path());
    calibrated = calibration.report;
    warnings.insert(warnings.end(), calibration.warnings.begin(), calibration.warnings.end());
    child.moe->gate_scale = calibration.gate_scale;
    write_config();
  }
  OrderedJson report = describe(plan, settings, child.moe->gate_scale, measured);
  if (hooks.calibrate) {
    report["calibration"] = calibrated;
  }
  if (hooks.calibrate || measured) {
    report["warnings"] = warnings;
  }
  if (hooks.certify) {
    report["certificate"] = hooks.certify(staged.path());
  }
  staged.write_text(kUpcycleReport, report.dump(2) + "\n");
  staged.commit();
  return report;
}

io::Checkpoint open_checkpoint(const fs::path& folder, const UpcycleRequest& request,
                               const route::RouterRequest& router, bool force_memory,
                               const VocabularyExtension& vocabulary) {
  check_request(request);
  io::Checkpoint checkpoint(folder);
  std::map<std::string, std::string> sources;  // of the tensors that are views
  std::vector<io::TensorSource> computed;      // the others
  const auto open = [&](Json config, const std::string& task, const std::string& advice) {
    uint64_t bytes = 0;
    for (const auto& tensor : computed) {
      bytes += tensor.info.bytes();
    }
    check_memory({bytes, 1, task, advice}, force_memory);
    return checkpoint.as_model(std::move(config), sources, computed, vocabulary.files);
  };
  if (!request.experts && vocabulary.vocab_size == 0) {
    return checkpoint;
  }
  if (!request.experts) {
    check_tensors(checkpoint, parse_config(checkpoint.config(), checkpoint.config_name()));
    for (io::TensorInfo info : checkpoint.tensors()) {
      if (vocabulary.changes(info.name)) {
        info.shape[0] = vocabulary.vocab_size;
        computed.push_back(extended_tensor(info, checkpoint, vocabulary.begin, vocabulary.end));
      } else {
        sources[info.name] = info.name;
      }
    }
    Json config = checkpoint.config();
    config["vocab_size"] = vocabulary.vocab_size;
    return open(std::move(config), fmt::format("adding tokens to {}", folder.string()),
                "a model that has the tokens needs none");
  }
  UpcycleSettings settings;
  settings.vocabulary = vocabulary;
  settings.experts = *request.experts;
  settings.layers = request.layers;
  settings.seed = request.seed;
  settings.granularity = request.granularity;
  settings.shared_expert = request.shared_expert;
  settings.router = upcycled_router(router);
  settings.ep_ranks = router.ep_ranks;
  const UpcyclePlan plan = plan_upcycle(checkpoint, settings);
  std::map<std::pair<io::DType, std::vector<int64_t>>, std::string> zeros;  // one per shape
  for (const auto& tensor : plan.tensors) {
    const io::TensorInfo& info = tensor.info;
    std::string source = view_source(info.name, request.granularity);
    bool is_computed = is_shared_down(info.name) || vocabulary.changes(info.name) ||
                       (checkpoint.has(source) ? checkpoint.info(source).shape != info.shape
                                               : source == info.name);
    if (request.shared_expert && is_zero_with_shared_expert(info.name)) {
      const auto [first, is_new] = zeros.try_emplace({info.dtype, info.shape}, info.name);
      is_computed = is_new;
      source = first->second;
    }
    if (is_computed) {
      computed.push_back(tensor);
    } else {
      sources[info.name] = source;
    }
  }
  return open(Json(config_json(plan.child, checkpoint.config())),
              fmt::format("upcycling {} in memory", folder.string()),
              "moe upcycle writes the mixture to the disk instead");
}

}  // namespace moe::model
