"""What tests/gpu/measure.py measures beside us: LibTorch's products, transformers' training, lm-evaluation-harness' scoring.

usage: peers.py products  [--experts 8] [--rows 2048] [--width 4096] [--inner 11008] --device cuda|cpu
       peers.py train CONFIG [--batch 8] [--length 2048] [--steps 5] --device cuda|cpu
       peers.py evaluate FOLDER [--questions 400] --device cuda|cpu

One JSON line. Exit code 77, with the reason as the last line, where a package is missing.
"""
import argparse
import json
import math
import random
import statistics
import sys
import time


def seconds_of(torch, device, work, repeats):
    """The median of `repeats`, after two to warm up, each waited for."""
    found = []
    for number in range(repeats + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found += [time.perf_counter() - began] if number >= 2 else []
    return statistics.median(found)


def products(options):
    """gate_up and down of E experts in bf16, E x rows rows: one product, a product an expert, and _grouped_mm, beside each other."""
    import torch
    device, experts, rows = options.device, options.experts, options.rows
    results = {}
    for name, inner, outer in (("gate_up", options.width, 2 * options.inner), ("down", options.inner, options.width)):
        x = torch.randn(experts * rows, inner, device=device, dtype=torch.bfloat16)
        weight = torch.randn(experts, outer, inner, device=device, dtype=torch.bfloat16)
        ends = torch.arange(rows, experts * rows + 1, rows, device=device, dtype=torch.int32)
        out = torch.empty(experts * rows, outer, device=device, dtype=torch.bfloat16)
        def loop():
            for expert in range(experts):
                part = slice(expert * rows, (expert + 1) * rows)
                torch.mm(x[part], weight[expert].t(), out=out[part])
        repeats = 20 if device == "cuda" else 2
        flop = 2 * experts * rows * inner * outer
        results[name] = {kind: flop / seconds_of(torch, device, work, repeats) / 1e12 for kind, work in (
            ("one_tflops", lambda: torch.mm(x, weight[0].t())),
            ("loop_tflops", loop),
            ("grouped_tflops", lambda: torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)))}
    for one in results.values():
        one["best_tflops"] = max(one["loop_tflops"], one["grouped_tflops"])
    least = lambda kind: min(one[f"{kind}_tflops"] / one["one_tflops"] for one in results.values())
    return results | {f"{kind}_of_one": least(kind) for kind in ("grouped", "loop", "best")}


def train(options):
    """MixtralForCausalLM with its grouped_mm experts, eight of them in each layer, top-2; weights in bf16, fused AdamW, clip 1."""
    import torch
    import transformers
    with open(options.config) as file:
        shape = json.load(file)
    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
            "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    config = transformers.MixtralConfig(**{name: shape[name] for name in kept}, num_local_experts=8, num_experts_per_tok=2)
    torch.manual_seed(1)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, experts_implementation="grouped_mm")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(config.vocab_size, (options.batch, options.length), device=options.device)

    def step():
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = seconds_of(torch, options.device, step, options.steps)
    return {"tokens_per_second": options.batch * options.length / seconds, "step_s": seconds, "transformers": transformers.__version__,
            "peak_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else 0}


def some_length(draw, mean, least, most):
    return min(max(int(math.exp(mean + 0.5 * draw.gauss(0, 1))), least), most)


def requests_of(name, questions, vocabulary):
    """(context, continuation) as tokens, four a question, of the lengths of `moe bench eval`'s sets: equally distributed, other draws."""
    draw, requests = random.Random(name), []
    tokens = lambda count: [draw.randrange(vocabulary) for _ in range(count)]
    for _ in range(questions):
        spans = name == "spans"
        context = tokens(some_length(draw, 4.2, 16, 256) if spans else some_length(draw, 5.0, 48, 512))
        requests += [(context, tokens(some_length(draw, 2.6, 2, 64) if spans else 1)) for _ in range(4)]
    return requests


def score_as_harness(torch, model, requests, batch, device):
    """What HFLM._loglikelihood_tokens of lm-evaluation-harness 0.4.13 computes: requests that share all but a last token share a forward;
    the longest first, padded to their batch; logits and log-softmax at every position."""
    groups = {}
    for context, continuation in requests:
        row = tuple(context + continuation[:-1])
        groups.setdefault((row, len(continuation)), []).append(continuation)
    rows = sorted(groups, key=lambda key: -len(key[0]))
    total = 0.0
    for first in range(0, len(rows), batch):
        chosen = rows[first:first + batch]
        longest = max(len(row) for row, _ in chosen)
        ids = torch.tensor([list(row) + [0] * (longest - len(row)) for row, _ in chosen], device=device)
        log_probabilities = torch.log_softmax(model(input_ids=ids).logits, -1)
        for number, (row, length) in enumerate(chosen):
            at = log_probabilities[number, len(row) - length:len(row)]
            for continuation in groups[(row, length)]:
                total += at.gather(1, torch.tensor(continuation, device=device)[:, None]).sum().item()
    return total


def evaluate(options):
    """Seconds at the best of three batch sizes, the model in bf16."""
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(options.config, dtype=torch.bfloat16).to(options.device).eval()
    found = {"seconds": {}, "batch": {}, "transformers": transformers.__version__}
    with torch.inference_mode():
        for name in ("letters", "spans"):
            requests = requests_of(name, options.questions, model.config.vocab_size)
            tried = {}
            for batch in (8, 32, 64) if options.device == "cuda" else (8,):
                run = lambda: score_as_harness(torch, model, requests, batch, options.device)
                run()
                began = time.perf_counter()
                run()
                tried[batch] = time.perf_counter() - began
            found["batch"][name] = min(tried, key=tried.get)
            found["seconds"][name] = min(tried.values())
    return found


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name, numbers in (("products", {"experts": 8, "rows": 2048, "width": 4096, "inner": 11008}),
                          ("train", {"batch": 8, "length": 2048, "steps": 5}), ("evaluate", {"questions": 400})):
        command = commands.add_parser(name)
        if name != "products":
            command.add_argument("config")
        for option, default in numbers.items():
            command.add_argument(f"--{option}", type=int, default=default)
        command.add_argument("--device", required=True)
    options = parser.parse_args()
    try:
        print(json.dumps({"products": products, "train": train, "evaluate": evaluate}[options.command](options)))
    except ImportError as error:
        print(f"a package is missing: {error}")
        return 77
    return 0


sys.exit(main())
