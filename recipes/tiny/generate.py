#!/usr/bin/env python3
"""Writes the tiny model's texts: corpus.jsonl, instruct.jsonl and quiz.jsonl. Same seed, same bytes, on any Python 3.

  generate.py OUT [--seed 1]

corpus.jsonl    {"text"}: a short paragraph a line about the small world (sentences.py); what the dense parent reads
instruct.jsonl  Alpaca form, {"instruction", "input", "output"}
quiz.jsonl      {"context", "choices", "answer", "kind"}: held out, four choices, worded as the instructions are. The context
                is, byte for byte, what `moe train` shows before a response: instruction, line feed.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))  # python3 -I does not
from kinds import CLOSED, OPEN  # noqa: E402
from sentences import paragraph  # noqa: E402
from world import Dice, facts  # noqa: E402

QUIZ_PER_KIND = 40
INSTRUCTIONS_PER_KIND = 700
PARAGRAPHS = 48000


def corpus(dice, known, paragraphs=PARAGRAPHS):
    for _ in range(paragraphs):
        yield {"text": paragraph(dice, known)}


def quiz_item(dice, kind, question, answer, wrong):
    choices = dice.shuffled([answer, *wrong])
    return {"context": question + "\n", "choices": choices, "answer": choices.index(answer), "kind": kind}


def instruction(question, answer):
    return {"instruction": question, "input": "", "output": answer}


def questions(dice, known):
    """(instructions, quiz): no question stands in both."""
    instructions, quiz = [], []
    for kind, ask in CLOSED.items():
        every = dice.shuffled(ask(dice, known))
        quiz += [quiz_item(dice, kind, *item) for item in every[:QUIZ_PER_KIND]]
        kept = every[QUIZ_PER_KIND:]
        instructions += [instruction(*kept[i % len(kept)][:2]) for i in range(INSTRUCTIONS_PER_KIND)]
    for kind, ask in OPEN.items():
        drawn = {}
        while len(drawn) < QUIZ_PER_KIND + INSTRUCTIONS_PER_KIND:
            item = ask(dice)
            drawn[item[0]] = item
        every = list(drawn.values())
        quiz += [quiz_item(dice, kind, *item) for item in every[:QUIZ_PER_KIND]]
        instructions += [instruction(*item[:2]) for item in every[QUIZ_PER_KIND:]]
    return dice.shuffled(instructions), quiz


def check(instructions, quiz):
    asked = {record["instruction"] + "\n" for record in instructions}
    for item in quiz:
        assert item["context"] not in asked, f"held out, yet trained on: {item}"
        assert len(set(item["choices"])) == 4, f"choices are not distinct: {item}"


def write_lines(path, records):
    path.write_bytes("".join(json.dumps(record) + "\n" for record in records).encode())


def read_arguments(description):
    """OUT, a folder that is there afterwards, and --seed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def main():
    arguments = read_arguments(__doc__)
    known = facts(Dice(arguments.seed))
    instructions, quiz = questions(Dice(arguments.seed + 1), known)
    check(instructions, quiz)
    write_lines(arguments.out / "corpus.jsonl", corpus(Dice(arguments.seed + 2), known))
    write_lines(arguments.out / "instruct.jsonl", instructions)
    write_lines(arguments.out / "quiz.jsonl", quiz)
    print(f"{PARAGRAPHS} paragraphs, {len(instructions)} instructions, {len(quiz)} quiz items in {arguments.out}")


if __name__ == "__main__":
    main()
