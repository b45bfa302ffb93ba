"""Intervals and tests: Student's t over seeds that are paired, Holm's correction, a bootstrap over questions."""
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


def t_test(values):
    """The two-sided p of a mean of zero; None for fewer than two values, or values that are all zero."""
    if len(values) < 2 or not any(values):
        return None
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    if deviation == 0:
        return 0.0
    return two_sided_p(mean / (deviation / math.sqrt(len(values))), len(values) - 1)


def two_sided_p(t, freedom):
    """P(|T| > |t|) of Student's t with a whole number of degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    odd = freedom % 2
    for k in range((freedom - 1) // 2 if odd else freedom // 2):  # sum of cos^(2k) times a product of ratios
        total += term
        term *= cosine ** 2 * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    inside = 2 / math.pi * (angle + math.sin(angle) * cosine * total) if odd else math.sin(angle) * total
    return max(0.0, 1 - inside)


def holm(p_values):
    """Holm's adjusted p-values, in the order given; None stays None and is no test."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted, largest = [None] * len(p_values), 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted


def conclusion(mean, adjusted_p, level=0.05):
    """The verdict on the claim that the mean is above zero."""
    if adjusted_p is None or adjusted_p >= level:
        return "not resolved"
    return "holds" if mean > 0 else "does not hold"
