"""`moe train` against transformers with torch's AdamW: loss and gradient norm of every one of the first steps, fp32.

usage: train_parity.py [--steps 20] [--batch 4] [--length 128]

For the real model as it is (LlamaForCausalLM) and for its upcycled top-2 dropless child (Qwen2MoeForCausalLM; auxiliary
loss off; straight-through off, since transformers differentiates through the renormalised weights, SPEC section 6): rows of
real text, one row a sequence, in file order, constant learning rate, no packing. Last line: `N passed, N failed, N skipped`.

Tolerance 1e-4 relative: both sides sum in f32 in different orders. One thing amplifies that without bound: right after
upcycling all experts are equal, so the router's gradient is zero but for rounding (1e-9), and AdamW with eps 1e-8 makes
steps of lr out of it, other ones on each side. Hence the child runs with the paper's small lr, and with a large lr and
eps 1e-6, which leaves that noise where it is: at lr 1e-3 and eps 1e-8 step 4 was 8e-4 apart, with eps 1e-6 all are 1e-6.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForCausalLM

MOE = os.environ.get("MOE", "./moe")
DATA = pathlib.Path(os.environ.get("MOE_SHARED_DATA", "../shared/data"))
TOLERANCE = 1e-4
BETAS, CLIP = (0.9, 0.95), 1.0


def write_rows(path, model, count, length):
    """BOS + tokens of real stories, cut into rows; every fourth row learns its second half only."""
    tokenizer = SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
    text = (DATA / "text" / "tinystories_v2_train_head.txt").read_text()
    ids = []
    for story in text.split("<|endoftext|>"):
        ids += [tokenizer.bos_id()] + tokenizer.encode(story.strip())
        if len(ids) >= count * length:
            break
    with open(path, "w") as out:
        for row in range(count):
            part = ids[row * length : (row + 1) * length]
            hidden = length // 2 if row % 4 == 3 else 0
            out.write(json.dumps({"input_ids": part, "labels": [-100] * hidden + part[hidden:]}) + "\n")


def reference(model, rows, options):
    """(loss, gradient norm before clipping) of each step, by transformers."""
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr, betas=BETAS, eps=options.eps, weight_decay=0.0)
    data = [json.loads(line) for line in open(rows)]
    steps = []
    for step in range(options.steps):
        part = data[step * options.batch : (step + 1) * options.batch]
        ids = torch.tensor([row["input_ids"] for row in part])
        labels = torch.tensor([row["labels"] for row in part])
        logits = net(ids).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1), ignore_index=-100
        )
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((loss.item(), norm.item()))
    return type(net).__name__, steps


def ours(model, rows, run, options, extra):
    flags = {
        "--steps": options.steps,
        "--seq-len": options.length,
        "--micro-batch": options.batch,
        "--global-batch": options.batch,
        "--lr": options.lr,
        "--schedule": "constant",
        "--beta1": BETAS[0],
        "--beta2": BETAS[1],
        "--eps": options.eps,
        "--clip": CLIP,
        "--weight-decay": 0,
        "--pack": "none",
        "--shuffle": "off",
    }
    words = [str(word) for pair in flags.items() for word in pair]
    command = [MOE, "train", str(model), "-o", str(run), "--data", str(rows), "--quiet", *words, *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in open(run / "metrics.jsonl")]
    return [(record["loss"], record["grad_norm"]) for record in records]


def compare(name, expected, found):
    worst = 0.0
    for step, (theirs, mine) in enumerate(zip(expected, found, strict=True), start=1):
        gaps = [abs(a - b) / abs(a) for a, b in zip(theirs, mine)]
        worst = max(worst, *gaps)
        if not max(gaps) <= TOLERANCE:
            print(f"{name}: step {step}: transformers loss, norm {theirs}, moe {mine}: {max(gaps):.2e} apart")
            return False
    print(f"{name}: {len(found)} steps, loss {found[0][0]:.4f} -> {found[-1][0]:.4f}, at most {worst:.1e} apart")
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    dense = DATA / "stories260K-hf"
    if not dense.is_dir():
        print("no real model: set MOE_SHARED_DATA\n0 passed, 0 failed, 3 skipped")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rows, child = folder / "rows.jsonl", folder / "child"
        write_rows(rows, dense, options.steps * options.batch, options.length)
        upcycle = ["--layers", "even", "--experts", "8", "--router", "top2:cf=inf,st=off"]
        subprocess.run([MOE, "upcycle", str(dense), "-o", str(child), *upcycle], check=True, stdout=subprocess.DEVNULL)
        runs = [
            ("dense", dense, 1e-3, 1e-8, []),
            ("top-2 dropless", child, 1e-3, 1e-6, ["--lb-coef", "0"]),
            ("top-2 dropless", child, 1e-5, 1e-8, ["--lb-coef", "0"]),
        ]
        passed = 0
        for number, (name, model, options.lr, options.eps, extra) in enumerate(runs):
            kind, expected = reference(model, rows, options)
            label = f"{name} ({kind}), lr {options.lr:g}, eps {options.eps:g}"
            passed += compare(label, expected, ours(model, rows, folder / f"run-{number}", options, extra))
    print(f"{passed} passed, {len(runs) - passed} failed, 0 skipped")
    return 0 if passed == len(runs) else 1


sys.exit(main())
