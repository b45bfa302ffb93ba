#include "core/bench/timing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/chrono.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "core/base/resources.h"
#include "core/base/version.h"
#include "core/model/llama/timeline.h"
#include "kernels/ops/device.h"
#include "kernels/ops/linear.h"

namespace moe::bench {
namespace {

using at::Tensor;

double read_clock_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * now.tv_nsec;
}

bool uses_cpu_time(c10::Device device) {
  return !kernels::device_traits(device).has_streams && at::get_num_threads() == 1;
}

}  // namespace

double wall_s() { return read_clock_s(CLOCK_MONOTONIC); }

double clock_s(c10::Device device) {
  if (kernels::device_traits(device).has_streams) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
  return uses_cpu_time(device) ? read_clock_s(CLOCK_PROCESS_CPUTIME_ID) : wall_s();
}

Timing make_timing(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

Timing time_calls(int64_t repeats, const std::function<void()>& work, c10::Device device) {
  work();
  std::vector<double> seconds;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    const double start = clock_s(device);
    work();
    seconds.push_back(clock_s(device) - start);
  }
  return make_timing(std::move(seconds));
}

OrderedJson to_json(const Timing& timing) {
  return {{"median_ms", timing.median_s * 1e3},
          {"best_ms", timing.best_s * 1e3},
          {"worst_ms", timing.worst_s * 1e3}};
}

OrderedJson to_json(const Timing& timing, double flop, const Timing& roof) {
  OrderedJson json = to_json(timing);
  json["gflops"] = flop / timing.median_s / 1e9;
  json["share_of_roof"] = roof.median_s / timing.median_s;
  return json;
}

OrderedJson time_parts(const std::function<void()>& work, c10::Device device) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, seconds] : model::part_seconds(work, device)) {
    json[name] = seconds * 1e3;
  }
  return json;
}

OrderedJson environment(const std::string& benchmark, c10::Device device) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  OrderedJson json = {{"bench", benchmark},
                      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", now)},
                      {"moe_version", kVersion},
                      {"torch_version", TORCH_VERSION},
                      {"processor", system_field("/proc/cpuinfo", "model name")},
                      {"processors", std::thread::hardware_concurrency()},
                      {"threads", at::get_num_threads()},
                      {"clock", uses_cpu_time(device) ? "cpu" : "wall"},
                      {"instruction_set", at::get_cpu_capability()}};
  if (!kernels::device_traits(device).has_host_memory) {
    json["device"] = kernels::gpu_name(device.index());
  }
  return json;
}

uint64_t peak_bytes(c10::Device device) {
  return kernels::device_peak_bytes(device).value_or(peak_resident_bytes());
}

uint64_t anonymous_bytes() { return system_bytes("/proc/self/status", "RssAnon"); }

std::vector<int64_t> random_tokens(Random& random, int64_t count, int64_t vocabulary) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(random.below(vocabulary));
  }
  return tokens;
}

std::vector<Product> forward_products(const model::ModelConfig& config, const ForwardSize& size) {
  constexpr int64_t kHeadBlock = 512;
  const int64_t width = config.hidden_size, heads = config.heads * config.head_dim;
  const int64_t moe_layers = config.moe ? std::ssize(config.moe->layers) : 0;
  const bool shortens = size.shortens_last_layer && !config.is_moe_layer(config.layers - 1);
  std::vector<Product> products;
  const auto add = [&](const char* name, int64_t m, int64_t k, int64_t n, double count) {
    if (count > 0) {
      products.push_back({name, std::max<int64_t>(1, m), k, n, count});
    }
  };
  // Adds products of all tokens in `layers` layers, the last of which may be shortened.
  const auto add_dense = [&](const char* name, int64_t k, int64_t n, int64_t layers) {
    const int64_t whole = layers - (shortens && layers > 0 ? 1 : 0);
    add(name, size.tokens, k, n, whole);
    add(name, size.head_rows, k, n, layers - whole);
  };
  if (moe_layers > 0) {
    const model::MoeConfig& moe = *config.moe;
    const int64_t rows = std::max<int64_t>(1, size.routed_rows / moe.experts);
    const double count = static_cast<double>(moe_layers * size.routed_rows) / rows;
    add("expert up", rows, width, 2 * moe.expert_width, count);
    add("expert down", rows, moe.expert_width, width, count);
    if (const int64_t shared = moe.shared_expert_width; shared > 0) {
      add("shared up", size.tokens, width, 2 * shared, moe_layers);
      add("shared down", size.tokens, shared, width, moe_layers);
    }
  }
  add_dense("dense up", width, 2 * config.intermediate_size, config.layers - moe_layers);
  add_dense("dense down", config.intermediate_size, width, config.layers - moe_layers);
  add("qkv", size.tokens, width, heads + 2 * config.kv_heads * config.head_dim, config.layers);
  add_dense("attention out", heads, width, config.layers);
  const int64_t block = std::max<int64_t>(1, std::min(kHeadBlock, size.head_rows));
  add("head", block, width, config.vocab_size, static_cast<double>(size.head_rows) / block);
  return products;
}

double attention_flop(const model::ModelConfig& config, int64_t tokens, int64_t length) {
  return 3.0 * 2.0 * (config.layers * config.heads * config.head_dim) * tokens * length;
}

Timing time_product(const Product& product, ProductForm form, bool use_own_gemm, int64_t repeats,
                    const at::TensorOptions& options) {
  const auto& [name, m, k, n, count] = product;
  at::manual_seed(1);
  const bool is_forward = form == ProductForm::kForward;
  const bool is_weight = form == ProductForm::kWeightGradient;
  const Tensor first = at::randn({m, is_forward ? k : n}, options);  // x or dy
  const Tensor second = at::randn({is_weight ? m : n, k}, options);  // x or w
  const Tensor left = is_weight ? first.t() : first;
  const Tensor right = is_forward ? second.t() : second;
  Tensor out = at::empty({left.size(0), right.size(1)}, options);
  const auto multiply = [&] {
    if (use_own_gemm) {
      kernels::matmul_out(out, left, right, out.scalar_type());
    } else {
      at::mm_out(out, left, right);
    }
  };
  return time_calls(repeats, multiply, options.device());
}

at::TensorOptions roof_options(c10::Device device, bool use_bf16) {
  use_bf16 = use_bf16 && kernels::device_traits(device).has_tensor_cores;
  return at::TensorOptions(device).dtype(use_bf16 ? at::kBFloat16 : at::kFloat);
}

Roof time_roof(const std::vector<Product>& products, bool backward, int64_t repeats,
               const at::TensorOptions& options) {
  Roof roof;
  for (const Product& product : products) {
    for (const ProductForm form : kProductForms) {
      if (form == ProductForm::kForward || backward) {
        const Timing timing = time_product(product, form, /*use_own_gemm=*/false, repeats, options);
        roof.flop += product.count * product.flop();
        const Timing all = timing.scaled(product.count);
        roof.timing = {roof.timing.median_s + all.median_s, roof.timing.best_s + all.best_s,
                       roof.timing.worst_s + all.worst_s};
      }
    }
  }
  return roof;
}

OrderedJson synthetic_config(const std::string& name) {
  const bool is_small = name == "S";
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", is_small ? 256 : 512},
          {"intermediate_size", is_small ? 704 : 1376},
          {"num_hidden_layers", is_small ? 4 : 8},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 8},
          {"vocab_size", 32000},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"}};
}

}  // namespace moe::bench
