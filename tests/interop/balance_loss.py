#!/usr/bin/env python3
"""What stock transformers computes as the load-balance loss of its mixtures, and how ours compares.

For Mixtral, Qwen2-MoE and Qwen3-MoE, of one mixture and of three, top-1 and top-2: `aux_loss` against plain sums in fp64 of
    once    E sum_j f_j Q_j    with Q = mean of softmax(a), f_j = (requests of expert j) / tokens, both pooled over all layers
    twice   the same with Q = mean of softmax(softmax(a))
Versions before huggingface/transformers#45131 (see #45120) put softmax(a) in the place of the logits a and so computed the second, which
hardly depends on the router: Q then lies between 1 / (E - 1 + e) and e / (E - 1 + e). The check is that this version computes the first.
Then `moe train` on the same folder and rows: its load_balance_loss is the sum over layers of each layer's own E sum_j f_j Q_j, the same
number for one mixture. Over several it is not L times theirs: what one layer has too much of, another may have too little of, and a
pooled mean does not see it.

usage: balance_loss.py       environment: MOE (the binary)
"""
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import kin_folders  # noqa: E402
from tally import SHORT, Tally, moe, read_jsonl, write_jsonl  # noqa: E402

EXPERTS, ROWS, LENGTH = 8, 4, 48
# fp32 sums of 192 tokens x 3 layers on their side, fp64 on ours: 576 roundings of 6e-8 at worst, relative.
SAME = 4e-5
SIZES = dict(vocab_size=256, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, initializer_range=0.2)
QWEN = dict(SIZES, num_experts=EXPERTS, moe_intermediate_size=24, norm_topk_prob=True)

tally = Tally()


def config_of(kind, layers, k):
    if kind == "mixtral":
        return MixtralConfig(**SIZES, num_hidden_layers=layers, num_local_experts=EXPERTS, num_experts_per_tok=k)
    if kind == "qwen2_moe":
        return Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=0, num_hidden_layers=layers, num_experts_per_tok=k)
    return Qwen3MoeConfig(**QWEN, num_hidden_layers=layers, num_experts_per_tok=k)


def own_loss(routers, k, softmaxes):
    """E sum_j f_j Q_j of logits [T, E] a layer, pooled over layers."""
    requests, weights, tokens = torch.zeros(EXPERTS, dtype=torch.float64), torch.zeros(EXPERTS, dtype=torch.float64), 0
    for logits in routers:
        shares = logits.double()
        for _ in range(softmaxes):
            shares = shares.softmax(-1)
        for row in logits.topk(k, -1).indices.tolist():
            for expert in row:
                requests[expert] += 1
        weights += shares.sum(0)
        tokens += logits.size(0)
    return (EXPERTS * (requests / tokens * weights / tokens).sum()).item()


def moe_loss(folder, rows, work, k):
    """load_balance_loss of the first step of moe train, all rows in one micro-batch on one logical rank."""
    data, run = work / "rows.jsonl", work / "run"
    write_jsonl(data, ({"input_ids": row, "labels": row} for row in rows.tolist()))
    moe("train", folder, "-o", run, "--data", data, "--steps", 1, "--seq-len", LENGTH, "--micro-batch", ROWS, "--pack", "none", "--shuffle", "off",
        "--ep-ranks", 1, "--router", f"top{k}:cf=inf,lb=selected", "--quiet", "--threads", 1)
    return read_jsonl(run / "metrics.jsonl")[-1]["load_balance_loss"]


def apart(a, b):
    return abs(a - b) / abs(b)


def check_kind(kind, layers, k, work):
    torch.manual_seed(layers + k)
    model = AutoModelForCausalLM.from_config(config_of(kind, layers, k)).eval()
    kin_folders.spread(model)
    rows = torch.randint(3, 256, (ROWS, LENGTH))
    with torch.no_grad():
        out = model(rows, output_router_logits=True)
    routers = [logits.reshape(-1, EXPERTS) for logits in out.router_logits]
    name = f"{kind}, {layers} mixture{'' if layers == 1 else 's'}, top-{k}"
    theirs, once, twice = out.aux_loss.item(), own_loss(routers, k, 1), own_loss(routers, k, 2)
    tally.check(f"{name}: there are as many routers as mixtures", len(routers) == layers, len(routers))
    sums = torch.cat(routers).sum(-1)
    tally.check(f"{name}: router_logits are logits, no probabilities", (sums - 1).abs().max() > 0.1)
    tally.check(f"{name}: transformers {transformers.__version__} applies softmax once", apart(theirs, once) < SAME,
                f"{theirs:.6f}, once {once:.6f}, twice {twice:.6f}")
    tally.check(f"{name}: which is another number than twice", apart(theirs, twice) > 1e-2, f"{apart(theirs, twice):.3f}")
    model.save_pretrained(work)
    ours, layerwise = moe_loss(work, rows, work, k), sum(own_loss([logits], k, 1) for logits in routers)
    tally.check(f"{name}: moe train sums each layer's own", apart(ours, layerwise) < SAME, f"{ours:.6f}, {layerwise:.6f}")
    if layers == 1:
        tally.check(f"{name}: which is transformers' number", apart(ours, theirs) < SAME)
    else:
        tally.check(f"{name}: pooled over layers it is less than their mean", theirs < layerwise / layers, f"{layerwise / layers:.6f}")


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for kind in ("mixtral", "qwen2_moe", "qwen3_moe"):
        for layers, k in ((1, 2),) if SHORT else ((1, 1), (1, 2), (3, 2)):
            with tempfile.TemporaryDirectory() as work:
                check_kind(kind, layers, k, pathlib.Path(work))
    tally.finish()


if __name__ == "__main__":
    main()
