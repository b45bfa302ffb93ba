#!/usr/bin/env python3
"""Folders of `moe train` and `moe upcycle --add-tokens` in transformers: shapes as by resize_token_embeddings, new rows, ids and logits.

The parents have a tokenizer.model alone (tied) and a tokenizer.json (untied, with one row more than tokens). Training has a learning rate
of 0, so that the rows stay as they started.

usage: added_tokens.py           environment: MOE (the binary), MOE_SHARED_DATA
"""
import json
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kin_folders  # noqa: E402
import tokenizer_parity as kinds  # noqa: E402
from chat_templates import conversations, trained_on  # noqa: E402
from tally import DATA, TRAINED, Tally, moe, skip_without, write_jsonl  # noqa: E402

MARKS = ["<|im_start|>", "<|im_end|>"]
tally = Tally()
check = tally.check


def make_json_parent(folder):
    raw = kinds.make_gpt2(kinds.corpus()[:2000])
    PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>").save_pretrained(folder)
    size = len(AutoTokenizer.from_pretrained(folder))
    LlamaForCausalLM(LlamaConfig(**kin_folders.SIZES | dict(vocab_size=size + 1), tie_word_embeddings=False)).save_pretrained(folder)
    return folder


def rows(model):
    return [model.get_input_embeddings().weight, model.get_output_embeddings().weight]


def check_folder(name, folder, parent, size):
    """Compares a dense folder with its parent, whose tokenizer has `size` tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check(f"{name}: the marks are the next ids", tokenizer.convert_tokens_to_ids(MARKS) == [size, size + 1] and len(tokenizer) == size + 2)
    theirs, ours = AutoModelForCausalLM.from_pretrained(parent).float(), AutoModelForCausalLM.from_pretrained(folder).float()
    theirs.resize_token_embeddings(size + 2, mean_resizing=False)
    with torch.no_grad():
        for weight in rows(theirs)[:1 if theirs.config.tie_word_embeddings else 2]:
            weight[size:] = weight[:size].double().mean(0).float()
        ids = torch.tensor([[1, size, 5, 7, size + 1, 9]])
        check(f"{name}: shapes are those of resize_token_embeddings", [w.shape for w in rows(ours)] == [w.shape for w in rows(theirs)])
        check(f"{name}: new rows are the mean", all((a - b).abs().max() < 1e-6 for a, b in zip(rows(ours), rows(theirs))))
        check(f"{name}: logits are equal", (ours(ids).logits - theirs(ids).logits).abs().max() < 1e-5)
    return tokenizer


def check_parent(name, parent, work):
    size = len(AutoTokenizer.from_pretrained(parent))
    plain = lambda text: "  " not in text and text == text.strip(" ")  # noqa: E731  moe drops such spaces with this tokenizer.model
    records = [record for record in conversations(with_system=True) if all(plain(message["content"]) for message in record)]
    write_jsonl(work / "data.jsonl", ({"messages": record} for record in records))
    moe("train", parent, "-o", work / "run", "--data", work / "data.jsonl", "--template", "chatml", "--add-tokens", "auto", "--steps", 1, "--lr", 0,
        "--seq-len", 64, "--cache", "off")
    tokenizer = check_folder(f"{name}, trained", work / "run/final", parent, size)
    got = trained_on(parent, "chatml", records, work, "--add-tokens", "auto")
    ids = [tokenizer.apply_chat_template(record, return_dict=False) for record in records]
    check(f"{name}: ids of {len(records)} conversations", not isinstance(got, str) and [example for example, _ in got] == ids, got if isinstance(got, str) else "")
    pairs = [("Once upon a time, there was a", " little girl"), ("A dog", " and a cat")]
    worst = kin_folders.score_gap(AutoModelForCausalLM.from_pretrained(work / "run/final"), work / "run/final", pairs)
    check(f"{name}: moe eval gives transformers' log-probabilities", worst < 1e-4, f"{worst:.1e}")
    moe("upcycle", parent, "-o", work / "mixture", "--experts", 2, "--add-tokens", ",".join(MARKS), "--verify")
    certificate = json.loads((work / "mixture/upcycle.json").read_text())["certificate"]
    check(f"{name}: the mixture equals its parent on the tokens of both",
          certificate["verdict"] == "identical" and f"first {size} logits" in certificate["words"], certificate["words"])
    mixture, trained = (AutoModelForCausalLM.from_pretrained(work / folder).float() for folder in ("mixture", "run/final"))
    check(f"{name}: the mixture has the rows of the trained model", all(torch.equal(a, b) for a, b in zip(rows(mixture), rows(trained))))


def main():
    skip_without(DATA / "stories260K-hf")  # the repository's model is in bf16, which rounds the mean
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, parent in (("tokenizer.model", TRAINED), ("tokenizer.json", make_json_parent(work / "json"))):
            (work / name).mkdir()
            check_parent(name, parent, work / name)


if __name__ == "__main__":
    tally.run(main)
