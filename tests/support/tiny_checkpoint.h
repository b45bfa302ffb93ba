#pragma once
// A small random LLaMA folder (config.json and weights, no tokenizer). Equal options give equal
// bytes on any machine.

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

#include "core/io/checkpoint.h"
#include "core/io/file.h"
#include "tests/support/temp_dir.h"

namespace moe::test {

struct TinyCheckpoint {
  int64_t hidden = 16;        // D
  int64_t intermediate = 24;  // F
  int64_t layers = 3;
  int64_t heads = 4;     // H
  int64_t kv_heads = 2;  // G
  int64_t head_dim = 0;  // A; 0 = hidden / heads, and not written to config.json
  int64_t vocab = 64;    // V
  int64_t max_positions = 128;
  io::DType dtype = io::DType::kF32;  // or kF16, kBF16
  bool tied = false;                  // no lm_head.weight
  double std = 0.1;                   // of every matrix; norms are 1 + 0.1 x that
  uint64_t seed = 1;
  uint64_t shard_bytes = uint64_t{1} << 40;  // small: several shards and an index
};

// Convert small finite values to bfloat16 and IEEE half: to nearest, ties to even.
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline uint16_t to_f16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = 0.1xxx * 2^exponent
  const int step =
      std::max(exponent - 11, -24);  // of the last of 11 significant bits; subnormals below 2^-14
  const auto units = std::nearbyint(std::ldexp(magnitude, -step));  // <= 2048
  const int biased =
      magnitude == 0 ? 0 : step + 24;  // adding the hidden bit carries into the exponent
  return sign | static_cast<uint16_t>((biased << 10) + static_cast<int>(units));
}

inline std::string tensor_bytes(const std::vector<float>& values, io::DType dtype) {
  std::string bytes(values.size() * static_cast<size_t>(io::dtype_bytes(dtype)), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == io::DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t half = dtype == io::DType::kBF16 ? to_bf16(values[i]) : to_f16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  return bytes;
}

inline OrderedJson tiny_config(const TinyCheckpoint& options) {
  const char* dtype = options.dtype == io::DType::kF32    ? "float32"
                      : options.dtype == io::DType::kBF16 ? "bfloat16"
                                                          : "float16";
  OrderedJson config = {{"architectures", {"LlamaForCausalLM"}},
                        {"model_type", "llama"},
                        {"vocab_size", options.vocab},
                        {"hidden_size", options.hidden},
                        {"intermediate_size", options.intermediate},
                        {"num_hidden_layers", options.layers},
                        {"num_attention_heads", options.heads},
                        {"num_key_value_heads", options.kv_heads},
                        {"hidden_act", "silu"},
                        {"max_position_embeddings", options.max_positions},
                        {"rms_norm_eps", 1e-5},
                        {"rope_theta", 10000.0},
                        {"attention_bias", false},
                        {"mlp_bias", false},
                        {"bos_token_id", 1},
                        {"eos_token_id", 2},
                        {"tie_word_embeddings", options.tied},
                        {"torch_dtype", dtype}};
  if (options.head_dim > 0) {
    config["head_dim"] = options.head_dim;
  }
  return config;
}

// Names and shapes in the order of the file (core/io/formats.md).
inline std::vector<io::TensorInfo> tiny_tensors(const TinyCheckpoint& options) {
  const int64_t head_dim = options.head_dim > 0 ? options.head_dim : options.hidden / options.heads;
  const int64_t d = options.hidden, f = options.intermediate;
  std::vector<io::TensorInfo> tensors = {
      {"model.embed_tokens.weight", options.dtype, {options.vocab, d}}};
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      tensors.push_back(
          {fmt::format("model.layers.{}.{}", layer, name), options.dtype, std::move(shape)});
    };
    add("input_layernorm.weight", {d});
    add("self_attn.q_proj.weight", {options.heads * head_dim, d});
    add("self_attn.k_proj.weight", {options.kv_heads * head_dim, d});
    add("self_attn.v_proj.weight", {options.kv_heads * head_dim, d});
    add("self_attn.o_proj.weight", {d, options.heads * head_dim});
    add("post_attention_layernorm.weight", {d});
    add("mlp.gate_proj.weight", {f, d});
    add("mlp.up_proj.weight", {f, d});
    add("mlp.down_proj.weight", {d, f});
  }
  tensors.push_back({"model.norm.weight", options.dtype, {d}});
  if (!options.tied) {
    tensors.push_back({"lm_head.weight", options.dtype, {options.vocab, d}});
  }
  return tensors;
}

// Normal numbers by Box and Muller: std::normal_distribution differs between standard libraries.
inline std::vector<float> tiny_values(const io::TensorInfo& info, double std,
                                      std::mt19937_64& random) {
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const bool is_norm = info.shape.size() == 1;
  std::vector<float> values(static_cast<size_t>(info.elements()));
  for (auto& value : values) {
    const double normal =
        std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    value = static_cast<float>(is_norm ? 1 + 0.1 * std * normal : std * normal);
  }
  return values;
}

inline void write_tiny_checkpoint(const std::filesystem::path& folder,
                                  const TinyCheckpoint& options = {}) {
  std::filesystem::create_directories(folder);
  io::write_file(folder / "config.json", tiny_config(options).dump(2) + "\n");
  std::mt19937_64 random(options.seed);
  std::vector<io::TensorSource> sources;
  for (const auto& info : tiny_tensors(options)) {
    sources.push_back({info, [&options, &random, info](io::SafetensorsWriter& writer) {
                         const std::string bytes =
                             tensor_bytes(tiny_values(info, options.std, random), info.dtype);
                         writer.write(std::as_bytes(std::span(bytes)));
                       }});
  }
  io::write_tensors(folder, sources, options.shard_bytes);
}

// Writes a folder with zero weights in a sparse file, which may be larger than the disk. Returns
// the number of bytes of its tensors.
inline uint64_t write_sparse_checkpoint(const std::filesystem::path& folder,
                                        const TinyCheckpoint& options) {
  std::filesystem::create_directories(folder);
  io::write_file(folder / "config.json", tiny_config(options).dump(2) + "\n");
  OrderedJson header;
  uint64_t end = 0;
  for (const auto& info : tiny_tensors(options)) {
    const uint64_t begin = end;
    end += static_cast<uint64_t>(info.bytes());
    header[info.name] = {{"dtype", io::dtype_name(info.dtype)},
                         {"shape", info.shape},
                         {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string start(8, '\0');
  std::memcpy(start.data(), &length, 8);
  io::write_file(folder / "model.safetensors", start + text);
  std::filesystem::resize_file(folder / "model.safetensors", 8 + length + end);
  return end;
}

}  // namespace moe::test
