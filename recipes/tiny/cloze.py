"""Texts for what a model from scratch has learnt: sentences of the corpus that end where one word is left to say, and texts of
one kind each."""
from generate import write_lines
from kinds import a
from sentences import TELLERS
from world import CATEGORIES, OPPOSITES, Dice


def _opposite(dice):
    word, answer = dice.shuffled(dice.pick(OPPOSITES))
    others = [dice.pick(pair) for pair in dice.shuffled(OPPOSITES) if word not in pair]
    return f"The opposite of {word} is", answer, others[:3]


def _category(dice):
    kind, *others = dice.sample(list(CATEGORIES), 4)
    return f"The kind of {a(dice.pick(CATEGORIES[kind]))} is", kind, others


def _after(dice):
    value = 2 + dice.below(96)
    return f"The number after {value} is", str(value + 1), [str(value - 1), str(value), str(value + 2)]


def _sum(dice):
    x, y = dice.below(10), dice.below(10)
    right = x + y
    return f"{x} + {y} =", str(right), [str(right + 1), str(right + 2), str(right - 1 if right else 3)]


def write_cloze(path, items):
    """{"context", "choices", "answer"}: a fourth of each kind."""
    dice, kinds, records = Dice(5), (_opposite, _category, _after, _sum), []
    for item in range(items):
        context, answer, wrong = kinds[item % len(kinds)](dice)
        choices = dice.shuffled([answer, *wrong])
        records.append({"context": context, "choices": [" " + choice for choice in choices], "answer": choices.index(answer)})
    write_lines(path, records)


def write_domains(path, texts=100):
    """{"text", "source"}: the paragraphs of the corpus mix what they tell; each of these tells one kind of thing."""
    from world import facts
    dice, known = Dice(6), facts(Dice(1))
    write_lines(path, [{"text": " ".join(tell(dice, known) for _ in range(3)), "source": tell.__name__}
                       for tell in TELLERS for _ in range(texts)])
