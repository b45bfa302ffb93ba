#!/usr/bin/env python3
"""Writes the tiny model's texts: corpus.jsonl, instruct.jsonl and quiz.jsonl. Same seed, same bytes, on any Python 3.

  generate.py OUT [--seed 1]

corpus.jsonl    {"text"}: sentences of the small world (world.py), a short paragraph a line; what the dense parent reads
instruct.jsonl  Alpaca form, {"instruction", "input", "output"}
quiz.jsonl      {"context", "choices", "answer", "kind"}: held out, four choices, worded as the instructions are. The context
                is, byte for byte, what `moe train` shows before a response: instruction, line feed.
"""
import argparse
import json
import pathlib

from kinds import CLOSED, OPEN, WORDS, a
from world import ATTRIBUTES, CATEGORIES, COLOURS, DAYS, LETTERS, MONTHS, NAMES, OPPOSITES, THINGS, Dice, facts

QUIZ_PER_KIND = 40
INSTRUCTIONS_PER_KIND = 700
PARAGRAPHS = 48000


def opposite_sentences(dice):
    x, y = dice.shuffled(dice.pick(OPPOSITES))
    thing = dice.pick(THINGS)
    return dice.pick([f"The opposite of {x} is {y}.", f"{x} is the opposite of {y}.", f"If it is not {x} it is {y}.",
                      f"The {thing} was {x} and is now {y}.", f"One {thing} is {x} but the other is {y}."])


def category_sentences(dice):
    kind = dice.pick(list(CATEGORIES))
    x, y, z = dice.sample(CATEGORIES[kind], 3)
    return dice.pick([f"{a(x)} is {a(kind)}.", f"This {kind} is {a(x)}.", f"The {x} and the {y} are each {a(kind)}.",
                      f"The kind of {a(x)} is {kind}.", f"Of every {kind} I like the {x}, the {y} and the {z}."])


def fact_sentences(dice, known):
    name = dice.pick(NAMES)
    mine = [dice.pick(ATTRIBUTES[attribute][2]).format(n=name, v=value) for n, attribute, value in known if n == name]
    return " ".join(dice.sample(mine, 2))


def sequence_sentences(dice):
    row = dice.pick([DAYS, MONTHS, LETTERS])
    start, length = dice.below(len(row) - 3), 3 + dice.below(2)
    if row is not LETTERS:
        start, row = dice.below(len(row)), row + row[:4]
    shown = row[start:start + length]
    return dice.pick([", ".join(shown) + ".", f"After {shown[0]} comes {shown[1]}.",
                      f"{shown[1]} is next to {shown[0]}, then comes {shown[2]}."])


def number_sentences(dice):
    value = 1 + dice.below(98)
    return dice.pick([f"The number after {value} is {value + 1}.", f"The number before {value} is {value - 1}.",
                      f"{value - 1}, {value}, {value + 1}.", f"I count {value} and then {value + 1}."])


def addition_sentences(dice):
    x, y = dice.below(10), dice.below(10)
    return dice.pick([f"{x} + {y} = {x + y}.", f"{x} and {y} make {x + y}.", f"{x} + {y} = {x + y}."])


def list_sentences(dice):
    words = dice.sample(WORDS, 4)
    place, index = dice.pick([("first", 0), ("second", 1), ("last", 3)])
    return f"I see {', '.join(words)}. The {place} word is {words[index]}."


def swap_sentences(dice):
    x, y = dice.sample(WORDS, 2)
    return dice.pick([f"{x} {y} is {y} {x} the other way.", f"Turn {x} {y} around to get {y} {x}."])


def lookup_sentences(dice):
    owners, things, colours = dice.sample(NAMES, 2), dice.sample(THINGS, 2), dice.sample(COLOURS, 2)
    told = " ".join(f"{owner} holds a {colour} {thing}." for owner, colour, thing in zip(owners, colours, things))
    which = dice.below(2)
    return f"{told} So the {things[which]} is {colours[which]}."


def corpus(dice, known):
    tellers = [opposite_sentences, category_sentences, lambda d: fact_sentences(d, known), sequence_sentences,
               number_sentences, addition_sentences, list_sentences, swap_sentences, lookup_sentences]
    for _ in range(PARAGRAPHS):
        yield {"text": " ".join(dice.pick(tellers)(dice) for _ in range(3))}


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    known = facts(Dice(arguments.seed))
    instructions, quiz = questions(Dice(arguments.seed + 1), known)
    check(instructions, quiz)
    write_lines(arguments.out / "corpus.jsonl", corpus(Dice(arguments.seed + 2), known))
    write_lines(arguments.out / "instruct.jsonl", instructions)
    write_lines(arguments.out / "quiz.jsonl", quiz)
    print(f"{PARAGRAPHS} paragraphs, {len(instructions)} instructions, {len(quiz)} quiz items in {arguments.out}")


if __name__ == "__main__":
    main()
