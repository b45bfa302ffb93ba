#!/usr/bin/env python3
"""Folders that moe writes, read by stock transformers: a clean load report, the same logits, text and token ids.

A small trained model is upcycled (even layers, 8 experts, top-2 dropless) whole, in shards and in bf16; each folder is
loaded by AutoModelForCausalLM and held to its parent and to `moe eval --requests` and `moe generate` on the same folder.

usage: hf_folder.py           environment: MOE (the binary), MOE_SHARED_DATA
"""
import json
import math
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers import AutoTokenizer, LlamaTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import kin_folders  # noqa: E402
from kin_folders import load  # noqa: E402
from tally import SHORT, TRAINED as PARENT, Tally, moe  # noqa: E402

UPCYCLE = ["--layers", "even", "--experts", "8", "--router", "top2:cf=inf", "--verify"]
PROMPT = "Once upon a time, there was a little girl named"
# fp32 sums of at most 172 products, 5 layers deep, two orders of summation: measured 1e-5; the bound promised is 1e-4.
FP32 = 1e-4
# No runs of spaces and none at an end: this tokenizer.model drops them, transformers' LlamaTokenizer keeps them.
STRINGS = [PROMPT, "Hello world", "naïve café über straße", "日本語 and 👍 emoji", "1234567890 3.14",
           "tab\tand\nnew line", "a", "ZZZ qqq", "\"quoted\" 'text' (and) [more]", "don't won't can't"]
if SHORT:
    STRINGS = STRINGS[:4]

tally = Tally()
check = tally.check


def check_report(name, report):
    check(f"{name}: transformers loads it with nothing missing, unexpected or mismatched", not report, report or "")


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def distance(a, b):
    return (a - b).abs().max().item()


def our_ids(folder, text):
    return json.loads(moe("generate", folder, "--prompt", text, "--bos", "on", "--max-tokens", 1, "--json"))["prompt_ids"]


def check_tokenizer(name, folder, kind):
    theirs = kind.from_pretrained(folder)
    differing = [text for text in STRINGS if theirs.encode(text, add_special_tokens=False) != our_ids(folder, text)[1:]]
    check(f"{name}: transformers' tokenizer gives our ids on {len(STRINGS)} strings", not differing, differing or "")
    return theirs


def check_greedy(name, folder, model, prompt_ids, count=60):
    ours = json.loads(moe("generate", folder, "--prompt", PROMPT, "--max-tokens", count, "--json"))
    with torch.no_grad():
        theirs = model.generate(torch.tensor([prompt_ids]), max_new_tokens=count, do_sample=False, use_cache=True)[0].tolist()
    check(f"{name}: greedy text equals moe generate's, {count} tokens", ours["prompt_ids"] + ours["ids"] == theirs)


def check_scores(name, folder, model, tolerance):
    stories = [" Lily. She loved to play outside in the park.", " a big, red ball and a dog", " Tim"]
    worst = kin_folders.score_gap(model, folder, [(PROMPT, story) for story in stories])
    check(f"{name}: moe eval --requests gives transformers' log-probabilities within {tolerance} a token", worst < tolerance, f"{worst:.2e}")


def check_child(name, folder, parent_logits, ids):
    model, report = load(folder)
    check_report(name, report)
    check(f"{name}: transformers takes it for {type(model).__name__}", type(model).__name__ == "Qwen2MoeForCausalLM")
    far = distance(logits(model, ids), parent_logits)
    check(f"{name}: logits equal the parent's within {FP32}", far < FP32, f"{far:.2e}")
    return model


def check_certificate(name, folder):
    certificate = json.loads((folder / "upcycle.json").read_text())["certificate"]
    difference = certificate["max_abs_logit_difference"]
    check(f"{name}: the certificate says the same, over {certificate['tokens']} tokens",
          math.isfinite(difference) and difference < FP32 and certificate["tokens"] > 100, f"{difference:.2e}")


def main():
    transformers.utils.logging.disable_progress_bar()
    parent, report = load(PARENT)
    ids = our_ids(PARENT, PROMPT + " Lily. She loved to play outside in the park. One day, she saw a big, red ball.")
    parent_logits = logits(parent, ids)
    check_report("parent", report)
    check_tokenizer("parent", PARENT, LlamaTokenizer)  # it has no tokenizer_config.json that would name the class
    check_scores("parent", PARENT, parent, FP32)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        child = work / "child"
        moe("upcycle", PARENT, "-o", child, *UPCYCLE)
        model = check_child("child", child, parent_logits, ids)
        check_certificate("child", child)
        theirs = check_tokenizer("child", child, AutoTokenizer)
        check("child: by default transformers puts the BOS that training saw", theirs.encode(PROMPT) == our_ids(child, PROMPT))
        check_scores("child", child, model, FP32)
        check_greedy("child", child, model, our_ids(child, PROMPT))

        shards = work / "shards"
        moe("upcycle", PARENT, "-o", shards, *UPCYCLE, "--shard-size", "200KB")
        files = sorted(shards.glob("model-*-of-*.safetensors"))
        check("shards: there are several, and an index", len(files) > 3 and (shards / "model.safetensors.index.json").exists(),
              f"{len(files)} files")
        check_child("shards", shards, parent_logits, ids)
        check_certificate("shards", shards)

        half = work / "half"
        moe("upcycle", PARENT, "-o", half, *UPCYCLE, "--dtype", "bf16")
        half_parent = load(PARENT, torch.bfloat16)[0].float()  # the parent's weights rounded once, as ours are
        check_child("bf16", half, logits(half_parent, ids), ids)


if __name__ == "__main__":
    tally.run(main)
