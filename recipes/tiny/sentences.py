"""What the corpus says: one function a kind of question (kinds.py), each tells one thing in plain sentences.

Never a question: the dense parent learns what is true, and the tuned models learn to be asked.
"""
from kinds import PLACES_IN_LIST, WORDS, a
from world import ATTRIBUTES, CATEGORIES, COLOURS, DAYS, LETTERS, MONTHS, NAMES, OPPOSITES, THINGS


def opposite(dice, _known):
    x, y = dice.shuffled(dice.pick(OPPOSITES))
    thing = dice.pick(THINGS)
    return dice.pick([f"The opposite of {x} is {y}.", f"{x} is the opposite of {y}.", f"If it is not {x} it is {y}.",
                      f"The {thing} was {x} and is now {y}.", f"One {thing} is {x} but the other is {y}."])


def category(dice, _known):
    kind = dice.pick(list(CATEGORIES))
    x, y, z = dice.sample(CATEGORIES[kind], 3)
    return dice.pick([f"{a(x)} is {a(kind)}.", f"This {kind} is {a(x)}.", f"The {x} and the {y} are each {a(kind)}.",
                      f"The kind of {a(x)} is {kind}.", f"Of every {kind} I like the {x}, the {y} and the {z}."])


def fact(dice, known):
    name = dice.pick(NAMES)
    mine = [dice.pick(ATTRIBUTES[attribute][2]).format(n=name, v=value) for n, attribute, value in known if n == name]
    return " ".join(dice.sample(mine, 2))


def sequence(dice, _known):
    row = dice.pick([DAYS, MONTHS, LETTERS])
    start, length = dice.below(len(row) - 3), 3 + dice.below(2)
    if row is not LETTERS:
        start, row = dice.below(len(row)), row + row[:4]
    shown = row[start:start + length]
    return dice.pick([", ".join(shown) + ".", f"After {shown[0]} comes {shown[1]}.",
                      f"{shown[1]} is next to {shown[0]}, then comes {shown[2]}."])


def number(dice, _known):
    value = 1 + dice.below(98)
    return dice.pick([f"The number after {value} is {value + 1}.", f"The number before {value} is {value - 1}.",
                      f"{value - 1}, {value}, {value + 1}.", f"I count {value} and then {value + 1}."])


def addition(dice, _known):
    x, y = dice.below(10), dice.below(10)
    return dice.pick([f"{x} + {y} = {x + y}.", f"{x} and {y} make {x + y}."])


def listed(dice, _known):
    words = dice.sample(WORDS, 4)
    place, index = dice.pick(PLACES_IN_LIST)
    return f"I see {', '.join(words)}. The {place} word is {words[index]}."


def swap(dice, _known):
    x, y = dice.sample(WORDS, 2)
    return dice.pick([f"{x} {y} is {y} {x} the other way.", f"Turn {x} {y} around to get {y} {x}."])


def lookup(dice, _known):
    owners, things, colours = dice.sample(NAMES, 2), dice.sample(THINGS, 2), dice.sample(COLOURS, 2)
    told = " ".join(f"{owner} holds a {colour} {thing}." for owner, colour, thing in zip(owners, colours, things))
    which = dice.below(2)
    return f"{told} So the {things[which]} is {colours[which]}."


TELLERS = (opposite, category, fact, sequence, number, addition, listed, swap, lookup)


def paragraph(dice, known):
    return " ".join(dice.pick(TELLERS)(dice, known) for _ in range(3))
