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
    kin = dict(use_sliding_window=False, max_window_layers=28, layer_types=["full_attention"] * 3, num_key_value_heads=2)
    yield "mistral", llama(architectures=["MistralForCausalLM"], model_type="mistral", num_key_value_heads=2, sliding_window=128,
                           max_position_embeddings=128)
    yield "qwen2", llama(architectures=["Qwen2ForCausalLM"], model_type="qwen2", **kin)
    yield "qwen3", llama(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=8, attention_bias=False, **kin)
    qwen3 = dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_key_value_heads=2, num_local_experts=4,
                 num_experts_per_tok=2, moe_intermediate_size=12, mlp_only_layers=[], decoder_sparse_step=1)
    yield "stock-qwen3-moe", llama(**qwen3)
    yield "stock-qwen3-moe-own", llama(**qwen3, num_experts=4, moe={**own, "form": "qwen3_moe"})


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


def task_data():
    """The first byte chooses the reader, as in task_data_fuzz.cpp."""
    def chosen(reader, text):
        return bytes([reader]) + (text if isinstance(text, bytes) else text.encode())

    yield "csv", chosen(0, 'a,"b ""c""\n",\r\n\n1,2,\n')
    yield "csv-wide", chosen(0, "," * 3000 + "\n")
    yield "csv-quote-only", chosen(0, '""\n')
    yield "csv-open-quote", chosen(0, 'a\n"b\n')
    yield "tsv", chosen(1, 'a\t"b\n')
    record = {"q": "a", "n": 1, "label": True, "t": ["x"], "c": {"text": ["x"], "label": ["A"]},
              "a": {"choices": ["x"], "labels": [1]}, "x": None}
    yield "exported-jsonl", chosen(2, (json.dumps(record) + "\n") * 3)
    yield "exported-csv", chosen(3, "q,n,label,t,c,a,x\na,1,yes,['x'],\"{'text': array(['x']), 'label': ['A']}\","
                                    "\"{'choices': ['x'], 'labels': [0]}\",\n")
    yield "literal-deep", chosen(3, 'q,t\na,' + "[" * 100 + "\n")
    yield "quiz", chosen(4, '{"question":"q","choices":["a","b"],"answer":0}\n{"context":"c","choices":["a","b"],"answer":"B"}\n')
    yield "logiqa", chosen(5, "\na\nc\nq\nA.1\nB.2\nC.3\nD.4\n")
    arc = {"id": "1", "question": {"stem": "s", "choices": [{"text": "x", "label": "A"}], "question_concept": "c"},
           "answerKey": "A"}
    for reader in (6, 7):
        yield f"arc-{reader}", chosen(reader, json.dumps(arc) + "\n")
    yield "openbookqa", chosen(8, "ID\tStem\tChoices\tKey\n1\ts\t(A) x (B) y (C) z (D) w\tA\n")
    yield "piqa", chosen(9, '{"goal":"g","sol1":"a","sol2":"b"}\n')
    yield "mmlu", chosen(10, 'q,"a",b,c,d,A\n')
    yield "hellaswag", chosen(11, '{"ind":1,"activity_label":"[header] a","ctx_a":"a [step]","ctx_b":"b","ctx":"a b","split":"val",'
                                  '"split_type":"indomain","endings":["a","b","c","d"],"source_id":"s","label":0}\n')
    yield "truthfulqa", chosen(12, '[{"question":"q","mc1_targets":{"a":1,"b":0},"mc2_targets":{"a":1,"b":0}}]')
    yield "bbh", chosen(13, '{"examples":[{"input":"i","target":"t"}]}')
    yield "bbh-prompts", chosen(14, "canary\n-----\nHead.\n\nQ: i\nA: So the answer is t.\n")
    yield "multirc", chosen(15, '{"passage":{"text":"p","questions":[{"question":"q","answers":[{"text":"a","idx":0,"label":1}],'
                                '"idx":0}]},"idx":0}\n')
    yield "record", chosen(16, '{"passage":{"text":"abc","entities":[{"start":0,"end":1}]},"qas":[{"query":"@placeholder",'
                               '"answers":[{"text":"ab"}],"idx":0}],"idx":0}\n')
    yield "wsc", chosen(17, '{"text":"a b","target":{"span1_index":0,"span1_text":"a","span2_index":1,"span2_text":"b"},'
                            '"idx":0,"label":true}\n')
    yield "winogrande", chosen(18, '{"sentence":"a _ b","option1":"x","option2":"y","answer":"1"}\n'
                                   '{"context_options":["a x","a y"],"continuation":"b","gold":0}\n')
    yield "lambada", chosen(19, '{"text":"a b"}\n{"context":"a","continuation":"b"}\n')
    yield "lambada-text", chosen(20, "one two\nthree four\n")


def task():
    """Even first byte: TOML. Odd: a template, a zero byte, the document."""
    yield "toml", b'0data = "x.jsonl"\ndoc_to_text = """\n{{q}}"""\n[a.b]\nc = [1.5, {d.e = 1}]\n[[f]]\ng = 1979-05-27T07:32:00Z\n'
    yield "toml-dots", b"0" + b"a." * 1500 + b"a = 1\n"
    yield "toml-header", b"0[" + b"a." * 1500 + b"a]\n"
    yield "toml-most", b"0" + b"a." * 32 + b"a = " + (b"{" + b"a." * 32 + b"a = ") * 50 + b"1" + b"}" * 50
    yield "toml-brackets", b"0a = " + b"[" * 1500
    yield "toml-letter", "0a.\u039e = 1".encode()
    yield "toml-letter-in-text", '0a = """\\\n\u039e"""'.encode()
    yield "template", b'1Q: {{q.strip()}} {{c.text[0]}} {{c[\'label\'].index(k)}}\0{"q":" a ","c":{"text":["x"],"label":["A"]},"k":"A"}'
    yield "template-nested", b"1{{" + b"a.index(" * 400 + b"a" + b")" * 400 + b"}}\0{}"
    yield "template-value", b'1{{a}}\0{"a":[1,2]}'


def logits():
    yield "csv", b"x,y\n1,2\n# note\n-1e3,+4\n"
    yield "blanks", b"1 2\t3\n4 5 6\n"
    yield "list", b"[[1,2],[3,4]]"
    yield "case", b'{"kind":"topk","input":{"logits":[[1,2]],"k":1,"num_ranks":1}}'
    yield "logits", b'{"logits":[[1,2]],"home":[0]}'
    yield "wide", b"1," * 2000 + b"1\n"


def run():
    """The first byte modulo 4 chooses the file: metrics, checksums, settings, a line log."""
    yield "metrics", b"0" + b"".join(
        json.dumps({"step": step, "loss": 2.5, "lr": 1e-4, "tokens": 8, "total_tokens": 8 * step, "seconds": 0.1,
                    "tokens_per_second": 80.0, "skipped_steps": 0, "load_balance_loss": 1.0,
                    "layers": [{"layer": 2, "load": [3, 5], "dropped": 0}]}).encode() + b"\n" for step in (1, 2, 3))
    yield "metrics-cut", b'0{"step":1,"loss":1}\n{"step":2,'
    yield "metrics-backwards", b'0{"step":2}\n{"step":1}\n'
    yield "checksums", b'1{"xxh3":{"state.json":"0123456789abcdef"}}'
    yield "checksums-elsewhere", b'1{"xxh3":{"../../x":"0123456789abcdef"}}'
    yield "settings", b'2# moe train\n[train]\nsteps = 10\nlr = 0.5\ndata = ["a.jsonl"]\n'
    yield "log", b"3title\n0123456789abcdef text\n"
    yield "log-cut", b"3tit"


def tokenizer():
    """A ModelProto; four zero bytes; tokenizer_config.json."""
    def field(number, content):
        if isinstance(content, int):
            return bytes([number << 3, content])
        if isinstance(content, float):
            return bytes([number << 3 | 5]) + struct.pack("<f", content)
        return bytes([number << 3 | 2, len(content)]) + content

    def piece(text, kind, score):
        return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))

    pieces = piece("<unk>", 2, 0.0) + piece("<s>", 3, 0.0) + piece("</s>", 3, 0.0)
    words = b"".join(piece(text, 1, -float(i)) for i, text in enumerate(("\u2581", "a", "b", "ab", "\u2581a", "\u2581ab")))
    byte_pieces = b"".join(piece(f"<0x{byte:02X}>", 6, 0.0) for byte in (0x20, 0x31, 0xC3, 0xBC))
    for name, kind in (("unigram", 1), ("bpe", 2), ("word", 3), ("char", 4)):
        trainer = field(2, field(3, kind))
        yield name, pieces + words + byte_pieces + trainer + field(3, field(3, 1) + field(4, 1) + field(5, 1))
    yield "fallback", pieces + words + byte_pieces + field(2, field(3, 2) + bytes([0x98, 0x02, 1])) + field(3, field(3, 0))
    yield "config", pieces + words + field(2, field(3, 2)) + b"\0\0\0\0" + b'{"add_bos_token": true}'
    yield "no-unknown", words
    yield "unknown-renamed", piece("a?", 2, 0.0) + pieces[len(piece("<unk>", 2, 0.0)):] + words + piece("<unk>", 1, -9.0) + field(2, field(3, 2))
    yield "not-a-model", b"\0\0\0\0{}"


def tokenizer_json():
    """A tokenizer.json, or lines of base64 and rank."""
    def made(normalizer=None, pre=None, post=None, decoder=None, **model):
        base = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u2581": 4, "<unk>": 5, "<0xC3>": 6, "<0xBC>": 7},
                "merges": ["a b"]}
        added = [{"id": 8, "content": "<s>", "special": True, "normalized": False, "lstrip": True, "rstrip": True, "single_word": False},
                 {"id": 9, "content": "1", "special": False, "normalized": True, "single_word": True}]
        return json.dumps({"added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post,
                           "decoder": decoder, "model": base | model}, separators=(",", ":")).encode()

    replace = {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "_"}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    yield "plain", made()
    yield "forms", made({"type": "Sequence", "normalizers": [{"type": f} for f in ("NFD", "NFKC", "Lowercase")]})
    yield "normalizers", made({"type": "Sequence", "normalizers": [strip, replace, {"type": "Prepend", "prepend": " "}]})
    yield "byte-level", made(None, {"type": "ByteLevel", "add_prefix_space": True}, {"type": "ByteLevel"}, {"type": "ByteLevel"})
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield f"split-{behavior}", made(None, {"type": "Split", "pattern": {"Regex": "\\p{L}+|x*"}, "behavior": behavior, "invert": True})
    yield "splits", made(None, {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, {"type": "Punctuation"}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"}]})
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    yield "metaspace", made(None, meta, None, meta, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    yield "decoders", made(None, None, None, {"type": "Sequence", "decoders": [
        replace, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]},
        byte_fallback=True, ignore_merges=True)
    yield "template", made(None, None, {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [8]}}})
    yield "unigram", b'{"model":{"type":"Unigram","vocab":[]}}'
    yield "pairs", made(merges=[["a", "b"]])
    yield "ranks", b"IQ== 0\nIg== 1\n"


for make in (safetensors, config, data, task_data, task, logits, run, tokenizer, tokenizer_json):
    folder = HERE / make.__name__
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make():
        (folder / name).write_bytes(content)
