#pragma once
// A dense folder of LLaMA or its kin becomes a mixture of experts: in the chosen layers every
// expert is a bitwise copy of that layer's dense feed-forward, the router is drawn from N(0,
// std^2), all else is copied (Rectify-Router, section 5.1). Experts may come from other parents
// (expert_parents.h), copies may differ (variation.h), or be cut into finer experts
// (granularity.h), and routers may know something at the start (router_start.h). Bytes go from the
// mapped parents to the new files in blocks; no tensor is ever held, so memory does not grow with
// the model.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"
#include "core/model/convert/expert_parents.h"
#include "core/model/convert/router_start.h"
#include "core/model/convert/upcycle_request.h"
#include "core/model/convert/variation.h"
#include "core/route/router_override.h"

namespace moe::model {

struct UpcycleSettings {
  std::filesystem::path out;
  int64_t experts = 8;          // E, per MoE layer, before they are cut
  std::string layers = "even";  // even, odd, all or a list (layer_list.h)
  route::RouterSettings router;
  std::optional<double> router_std;  // default: the parent's initializer_range
  RouterInit router_init;            // what else than a seed the router's rows come from
  int64_t seed = 1;                  // of the router
  // Converts every tensor but the router, which is F32; empty: dtypes of the parent.
  std::optional<io::DType> dtype;
  uint64_t shard_bytes = 5'000'000'000;
  std::optional<int64_t> ep_ranks;         // W, default E: one expert a rank
  std::optional<double> gate_scale = 1.0;  // empty: auto, `calibrate` of upcycle() says
  std::optional<double> last_lr;           // of the run that left the parent, into upcycle.json
  // G: every expert is cut into G slices. `experts`, the router's k, max and cf, and ep_ranks say
  // what they would without it; the mixture has E G experts, of which a token takes k G.
  int64_t granularity = 1;
  std::vector<ExpertParent> expert_parents;  // of the E experts in turn; empty: the dense folder
  bool mean_rest = false;  // all but experts and routers is the mean of expert_parents
  Variation vary;          // of every expert
  // The dense feed-forward stays beside the experts, whose down_proj is then zeros
  // (core/model/README.md).
  bool shared_expert = false;
  bool force = false;  // replace OUT if it is there
};

// Refuses parents with weights that are not finite.
class FiniteWeights {
 public:
  // Reads tensor `name` of `parent`, once however often it is called. Throws UserError with the
  // tensor's name if a weight is NaN or infinite.
  void check(const io::Checkpoint& parent, const std::string& name);

 private:
  std::set<std::pair<const io::SafetensorsFile*, std::string>> checked_;
};

// Everything that is known before the first byte is written.
struct UpcyclePlan {
  ModelConfig parent, child;
  std::shared_ptr<const ExpertParents> expert_parents;
  std::vector<io::TensorSource>
      tensors;         // read from the parent's Checkpoint, which must outlive the plan
  uint64_t bytes = 0;  // of tensor data
  // Tensors pass it as they are written, right before their bytes are copied.
  std::shared_ptr<FiniteWeights> finite = std::make_shared<FiniteWeights>();
  bool rounds_weights = false;  // a tensor is stored in a type that cannot hold all its values
  ParameterCount dense, mixture;
  std::string config_sha256;   // of the parent's config.json
  std::string sampled_sha256;  // see sampled_sha256()
};

// UserError: the parent is a mixture already, experts or layers out of range, k > E, ranks that do
// not divide the experts, a granularity that does not divide the feed-forward or that its type
// cannot multiply exactly, tensors that do not fit the config, parents of experts that do not fit
// the folder or the number of experts, a shared expert in a model whose mixture can have none.
UpcyclePlan plan_upcycle(const io::Checkpoint& dense, const UpcycleSettings& settings);

// Called with the bytes of tensor data written so far.
using OnBytes = std::function<void(uint64_t)>;
// Called with the finished folder before it gets its final name; what it returns goes into
// upcycle.json as "certificate".
using Certify = std::function<OrderedJson(const std::filesystem::path& staged)>;

// Called before Certify with the written folder, whose gate_scale is still 1 where it was left
// open.
struct Calibration {
  double gate_scale = 1.0;
  OrderedJson report;                 // into upcycle.json as "calibration"
  std::vector<std::string> warnings;  // into upcycle.json as "warnings", a sentence each
};
using Calibrate = std::function<Calibration(const std::filesystem::path& staged)>;

// Called before the first byte of a tensor is written, where settings.router_init is measured.
using StartRouters = std::function<RouterStart()>;

struct UpcycleHooks {
  OnBytes on_bytes = {};
  Certify certify = {};
  Calibrate calibrate = {};  // required if settings.gate_scale is empty
  StartRouters start = {};   // required if settings.router_init is measured
};

// Writes OUT, all or nothing: config.json, tensors, tokenizer files, upcycle.json. Bytes are
// streamed; only the hooks hold a model, which is gone before the next bytes are written. Returns
// what upcycle.json holds. UserError: OUT is there already (unless force), OUT would replace its
// own parent, not enough space, a weight of a parent that is NaN or infinite.
OrderedJson upcycle(const io::Checkpoint& dense, const UpcyclePlan& plan,
                    const UpcycleSettings& settings, const UpcycleHooks& hooks = {});

// UserError: the mixture of this dense model, of the folder `where`, can have no shared expert.
void check_may_share(const ModelConfig& parent, const std::string& where);

// A folder as `request` says. A dense one that is taken as a mixture has, bit for bit, the config
// and tensors that upcycle() writes with the same experts, layers, seed, granularity and `router`,
// and no folder is written: experts are the dense feed-forward where it is mapped, routers are
// drawn in memory, and there the slices of a feed-forward stand once for all its groups. UserError:
// what opening the folder and plan_upcycle() say, a granularity without experts, memory that does
// not hold the slices (unless `force_memory`).
io::Checkpoint open_checkpoint(const std::filesystem::path& folder, const UpcycleRequest& request,
                               const route::RouterRequest& router, bool force_memory = false);

// The router that a mixture is taken with, before granularity, where `request` asks for one.
route::RouterSettings upcycled_router(const route::RouterRequest& router);

// What of `router` an opened folder is still to be asked: nothing where it was taken as a mixture,
// whose own router it is by then.
route::RouterRequest router_of_opened(const UpcycleRequest& request,
                                      const route::RouterRequest& router);

// Returns why the weights of a mixture give another function than those of its dense folder,
// whatever its router does; empty if they do not.
std::string changes_function(const UpcycleSettings& settings, const UpcyclePlan& plan);

// Says whether an upcycled mixture computes its dense folder by construction with `gate_scale` in
// force; `difference` is the result of changes_function().
route::FunctionPreservation preserves_parent(const MoeConfig& moe, double gate_scale,
                                             const std::string& difference = "");

inline constexpr const char* kUpcycleReport = "upcycle.json";

// SHA-256 of the folder's config.json.
std::string config_sha256(const io::Checkpoint& checkpoint);

// SHA-256 over name, type, shape and first 4096 bytes of every tensor, by name: tells checkpoints
// apart without reading them whole, and does not depend on how they are cut into shards.
std::string sampled_sha256(const io::Checkpoint& checkpoint);

// The parent's tensor that a tensor of the mixture is a copy or a slice of:
// model.layers.3.mlp.experts.7.up_proj.weight -> model.layers.3.mlp.up_proj.weight, and so for a
// shared expert; others keep their names.
std::string dense_name(const std::string& name);

}  // namespace moe::model
