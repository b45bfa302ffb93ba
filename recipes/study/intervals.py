"""Intervals: Student's t over seeds that are paired, a bootstrap over questions."""
import math
import random
import statistics

# Two-sided 95 % points of Student's t by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
       12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093}


def t_interval(values):
    """(mean, half of the 95 % interval of the mean); the half is None of fewer than two values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    t = T95.get(len(values) - 1, 1.96 + 2.4 / (len(values) - 1))
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def bootstrap(items_a, items_b, draws=1000):
    """The 95 % interval of mean(a) - mean(b) over questions drawn again, each item a mean over seeds, paired by question."""
    differences = [a - b for a, b in zip(items_a, items_b)]
    dice, count = random.Random(1), len(differences)
    means = sorted(sum(dice.choices(differences, k=count)) / count for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


def conclusion(mean, half):
    """What paired seeds say of a claim that the mean is above zero."""
    if half is None or abs(mean) <= half:
        return "cannot be told at this size"
    return "holds" if mean > 0 else "does not hold"
