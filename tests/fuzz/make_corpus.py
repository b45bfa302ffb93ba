#!/usr/bin/env python3
"""Writes the kept corpus: small inputs, one for each branch of the readers, from which the fuzzer starts.

python3 tests/fuzz/make_corpus.py        (deterministic; the files are in the tree)
"""
import gzip
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    """Odd first byte: header text, a zero byte, data; the harness fills in the length. Even: the file as it is."""
    def framed(header, data=b""):
        text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
        return b"1" + text.encode() + b"\0" + data

    yield "one", framed({"a": entry("F32", [2], 0, 8)}, b"01234567")
    yield "metadata", framed({"__metadata__": {"format": "pt"}, "a": entry("U8", [1], 0, 1)}, b"x")
    yield "two", framed({"b": entry("BF16", [2, 1], 0, 4), "a": entry("F16", [1], 4, 6)}, b"012345")
    yield "empty-tensors", framed({"e": entry("F32", [0, 3], 0, 0), "f": entry("I64", [], 0, 8),
                                   "g": entry("BOOL", [2, 0], 8, 8)}, b"01234567")
    for dtype, size in (("F64", 8), ("I32", 4), ("I16", 2), ("I8", 1)):
        yield f"dtype-{dtype}", framed({"t": entry(dtype, [1], 0, size)}, b"x" * size)
    yield "unknown-dtype", framed({"t": entry("F8_E4M3", [1], 0, 1)}, b"x")
    yield "no-tensors", framed("{}")
    yield "padded", framed('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}     ', b"x")
    yield "gap", framed({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"xyz")
    yield "overlap", framed({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"xyz")
    yield "truncated", framed({"a": entry("U8", [9], 0, 9)}, b"x")
    yield "trailing", framed({"a": entry("U8", [1], 0, 1)}, b"xyz")
    yield "overflow", framed({"a": entry("F32", [1 << 32, 1 << 32], 0, 4)}, b"1234")
    yield "overflow-zero", framed({"a": entry("F32", [1 << 62, 1 << 62, 0], 0, 0)})
    yield "negative", framed({"a": entry("F32", [-1, -1], 0, 4)}, b"1234")
    yield "duplicate", framed('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                              '"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')
    yield "deep", framed("{" + '"a":[' * 3 + "[" * 70)
    yield "not-object", framed("[1,2]")
    yield "escapes", framed('{"\\u0061\\n\\ud83d\\ude00":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')
    header = json.dumps({"a": entry("U8", [1], 0, 1)}).encode()
    yield "raw", b"0" + struct.pack("<Q", len(header)) + header + b"x"
    yield "raw-short", b"0abc"
    yield "raw-huge-length", b"0" + b"\xff" * 8 + b"{}"


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 16,
         "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "rms_norm_eps": 1e-5}


def config():
    def llama(**more):
        return json.dumps({**LLAMA, **more}).encode()

    yield "smallest", llama()
    yield "full", llama(num_key_value_heads=2, head_dim=8, hidden_act="silu", max_position_embeddings=128,
                        tie_word_embeddings=True, attention_bias=False, mlp_bias=False, bos_token_id=1,
                        eos_token_id=[2, 3], torch_dtype="bfloat16", initializer_range=0.02)
    for kind in ("default", "linear", "dynamic", "yarn"):
        yield f"rope-scaling-{kind}", llama(rope_theta=1e4, rope_scaling={"type": kind, "factor": 2.0})
        yield f"rope-parameters-{kind}", llama(rope_parameters={"rope_type": kind, "rope_theta": 5e5, "factor": 4})
    yield "rope-llama3", llama(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
                                                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                "original_max_position_embeddings": 8192})
    yield "bias", llama(attention_bias=True)
    yield "gelu", llama(hidden_act="gelu")
    yield "huge", llama(vocab_size=1 << 62, hidden_size=1 << 62)
    yield "zero", llama(num_hidden_layers=0)
    yield "negative", llama(num_attention_heads=-4)
    yield "fraction", llama(hidden_size=16.5)
    yield "missing", b'{"architectures":["LlamaForCausalLM"],"model_type":"llama"}'
    yield "other-architecture", b'{"architectures":["GPT2LMHeadModel"],"model_type":"gpt2"}'
    yield "list", b"[]"
    yield "not-utf8", b'{"a":"\xff"}'
    topk = {"family": "topk", "k": 1, "ir": True, "fr": True, "capacity_factor": 1.0, "gate_norm": "selected",
            "straight_through": True, "lb_count": "first", "p": None, "max_experts": None, "lambda0": None,
            "lambda_multiplier": None}
    topp = {**dict.fromkeys(topk), "family": "topp", "p": 0.4, "max_experts": 2}
    relu = {**dict.fromkeys(topk), "family": "relu", "k": 1, "lambda0": 1e-8, "lambda_multiplier": 1.2}
    for name, router, model_type in (("topk", topk, "qwen2_moe"), ("topp", topp, "qwen2_moe"),
                                     ("relu", relu, "moe_relu")):
        yield f"moe-{name}", llama(
            architectures=["Qwen2MoeForCausalLM"], model_type=model_type, num_experts=4, num_experts_per_tok=1,
            norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], moe_intermediate_size=24,
            shared_expert_intermediate_size=0, qkv_bias=False,
            moe={"format": 1, "layers": [0, 2], "granularity": 1, "router": router, "gate_scale": 1.0, "ep_ranks": 4,
                 "lb_coef": 0.01, "entropy_coef": 1e-4, "router_init": {"std": 0.02, "seed": 1},
                 "source": {"name": "x", "sha256": "0"}})
    mixtral = dict(architectures=["MixtralForCausalLM"], model_type="mixtral", num_key_value_heads=2,
                   num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.02, sliding_window=None,
                   router_jitter_noise=0.1, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    own = {"format": 1, "layers": [0, 1, 2], "ep_ranks": 2, "lb_coef": 0.02,
           "router": {**topk, "capacity_factor": None, "straight_through": False, "lb_count": "selected", "k": 2}}
    yield "stock-mixtral", llama(**mixtral)
    yield "stock-mixtral-window", llama(**{**mixtral, "sliding_window": 4096})
    yield "stock-mixtral-own", llama(**mixtral, moe={**own, "form": "mixtral"})
    qwen = dict(architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", num_key_value_heads=2, num_experts=4,
                num_experts_per_tok=2, norm_topk_prob=True, moe_intermediate_size=12, decoder_sparse_step=1,
                mlp_only_layers=[], shared_expert_intermediate_size=0, qkv_bias=True, use_sliding_window=False,
                layer_types=["full_attention"] * 3)
    yield "stock-qwen2-moe", llama(**qwen)
    yield "stock-qwen2-moe-sparse-step", llama(**{**qwen, "decoder_sparse_step": 2, "norm_topk_prob": False})
    yield "stock-qwen2-moe-shared", llama(**{**qwen, "shared_expert_intermediate_size": 8})
    yield "stock-qwen2-moe-own", llama(**qwen, moe={**own, "form": "qwen2_moe"})


def data():
    """The first byte: bit 0 lm, bit 1 loss on the last, bits 2-3 the template, bit 4 a forced form, bits 5-7 which."""
    def instruct(text, choice=0):
        return bytes([choice]) + (text if isinstance(text, bytes) else text.encode())

    pair = '{"prompt": "p", "response": "r"}\n'
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    shared = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    yield "alpaca", instruct('{"instruction": "i", "input": "n", "output": "o"}')
    yield "dolly", instruct('{"instruction": "i", "context": "c", "response": "r"}', 4)
    yield "openorca", instruct('{"system_prompt": "s", "question": "q", "response": "r"}', 8)
    yield "pairs", instruct(pair + '{"prompt": "p", "completion": "r"}', 12)
    yield "messages", instruct(json.dumps({"messages": chat + chat[1:]}), 2)
    yield "sharegpt", instruct(json.dumps([{"conversations": shared}, {"conversations": shared + shared}]), 8)
    yield "rows", instruct('{"input_ids": [1, 5, 6], "labels": [-100, 5, 6]}')
    yield "text", instruct("one\n<|endoftext|>\ntwo\n", 1)
    yield "forced", instruct(pair, 16 + (3 << 5))
    yield "answer-first", instruct(json.dumps({"messages": chat[2:]}))
    yield "surrogate", instruct('{"prompt": "p", "response": "\\ud800"}')
    yield "array-cut", instruct("[" + pair + ",")
    packed = gzip.compress(pair.encode(), mtime=0)
    yield "gzip", instruct(packed)
    yield "gzip-two", instruct(packed + packed)
    yield "gzip-cut", instruct(packed[:-9])
    text = pair.encode()  # one frame of one raw block
    yield "zstd", instruct(b"\x28\xb5\x2f\xfd\x20" + bytes([len(text)]) +
                           struct.pack("<I", len(text) << 3 | 1)[:3] + text)
    yield "parquet", instruct(b"PAR1")


for make in (safetensors, config, data):
    folder = HERE / make.__name__
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make():
        (folder / name).write_bytes(content)
