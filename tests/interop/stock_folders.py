#!/usr/bin/env python3
"""Folders that stock transformers makes, read by moe and, after training, read back by transformers.

Tiny random models: Mixtral; Qwen2-MoE with a shared expert and without, with and without norm_topk_prob and biases, with dense layers by
mlp_only_layers and by decoder_sparse_step; Qwen3-MoE; one in shards; and LLaMA's dense kin (tests/support/kin_folders.py: Llama 3's
shape, Mistral, Qwen2, Qwen3, tied and not). For each: `moe eval --requests` gives transformers' log-probabilities; `moe train` takes
transformers' steps; RUN/final keeps names, config and model_type, loads with a clean report, and its logits are moe's. The dense ones
are upcycled too, with a shared expert and without: the child is the stock mixture that holds them, with its parent's logits in
transformers as well, and trains alike.

usage: stock_folders.py       environment: MOE (the binary), MOE_SHARED_DATA
"""
import json
import pathlib
import shutil
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import kin_folders  # noqa: E402
from kin_folders import load, score_gap  # noqa: E402
from tally import SHORT, TRAINED, Tally, moe, write_jsonl  # noqa: E402

REQUESTS = [("Once upon a time", ", there was a little girl named Lily."), ("The dog", " ran"), ("He said", " no, thank you")]
# fp32 sums of at most 48 products, 4 layers deep, in two orders; log-probabilities of order 6. Measured 1e-6.
SCORES = 2e-5
# Losses and gradient norms, relative: fp32 sums again, and EPS keeps AdamW from making whole steps out of roundings.
STEPS_APART = 1e-5
STEPS, LR, EPS, LENGTH, BATCH = 3, 1e-3, 1e-6, 24, 2

SIZES = dict(vocab_size=kin_folders.VOCABULARY, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, initializer_range=0.2, num_experts_per_tok=2)
QWEN3 = dict(SIZES, num_experts=4, moe_intermediate_size=24)
QWEN = dict(QWEN3, shared_expert_intermediate_size=0)
MODELS = {
    "mixtral": (MixtralConfig(**SIZES, num_hidden_layers=2, num_local_experts=4), "1GB"),
    "mixtral in shards": (MixtralConfig(**SIZES, num_hidden_layers=2, num_local_experts=8, head_dim=16), "60KB"),
    "qwen2_moe": (Qwen2MoeConfig(**QWEN, num_hidden_layers=2, norm_topk_prob=True), "1GB"),
    "qwen2_moe, one mixture": (
        Qwen2MoeConfig(**QWEN, num_hidden_layers=2, norm_topk_prob=True, mlp_only_layers=[0], router_aux_loss_coef=0.5), "1GB"),
    "qwen2_moe, weights as they are, mlp_only_layers": (
        Qwen2MoeConfig(**QWEN, num_hidden_layers=4, norm_topk_prob=False, mlp_only_layers=[0, 2]), "1GB"),
    "qwen2_moe, no biases, decoder_sparse_step 2": (
        Qwen2MoeConfig(**QWEN, num_hidden_layers=4, norm_topk_prob=True, decoder_sparse_step=2, qkv_bias=False), "1GB"),
    "qwen2_moe, a shared expert": (
        Qwen2MoeConfig(**QWEN3, num_hidden_layers=2, norm_topk_prob=True, shared_expert_intermediate_size=40), "1GB"),
    "qwen2_moe, a shared expert, one mixture, weights as they are, in shards": (
        Qwen2MoeConfig(**QWEN3, num_hidden_layers=2, norm_topk_prob=False, shared_expert_intermediate_size=20, mlp_only_layers=[1],
                       router_aux_loss_coef=0.5), "60KB"),
    "qwen3_moe": (Qwen3MoeConfig(**QWEN3, num_hidden_layers=2, norm_topk_prob=True), "1GB"),
    "qwen3_moe in shards, one mixture, tied": (
        Qwen3MoeConfig(**QWEN3, num_hidden_layers=2, norm_topk_prob=True, mlp_only_layers=[0], router_aux_loss_coef=0.5, head_dim=12,
                       tie_word_embeddings=True), "60KB"),
}
# What each of kin_folders becomes; mixtures of equal experts have their parent's logits.
CHILDREN = {"llama3": "Qwen2MoeForCausalLM", "mistral": "Qwen2MoeForCausalLM", "mistral, no window": "Qwen2MoeForCausalLM",
            "qwen2": "Qwen2MoeForCausalLM", "qwen2, tied": "Qwen2MoeForCausalLM", "qwen2, a window": "Qwen2MoeForCausalLM",
            "qwen3": "Qwen3MoeForCausalLM", "qwen3, tied": "Qwen3MoeForCausalLM"}
DTYPES, SHARED_ROUTERS, SHARED_KIN = (torch.float32, torch.bfloat16), ("top1:cf=inf", "top2:cf=inf,st=off"), ("mistral", "qwen2")
if SHORT:
    MODELS = {name: MODELS[name] for name in ("mixtral", "qwen2_moe, a shared expert", "qwen3_moe in shards, one mixture, tied")}
    CHILDREN = {name: CHILDREN[name] for name in ("mistral", "qwen3")}
    DTYPES, SHARED_ROUTERS, SHARED_KIN = DTYPES[:1], SHARED_ROUTERS[1:], SHARED_KIN[1:]

tally = Tally()
check = tally.check


def stored(folder):
    """{name: (shape, dtype)} over all files"""
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            found |= {name: (tensors.get_slice(name).get_shape(), tensors.get_slice(name).get_dtype()) for name in tensors.keys()}
    return found


def clip(parameters):
    """torch's clip_grad_norm_ to 1, with the norm in fp64: over the 4 million numbers of Llama 3's embedding it is 1e-5 off in fp32."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt()
    for gradient in gradients:
        gradient.mul_(min(1.0, 1.0 / (norm.item() + 1e-6)))
    return norm


def train_here(folder, rows, aux):
    """The language model's loss and the norm of all gradients at each step, by transformers and torch. `aux` is the weight of
    the load-balance loss."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0)
    steps = []
    for step in range(STEPS):
        ids = torch.tensor(rows[step * BATCH : (step + 1) * BATCH])
        out = model(ids, output_router_logits=aux > 0)
        logits = out.logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1))
        (loss + aux * out.aux_loss if aux > 0 else loss).backward()
        norm = clip(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        steps.append((loss.item(), norm.item()))
    return steps


def train_moe(folder, rows, run, *flags):
    data = run.parent / "rows.jsonl"
    write_jsonl(data, ({"input_ids": row, "labels": row} for row in rows))
    sizes = {"--steps": STEPS, "--seq-len": LENGTH, "--micro-batch": BATCH, "--lr": LR, "--eps": EPS, "--threads": 1}
    return kin_folders.train_moe(folder, data, run, sizes, *flags)


def check_config(name, before, after, coefficient):
    """`coefficient` is the weight of the load-balance loss in training, which the folder stores; None: it has none."""
    before = {key: value for key, value in before.items() if key != "moe"}
    if coefficient is not None:
        before["router_aux_loss_coef"] = coefficient
    changed = {key: (value, after.get(key)) for key, value in before.items()
               if after.get(key) != value and key not in ("head_dim", "transformers_version")}
    check(f"{name}: every key of config.json is kept, the loss coefficient is the one trained with", not changed, changed or "")


def check_mixture(name, config, shard, work):
    made = work / "stock"
    torch.manual_seed(1)
    stock = AutoModelForCausalLM.from_config(config).eval()
    kin_folders.spread(stock)
    stock.save_pretrained(made, max_shard_size=shard)
    shutil.copy(TRAINED / "tokenizer.model", made)
    if shard != "1GB":
        check(f"{name}: there are shards", len(list(made.glob("*.safetensors"))) > 2)
    # Stock pools the load-balance loss over layers and batch: the same as ours for one layer on one rank.
    one_mixture = config.model_type != "mixtral" and config.num_hidden_layers - len(config.mlp_only_layers) == 1
    check_folder(name, stock, made, work / "run", config.router_aux_loss_coef if one_mixture else 0)


def check_kin(name, work):
    """A dense folder and its children, of whole feed-forwards and of slices."""
    made = work / "stock"
    stock = kin_folders.make_folder(name, made)
    check_folder(name, stock, made, work / "run", None)
    check_child(name, stock, made, work / "child", 1)
    if not SHORT:
        check_child(f"{name}, finer experts", stock, made, work / "finer", 4)


def check_child(name, stock, made, child, granularity):
    moe("upcycle", made, "-o", child, "--experts", 4, "--granularity", granularity, "--layers", "even", "--router",
        "top2:cf=inf,st=off", "--verify")
    certificate = json.loads((child / "upcycle.json").read_text())["certificate"]
    gap = certificate["max_abs_logit_difference"]
    check(f"{name}: the certificate of the upcycled folder", certificate["preserves_function"] and gap < SCORES, f"{gap:.1e}")
    mixture, report = load(child)
    kind, wanted = type(mixture).__name__, CHILDREN[name.removesuffix(", finer experts")]
    check(f"{name}: upcycled it is a {wanted} with a clean report", kind == wanted and not report, report or kind)
    chosen = mixture.config.num_experts, mixture.config.num_experts_per_tok, mixture.config.moe_intermediate_size
    width = stock.config.intermediate_size
    check(f"{name}: it says how many experts there are, and how many a token takes",
          chosen == (4 * granularity, 2 * granularity, width // granularity), chosen)
    ids = torch.randint(3, 512, (1, 100))
    with torch.no_grad():
        gap = (stock(ids).logits - mixture(ids).logits).abs().max().item()
    check(f"{name}: transformers gives parent and child the same logits", gap < 1e-4, f"{gap:.1e}")
    check_folder(f"{name}, upcycled", mixture, child, child.with_name(f"{child.name}-run"), 0)


def check_shared(name, work):
    """A dense folder of 16-bit or 32-bit numbers and its children with a shared expert: the same logits for any router."""
    for dtype in DTYPES:
        made = work / f"{dtype}"
        kin_folders.make_folder(name, made)
        if dtype != torch.float32:
            AutoModelForCausalLM.from_pretrained(made, dtype=dtype).save_pretrained(made)
        parent, _ = load(made)
        ids = torch.randint(3, 512, (1, 100))
        for router in SHARED_ROUTERS:
            child = work / f"{dtype} {router}"
            moe("upcycle", made, "-o", child, "--experts", 4, "--layers", "even", "--router", router, "--shared-expert", "--verify")
            certificate = json.loads((child / "upcycle.json").read_text())["certificate"]
            gap = certificate["max_abs_logit_difference"]
            told = f"{name}, {dtype}, {router}, a shared expert"
            check(f"{told}: the certificate of the upcycled folder", certificate["preserves_function"] and gap < 1e-4, f"{gap:.1e}")
            mixture, report = load(child)
            check(f"{told}: it loads as a Qwen2MoeForCausalLM with a clean report",
                  type(mixture).__name__ == "Qwen2MoeForCausalLM" and not report, report or "")
            with torch.no_grad():
                gap = (parent(ids).logits - mixture(ids).logits).abs().max().item()
            check(f"{told}: transformers gives parent and child the same logits", gap < 1e-4, f"{gap:.1e}")
    check_folder(f"{name}, upcycled with a shared expert", load(work / "torch.float32 top2:cf=inf,st=off")[0],
                 work / "torch.float32 top2:cf=inf,st=off", work / "shared-run", 0)


def check_folder(name, stock, made, run, aux):
    """`aux` is the weight of the load-balance loss in training; None: of a dense model, which has none."""
    gap = score_gap(stock, made, REQUESTS)
    check(f"{name}: moe eval gives transformers' log-probabilities within {SCORES} a token", gap < SCORES, f"{gap:.1e}")

    rows = torch.randint(3, 512, (STEPS * BATCH, LENGTH)).tolist()
    flags = [] if aux is None else ["--ep-ranks", 1] if aux else ["--lb-coef", 0]
    theirs, ours = train_here(made, rows, aux or 0), train_moe(made, rows, run, *flags)
    gap = max(abs(a - b) / a for pair in zip(theirs, ours, strict=True) for a, b in zip(*pair))
    with_loss = ", load-balance loss included" if aux else ""
    check(f"{name}: moe train takes transformers' steps within {STEPS_APART}{with_loss}", gap < STEPS_APART,
          f"loss {ours[0][0]:.4f} -> {ours[-1][0]:.4f}, gradient norm {ours[0][1]:.3f}, {gap:.1e}")
    trained, report = load(run / "final")
    check(f"{name}: RUN/final loads as {type(trained).__name__} with a clean report",
          type(trained) is type(stock) and not report, report or "")
    check(f"{name}: RUN/final has the names, shapes and types of the folder it came from", stored(run / "final") == stored(made))
    check_config(name, json.loads((made / "config.json").read_text()), json.loads((run / "final/config.json").read_text()), aux)
    gap = score_gap(trained, run / "final", REQUESTS)
    check(f"{name}: RUN/final gives the same log-probabilities in both", gap < SCORES, f"{gap:.1e}")


def check_other_routers(work):
    """Checks a Mixtral folder after training with routers that transformers does not have."""
    for router, kind in (("top2+ir+fr:cf=1", "MixtralForCausalLM"), ("top2:gate=none", "Qwen2MoeForCausalLM")):
        run = work / kind
        train_moe(work / "mixtral" / "stock", [list(range(3, 3 + LENGTH))] * (STEPS * BATCH), run, "--router", router, "--force")
        model, report = load(run / "final")
        check(f"a Mixtral trained with {router} loads as {kind}, clean", type(model).__name__ == kind and not report, report or "")
        if "cf=1" not in router:  # dropless: stock tools compute the same
            gap = score_gap(model, run / "final", REQUESTS)
            check(f"a Mixtral trained with {router}: the same log-probabilities in both", gap < SCORES, f"{gap:.1e}")


def main():
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for name, (config, shard) in MODELS.items():
            (work / name).mkdir()
            check_mixture(name, config, shard, work / name)
        for name in CHILDREN:
            if name == "llama3" and not kin_folders.LLAMA3.is_file():
                print(f"skipped: {name}: no {kin_folders.LLAMA3}")
                continue
            (work / name).mkdir()
            check_kin(name, work / name)
        for name in SHARED_KIN:
            (work / f"{name}, shared").mkdir()
            check_shared(name, work / f"{name}, shared")
        check_other_routers(work)


if __name__ == "__main__":
    tally.run(main)
