#!/usr/bin/env python3
"""Writes the texts of the quickstart's task, in which memory is the limit: made-up subjects, and four facts about each.

  facts.py OUT [--seed 1]

known.jsonl     questions about 150 subjects in all four wordings: what the dense parent is trained on, so that it knows how
                a question is worded and answered, and what to remember
instruct.jsonl  questions about 1200 other subjects, three wordings of each: what the mixture and its dense parent are tuned on
quiz.jsonl      the same facts, asked in the fourth wording, four choices: {"context", "choices", "answer", "source"}; the
                source is the kind of fact

The facts are drawn at random, so nothing but memory answers the quiz; and since each wording is held out for a quarter of
the facts, it asks for the fact, not for the words. Same seed, same bytes, on any Python 3.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))  # python3 -I does not
from generate import check, read_arguments, write_lines  # noqa: E402
from world import Dice  # noqa: E402

KNOWN, NEW = 150, 1200

KINDS = {  # kind -> (values, the four wordings)
    "town": ("Arden Belmo Corin Dalby Elton Fermo Garda Holm Irvine Jarro Kells Luton Marne Norwy Otley Perth",
             ["Where does {n} live?", "In which town is the home of {n}?", "Name the town of {n}.", "Where would you visit {n}?"]),
    "food": ("soup bread rice cake cheese honey pasta salad beans corn fish eggs plums nuts pears figs",
             ["What does {n} eat?", "Which food does {n} like best?", "Name the food of {n}.", "What would you cook for {n}?"]),
    "job": ("baker farmer doctor teacher singer painter sailor tailor miner cook judge clerk nurse potter weaver guard",
            ["What is the job of {n}?", "What does {n} work as?", "Name the work of {n}.", "How does {n} earn money?"]),
    "pet": ("cat dog horse goat rabbit hen duck pony mouse sheep cow pig parrot turtle frog owl",
            ["Which pet does {n} have?", "Which animal lives with {n}?", "Name the pet of {n}.", "What animal does {n} feed?"]),
}


def names(dice):
    """Every name of two syllables, shuffled: none is a word that a fact could follow from."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    return dice.shuffled([(first + second).capitalize() for first in syllables for second in syllables])


def facts(dice, subjects):
    return [(name, kind, dice.pick(values.split())) for name in subjects for kind, (values, _) in KINDS.items()]


def question(name, kind, wording):
    return KINDS[kind][1][wording].format(n=name)


def instruction(name, kind, value, wording):
    return {"instruction": question(name, kind, wording), "input": "", "output": value}


def quiz_item(dice, name, kind, value, wording):
    wrong = dice.sample([other for other in KINDS[kind][0].split() if other != value], 3)
    choices = dice.shuffled([value, *wrong])
    return {"context": question(name, kind, wording) + "\n", "choices": choices, "answer": choices.index(value), "source": kind}


def texts(seed):
    """(known, instruct, quiz)."""
    dice = Dice(seed)
    subjects = names(dice)
    known = [instruction(*fact, wording) for fact in facts(dice, subjects[:KNOWN]) for wording in range(4)]
    instruct, quiz = [], []
    for fact in facts(dice, subjects[KNOWN:KNOWN + NEW]):
        held_out = dice.below(4)
        instruct += [instruction(*fact, wording) for wording in range(4) if wording != held_out]
        quiz.append(quiz_item(dice, *fact, held_out))
    return dice.shuffled(known), dice.shuffled(instruct), quiz


def main():
    arguments = read_arguments(__doc__)
    known, instruct, quiz = texts(arguments.seed)
    check(instruct, quiz)
    for name, records in (("known", known), ("instruct", instruct), ("quiz", quiz)):
        write_lines(arguments.out / f"{name}.jsonl", records)
    print(f"{len(known)} questions for the parent, {len(instruct)} instructions, {len(quiz)} quiz items in {arguments.out}")


if __name__ == "__main__":
    main()
