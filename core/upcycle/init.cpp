#include "core/upcycle/init.h"

#include <cmath>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/io/output_checks.h"
#include "core/io/staged_folder.h"
#include "core/tokenizer/tokenizer.h"
#include "core/upcycle/expert_sources.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

fs::path config_file(const fs::path& given) {
  return fs::is_directory(given) ? given / "config.json" : given;
}

double matrix_std(const std::string& name, const InitSettings& settings,
                  const ModelConfig& config) {
  if (is_router(name)) {
    return config.moe->router_std;
  }
  const bool is_residual_output = name.ends_with(".o_proj.weight") ||
                                  name.ends_with(".down_proj.weight") ||
                                  name.ends_with(moe_names(written_form(config)).down);
  return settings.scaled_outputs && is_residual_output
             ? config.initializer_range / std::sqrt(2.0 * config.layers)
             : config.initializer_range;
}

// Returns the random stream of a tensor. Equal experts use the stream of expert 0.
std::string stream_name(const std::string& name, bool same_experts) {
  static constexpr std::string_view kExperts = ".experts.";
  const size_t begin = name.find(kExperts);
  if (!same_experts || begin == std::string::npos) {
    return name;
  }
  const size_t number = begin + kExperts.size();
  return name.substr(0, number) + "0" + name.substr(name.find('.', number));
}

io::TensorSource random_tensor(const io::TensorInfo& info, const InitSettings& settings,
                               const ModelConfig& config) {
  if (info.name.ends_with("norm.weight")) {  // of layers, of queries and keys, and the final one
    return constant_tensor(info, 1.0F);
  }
  if (info.name.ends_with(".bias") || is_router_bias(info.name)) {
    return constant_tensor(info, 0.0F);
  }
  return normal_tensor(info, matrix_std(info.name, settings, config),
                       static_cast<uint64_t>(settings.seed),
                       stream_name(info.name, settings.same_experts));
}

// Copies the tokenizer `from` into `staged`. A single file is first copied into a temporary folder,
// so that copy_tokenizer_files() adds the same companion files as for a folder.
void add_tokenizer(const fs::path& from, const fs::path& staged, int64_t vocab_size) {
  if (fs::is_directory(from)) {
    io::copy_tokenizer_files(from, staged);
    USER_ERROR_IF(!fs::exists(staged / "tokenizer.model") && !fs::exists(staged / "tokenizer.json"),
                  "--tokenizer {}: contains neither tokenizer.model nor tokenizer.json",
                  from.string());
  } else {
    const fs::path alone = staged / "tokenizer";
    fs::create_directory(alone);
    io::copy_with_mode(
        from, alone / (from.extension() == ".json" ? "tokenizer.json" : "tokenizer.model"));
    io::copy_tokenizer_files(alone, staged);
    fs::remove_all(alone);
  }
  try {
    io::Tokenizer::load(staged, vocab_size);
  } catch (const UserError& error) {
    throw UserError("--tokenizer {}: {}", from.string(), error.what());
  }
}

OrderedJson describe(const InitPlan& plan, const InitSettings& settings) {
  OrderedJson out = {{"moe_version", kVersion},
                     {"config", fs::absolute(config_file(settings.config)).filename().string()},
                     {"seed", settings.seed},
                     {"initializer_range", plan.config.initializer_range},
                     {"outputs_scaled", settings.scaled_outputs},
                     {"dtype", plan.config.dtype}};
  if (const auto& moe = plan.config.moe) {
    out.update({{"experts", moe->experts},
                {"expert_width", moe->expert_width},
                {"granularity", moe->granularity},
                {"router", route::to_string(moe->router)},
                {"router_std", moe->router_std},
                {"experts_init", settings.same_experts ? "same" : "independent"}});
  }
  out["shard_bytes"] = settings.shard_bytes;
  out["tensor_bytes"] = plan.bytes;
  out["parameters"] = {{"total", plan.parameters.total}, {"active", plan.parameters.active}};
  return out;
}

}  // namespace

InitPlan plan_init(const InitSettings& settings) {
  InitPlan plan;
  const fs::path file = config_file(settings.config);
  plan.source = read_json(file, uint64_t{1} << 24);
  plan.config = parse_config(plan.source, file.string());
  if (!settings.dtype.empty()) {
    plan.config.dtype = settings.dtype;
  }
  USER_ERROR_IF(settings.experts && plan.config.moe,
                "{}: already describes a mixture; --experts is for dense configs", file.string());
  if (settings.experts) {
    constexpr int64_t kMaxExpertsRead = int64_t{1} << 18;  // limit of parse_config()
    check_granularity(settings.granularity, *settings.experts, kMaxExpertsRead,
                      plan.config.intermediate_size);
    route::check_router(settings.router, *settings.experts);
    plan.config.moe = mixture_config(plan.config, settings.layers, *settings.experts,
                                     settings.granularity, settings.router);
    plan.config.moe->ep_ranks = settings.ep_ranks.value_or(*settings.experts);
    plan.config = parse_config(Json(config_json(plan.config, plan.source)), file.string());
  }
  if (plan.config.moe) {
    plan.config.moe->router_seed = settings.seed;
  }
  for (const auto& info : expected_tensors(plan.config)) {
    plan.tensors.push_back(random_tensor(info, settings, plan.config));
  }
  for (const auto& info : shared_expert_tensors(plan.config)) {
    plan.tensors.push_back(constant_tensor(info, 0.0F));
  }
  for (const auto& tensor : plan.tensors) {
    plan.bytes += tensor.info.bytes();
  }
  plan.parameters = count_parameters(plan.config);
  return plan;
}

OrderedJson init(const InitPlan& plan, const InitSettings& settings,
                 const std::function<void(uint64_t)>& on_bytes) {
  io::check_space(settings.out, plan.bytes + kSpaceMargin);
  io::check_inputs_outside(settings.out, {settings.config, settings.tokenizer});
  io::StagedFolder staged(settings.out, settings.force);
  staged.write_text("config.json", config_json(plan.config, plan.source).dump(2) + "\n");
  if (!settings.tokenizer.empty()) {
    add_tokenizer(settings.tokenizer, staged.path(), plan.config.vocab_size);
  }
  io::write_tensors(staged.path(), plan.tensors, settings.shard_bytes, on_bytes);
  const OrderedJson report = describe(plan, settings);
  staged.write_text("init.json", report.dump(2) + "\n");
  staged.commit();
  return report;
}

}  // namespace moe::model
