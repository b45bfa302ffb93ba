#!/usr/bin/env python3
"""Trains the tiny model's tokenizer on corpus.jsonl and instruct.jsonl of the current folder: a LLaMA-style BPE of 1024 pieces.

Leaves tokenizer/tokenizer.model and tokenizer/tokenizer_config.json. 1024 pieces are 256 bytes, 3 control tokens, and room
for the small world's words: most become one piece, a question about a dozen. Questions are among the training text so that
their words get pieces too; the dense parent never trains on them.
"""
import json
import pathlib

import sentencepiece

CONFIG = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": True,
          "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def records(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def main():
    with open("tokenizer.txt", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{record['text']}\n" for record in records("corpus.jsonl"))
        file.writelines(f"{record['instruction']}\n{record['output']}\n" for record in records("instruct.jsonl"))
    out = pathlib.Path("tokenizer")
    out.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input="tokenizer.txt", model_prefix="tokenizer/tokenizer", model_type="bpe", vocab_size=1024,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, byte_fallback=True, split_digits=True, add_dummy_prefix=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0,
        input_sentence_size=0, num_threads=1, minloglevel=2)
    (out / "tokenizer.vocab").unlink()
    (out / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main()
