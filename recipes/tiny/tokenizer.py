#!/usr/bin/env python3
"""Trains a tiny model's tokenizer on files of the current folder: a LLaMA-style BPE.

  tokenizer.py PIECES FILE.jsonl...      lines of {"text"} or of {"instruction", "output"}

Leaves tokenizer/tokenizer.model and tokenizer/tokenizer_config.json. Of the pieces 256 are bytes and 3 control tokens; 1024
leave room for the small world's words (sentences.py), so that most become one piece. 512 do so for the words of facts.py,
but a name takes three or four pieces: what is true of it is then no property of one embedding. Questions are among the
training text so that their words get pieces too.
"""
import json
import pathlib
import sys

import sentencepiece

CONFIG = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": True,
          "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def records(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def text(record):
    return record["text"] if "text" in record else f"{record['instruction']}\n{record['output']}"


def main():
    pieces, files = int(sys.argv[1]), sys.argv[2:]
    with open("tokenizer.txt", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text(record)}\n" for name in files for record in records(name))
    out = pathlib.Path("tokenizer")
    out.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input="tokenizer.txt", model_prefix="tokenizer/tokenizer", model_type="bpe", vocab_size=pieces,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, byte_fallback=True, split_digits=True, add_dummy_prefix=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0,
        input_sentence_size=0, num_threads=1, minloglevel=2)
    (out / "tokenizer.vocab").unlink()
    (out / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main()
