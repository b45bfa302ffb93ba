#pragma once
// Upcycling of a dense folder to a mixture of experts. By default every expert of a chosen layer is
// a bitwise copy of the dense feed-forward, the router is drawn from N(0, std^2), and all other
// tensors are copied (Rectify-Router, section 5.1). Options take experts from several parents, vary
// or slice them (expert_sources.h), and initialize routers from data (router_init.h). Tensors are
// streamed in blocks, so memory does not grow with the model.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"
#include "core/route/router_override.h"
#include "core/upcycle/expert_sources.h"
#include "core/upcycle/router_init.h"
#include "core/upcycle/upcycle_request.h"

namespace moe::model {

struct UpcycleSettings {
  std::filesystem::path out;
  int64_t experts = 8;          // E: experts per MoE layer, before `granularity`
  std::string layers = "even";  // even, odd, all or a list (parse_layers())
  route::RouterSettings router;
  std::optional<double> router_std;  // default: the parent's initializer_range
  RouterInitSettings router_init;
  int64_t seed = 1;                // of random routers and of `vary`
  std::optional<io::DType> dtype;  // of all tensors except routers (f32); empty: the parent's
  uint64_t shard_bytes = 5'000'000'000;
  std::optional<int64_t> ep_ranks;         // W; empty: E, one expert per rank
  std::optional<double> gate_scale = 1.0;  // empty: auto, from UpcycleHooks::calibrate
  std::optional<double> last_lr;           // last learning rate of the parent, for upcycle.json
  // G: every expert is cut into G slices. `experts` and the router's k, max and cf count whole
  // experts: the mixture has E G experts, and a token uses k G of them.
  int64_t granularity = 1;
  std::vector<ExpertParent> expert_parents;  // of experts 0..E-1 in order; empty: all are `dense`
  bool mean_rest = false;  // tensors except experts and routers are the mean of expert_parents
  Variation vary;          // applied to every expert
  // Keeps the dense feed-forward in addition to the routed experts, whose down_proj starts at 0
  // (core/upcycle/README.md, "Shared expert").
  bool shared_expert = false;
  VocabularyExtension vocabulary;  // of the dense folder
  bool force = false;              // replace an existing OUT
};

// Result of all checks and decisions before any output is written.
struct UpcyclePlan {
  ModelConfig parent, child;
  std::shared_ptr<const ExpertParents> expert_parents;
  std::vector<io::TensorSource> tensors;  // read `dense`, which must outlive the plan
  uint64_t bytes = 0;                     // of tensor data
  // Checks each tensor before it is copied.
  std::shared_ptr<FiniteWeights> finite = std::make_shared<FiniteWeights>();
  bool rounds_weights = false;  // the output dtype of a tensor can round its values
  ParameterCount dense, mixture;
  std::string config_sha256, sampled_sha256;  // of the dense folder
};

// Throws UserError if the settings are invalid or do not fit the folders, or a folder is invalid.
UpcyclePlan plan_upcycle(const io::Checkpoint& dense, const UpcycleSettings& settings);

// Result of UpcycleHooks::calibrate.
struct Calibration {
  double gate_scale = 1.0;
  OrderedJson report;                 // "calibration" in upcycle.json
  std::vector<std::string> warnings;  // sentences for "warnings" in upcycle.json
};

using Certify = std::function<OrderedJson(const std::filesystem::path& staged)>;
using Calibrate = std::function<Calibration(const std::filesystem::path& staged)>;

struct UpcycleHooks {
  // Called with the bytes of tensor data written so far.
  std::function<void(uint64_t)> on_bytes = {};
  // Called with the written folder before it is renamed. Returns "certificate" of upcycle.json.
  Certify certify = {};
  // Called before `certify`, with the written folder. Sets the gate_scale of the mixture. Required
  // if settings.gate_scale is empty; config.json then has gate_scale 1 during the call.
  Calibrate calibrate = {};
  // Called before any tensor is written. Required if settings.router_init.is_measured().
  std::function<RouterInit()> init_routers = {};
};

// Writes OUT, all or nothing: config.json, tensors, tokenizer files, upcycle.json (the result).
// Throws UserError if OUT exists (unless `force`) or holds a parent, or if a weight is not finite.
OrderedJson upcycle(const io::Checkpoint& dense, const UpcyclePlan& plan,
                    const UpcycleSettings& settings, const UpcycleHooks& hooks = {});

// Throws UserError if the mixture of `parent`, the folder `where`, cannot have a shared expert.
void check_shared_expert(const ModelConfig& parent, const std::string& where);

// Opens `folder`. If `request.experts` is set, upcycles it in memory: the result has, bit for bit,
// the config and tensors that upcycle() writes with the settings of `request` and `router`. Experts
// are views of the mapped dense feed-forward; only routers, scaled matrices, zeros and the slices
// of one feed-forward per layer are allocated. `vocabulary` is extend_vocabulary() of `folder`.
// Throws UserError if the folder or the settings are invalid, or if memory is short (unless
// `force_memory`).
io::Checkpoint open_checkpoint(const std::filesystem::path& folder, const UpcycleRequest& request,
                               const route::RouterRequest& router, bool force_memory = false,
                               const VocabularyExtension& vocabulary = {});

// Returns a sentence that says which settings other than the router change the function, or "".
std::string describe_difference(const UpcycleSettings& settings, const UpcyclePlan& plan);

// Determines from the settings if an upcycled mixture computes the function of its dense folder.
// `difference` is the result of describe_difference().
route::FunctionPreservation preserves_parent(const MoeConfig& moe, double gate_scale,
                                             const std::string& difference = "");

inline constexpr const char* kUpcycleReport = "upcycle.json";

std::string config_sha256(const io::Checkpoint& checkpoint);  // of the folder's config.json
// Returns the SHA-256 over name, dtype, shape and first 4096 bytes of every tensor, by name.
std::string sampled_sha256(const io::Checkpoint& checkpoint);

// Returns the name of the parent's tensor that a tensor of the mixture is copied or sliced from:
// model.layers.3.mlp.up_proj.weight for an up_proj of mlp.experts.7 or mlp.shared_expert.
std::string dense_name(const std::string& name);

}  // namespace moe::model
