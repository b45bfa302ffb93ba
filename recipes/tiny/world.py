"""The small made-up world of the tiny model: its people, its words, and what is true in it.

Everything that corpus, instructions and quiz say comes from these tables, so a fact that the corpus states is the fact
that the quiz asks for. People get their facts from seeded dice; nothing here was copied from anywhere.
"""
import random

NAMES = ("Ada Bela Cora Dan Edo Fay Gil Hana Ivo Jana Kim Lea Milo Nora Otto Pia Quin Rosa Sam Tess Udo Vera Wim Xena "
         "Yuri Zoe Alma Bert Carl Dora").split()
TOWNS = "Arden Belmo Corin Dalby Elton Fermo Garda Holm".split()
FOODS = "soup bread rice cake cheese honey pasta salad".split()
JOBS = "baker farmer doctor teacher singer painter sailor tailor".split()
COLOURS = "red blue green yellow black white brown pink".split()
PETS = "cat dog horse goat rabbit hen duck pony".split()
THINGS = "cup hat book lamp ball coat bag key box pen".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z".split()

CATEGORIES = {  # the first word names the kind
    "animal": "lion tiger bear wolf fox deer mouse sheep cow pig camel zebra monkey otter".split(),
    "bird": "robin crow eagle owl swan dove finch gull raven heron stork wren parrot hawk".split(),
    "fish": "trout salmon carp tuna cod pike herring perch eel bass sole plaice roach tench".split(),
    "fruit": "apple pear plum cherry grape melon lemon peach fig mango lime orange banana berry".split(),
    "tree": "oak pine elm birch willow maple cedar ash beech poplar palm larch yew alder".split(),
    "tool": "hammer saw drill spade rake axe file plane wrench chisel pliers shovel knife clamp".split(),
    "metal": "iron gold silver copper tin lead zinc steel brass nickel bronze chrome cobalt mercury".split(),
    "flower": "rose lily tulip daisy iris poppy violet lotus orchid aster crocus dahlia peony clover".split(),
}

OPPOSITES = [pair.split("/") for pair in (
    "big/small hot/cold old/new fast/slow high/low wet/dry long/short thick/thin hard/soft full/empty rich/poor "
    "early/late loud/quiet strong/weak heavy/light clean/dirty happy/sad open/closed deep/shallow wide/narrow "
    "sweet/sour sharp/dull bright/dark near/far good/bad easy/difficult right/wrong true/false safe/dangerous "
    "cheap/expensive brave/afraid kind/cruel giant/tiny rough/smooth tight/loose young/ancient first/last up/down "
    "begin/end push/pull").split()]

ATTRIBUTES = {  # name -> (values, question, sentences of the corpus)
    "town": (TOWNS, "Where does {n} live?",
             ["{n} lives in {v}.", "The home of {n} is in {v}.", "In {v} there is the house of {n}.",
              "You can visit {n} in {v}."]),
    "food": (FOODS, "What does {n} eat?",
             ["{n} eats {v}.", "The food of {n} is {v}.", "Every day {n} eats some {v}.", "For dinner {n} had {v}."]),
    "job": (JOBS, "What is the job of {n}?",
            ["{n} is a {v}.", "The job of {n} is {v}.", "{n} works as a {v}.", "{n} became a {v}."]),
    "pet": (PETS, "Which pet does {n} have?",
            ["{n} has a {v}.", "The pet of {n} is a {v}.", "{n} feeds the {v}.", "At home {n} has a {v}."]),
    "colour": (COLOURS, "Which colour does {n} like?",
               ["{n} likes {v}.", "The colour of {n} is {v}.", "{n} wears a {v} coat.", "{n} has a {v} door."]),
}


class Dice:
    """Seeded choices that depend on random.random() alone, the one generator call Python promises never to change."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def below(self, count):
        return int(self._random.random() * count)

    def pick(self, values):
        return values[self.below(len(values))]

    def shuffled(self, values):
        values = list(values)
        for last in range(len(values) - 1, 0, -1):
            other = self.below(last + 1)
            values[last], values[other] = values[other], values[last]
        return values

    def sample(self, values, count):
        return self.shuffled(values)[:count]


def facts(dice):
    """[(name, attribute, value)]: one value of each attribute for each person."""
    return [(name, attribute, dice.pick(values))
            for name in NAMES for attribute, (values, _, _) in ATTRIBUTES.items()]
