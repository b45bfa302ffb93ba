"""The kinds of questions the instructions teach and the quiz asks, as (question, answer, wrong answers).

A closed kind is the list of all its questions, of which the quiz keeps some for itself; an open kind draws one a call. What
a closed kind asks, the corpus states (sentences.py).
"""
from world import (ATTRIBUTES, CATEGORIES, COLOURS, DAYS, FOODS, LETTERS, MONTHS, NAMES, OPPOSITES, PETS, THINGS)

WORDS = THINGS + COLOURS + PETS + FOODS  # for lists and pairs: short and common
KIND_NAMES = list(CATEGORIES)


def others(dice, values, answer, count=3):
    return dice.sample([value for value in values if value != answer], count)


def a(word):
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


# --- closed kinds ------------------------------------------------------------

def opposite(dice, _facts):
    adjectives = [word for pair in OPPOSITES for word in pair]
    return [(f"What is the opposite of {x}?", y, others(dice, [w for w in adjectives if w != x], y))
            for pair in OPPOSITES for x, y in (pair, pair[::-1])]


def category(dice, _facts):
    return [(f"What kind of thing is {a(word)}?", kind, others(dice, KIND_NAMES, kind))
            for kind, words in CATEGORIES.items() for word in words]


def fact(dice, facts):
    return [(ATTRIBUTES[attribute][1].format(n=name), value, others(dice, ATTRIBUTES[attribute][0], value))
            for name, attribute, value in facts]


def following(dice, _facts):
    found = []
    for row, length in ((DAYS, 3), (MONTHS, 3), (LETTERS, 3)):
        wrapped = row if row is LETTERS else row + row[:length]
        for count in range(2, length + 1):
            for start in range(len(wrapped) - count):
                shown, answer = wrapped[start:start + count], wrapped[start + count]
                found.append((f"What comes next: {', '.join(shown)}?", answer,
                              others(dice, [w for w in row if w not in shown], answer)))
    return list({question: (question, answer, wrong) for question, answer, wrong in found}.values())


def number(dice, _facts):
    found = []
    for value in range(1, 99):
        for word, answer in (("after", value + 1), ("before", value - 1)):
            near = [str(n) for n in range(max(0, value - 4), value + 5) if n not in (answer, value)]
            found.append((f"Which number comes {word} {value}?", str(answer), dice.sample(near, 3)))
    return found


def addition(dice, _facts):
    found = []
    for x in range(10):
        for y in range(10):
            near = [str(n) for n in range(max(0, x + y - 4), x + y + 5) if n != x + y]
            found.append((f"What is {x} + {y}?", str(x + y), dice.sample(near, 3)))
    return found


# --- open kinds ------------------------------------------------------------

PLACES_IN_LIST = (("first", 0), ("second", 1), ("last", 3))


def listed(dice):
    words = dice.sample(WORDS, 4)
    place, index = dice.pick(PLACES_IN_LIST)
    answer = words[index]
    return f"Which word is {place}: {', '.join(words)}?", answer, [word for word in words if word != answer]


def swapped(dice):
    x, y, z = dice.sample(WORDS, 3)
    return f"Swap the words: {x} {y}", f"{y} {x}", [f"{x} {y}", f"{y} {z}", f"{z} {x}"]


def lookup(dice):
    owners, things, colours = dice.sample(NAMES, 2), dice.sample(THINGS, 2), dice.sample(COLOURS, 4)
    told = " ".join(f"{owner} holds a {colour} {thing}." for owner, colour, thing in zip(owners, colours, things))
    which = dice.below(2)
    return (f"{told} Which colour is the {things[which]}?", colours[which],
            [colour for colour in colours if colour != colours[which]])


CLOSED = {"opposite": opposite, "category": category, "fact": fact, "sequence": following, "number": number,
          "addition": addition}
OPEN = {"list": listed, "swap": swapped, "lookup": lookup}
