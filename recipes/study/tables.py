"""The study's page and tables, from results/: README.md, runs/study/page.json (`moe report runs/study/page.json` draws it), and by
paper_tables.py those of recipes/README.md."""
import json
import statistics

from blocks import BLOCKS
from intervals import bootstrap, conclusion, holm, t_interval, t_test
from paper_tables import markdown, write_paper_tables

NOT_HERE = [  # claims of the papers that no machine of this size can tell, and the command that would
    ("C7", "IR and FR cost less than 10 % of inference speed and 4 to 12 % of training speed",
     "a speed of GPUs", "moe bench layer --device cuda --ranks 8, each router"),
    ("C9", "with IR, half of the capacity is 1.13 to 1.18 times as fast", "a speed of GPUs",
     "moe bench layer --device cuda --ranks 8 --cf 0.5"),
    ("C11", "IR is insensitive to the experts a rank", "no test shows that there is no difference; see the rows with 4 and 2 ranks",
     "recipes/rectify_router/at_test.sh 5 1 run/final scores"),
    ("C14", "on TruthfulQA 32 experts are better", "needs a model that answers TruthfulQA",
     "recipes/row.sh recipes/rectify_router/top1-32-experts train"),
    ("C19", "harder tasks use more experts", "needs a model that answers BIG-Bench-Hard",
     "recipes/analyses.sh topp-table3 run/final --tasks dynamic_moe --data benchmarks"),
    ("C25", "ReMoE's gain grows with the experts, above 32", "a micro-batch of this size leaves an expert too few tokens",
     "recipes/row.sh recipes/remoe/182M-relu-e128 train"),
    ("C26", "ReMoE is no worse at granularity 16 and more", "the feed-forward here is too narrow to be cut so often",
     "recipes/row.sh recipes/remoe/182M-relu-g64 train")]

UNITS = {"accuracy": ("accuracy, points", 1), "held_out": ("held-out loss, nats", -1), "experts": ("experts a token", -1),
         "log_probability": ("log-probability of the right answer, nats", 1), "experts_fall": ("experts a token, first tenth less end", 1),
         "pieces_over_words": ("experts a token, pieces less words", 1),
         "rare_over_frequent": ("experts a token, rarest tenth less most frequent", 1),
         "source_bits": ("bits that a source tells of an expert, over chance", 1),
         "experts_down": ("experts a token, first layer less last", 1), "sparsity_held": ("0.02 less the distance", 1),
         "loss": ("loss, last 20 steps, nats", -1), "load": ("busiest expert over the mean", -1), "dead": ("experts without a token, all layers", -1)}


def read_results(folder, block):
    """{row: {seed: result}} of what is finished."""
    found = {}
    for file in sorted((folder / block.name).glob("*.json")):
        result = json.loads(file.read_text())
        found.setdefault(result["settings"]["row"], {})[result["settings"]["seed"]] = result
    return {row.name: found[row.name] for row in block.rows if row.name in found}


def scores_of(result, name):
    """The scores of `row`, or of `row / at-test name`."""
    _, _, test = name.partition(" / ")
    return result["at_test"][test] if test else result


def paired(rows, better, worse, measure):
    """[value of better - value of worse] by seed, in the direction in which more is better; and the seeds."""
    first, second = rows.get(better.partition(" / ")[0], {}), rows.get(worse.partition(" / ")[0], {})
    sign = UNITS[measure][1]
    if not worse:
        seeds = [seed for seed in sorted(first) if measure in first[seed]]
        return [sign * first[seed][measure] for seed in seeds], seeds
    seeds = [seed for seed in sorted(set(first) & set(second))
             if measure in scores_of(first[seed], better) and measure in scores_of(second[seed], worse)]
    return [sign * (scores_of(first[seed], better)[measure] - scores_of(second[seed], worse)[measure]) for seed in seeds], seeds


def items(rows, name, seeds):
    """Each question's accuracy, a mean over seeds, in percent."""
    strings = [scores_of(rows[name.partition(" / ")[0]][seed], name)["items"] for seed in seeds]
    return [100 * statistics.fmean(int(string[i]) for string in strings) for i in range(len(strings[0]))]


def text_of(mean, half, digits):
    return f"{mean:+.{digits}f}" + (" (one seed)" if half is None else f" +- {half:.{digits}f}")


def p_text(p):
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def claim_rows(block, rows):
    found = [paired(rows, claim.better, claim.worse, claim.measure) for claim in block.claims]
    adjusted = holm([t_test(differences) for differences, _ in found])
    for claim, (differences, seeds), p in zip(block.claims, found, adjusted):
        unit = UNITS[claim.measure][0]
        digits = 2 if claim.measure == "accuracy" else 4
        if not differences:
            yield [claim.id, claim.text, claim.published, "not run yet", "-", "-", "-", unit, "-"]
            continue
        mean, half = t_interval(differences)
        by_item = "-"
        if claim.measure == "accuracy":
            low, high = bootstrap(items(rows, claim.better, seeds), items(rows, claim.worse, seeds))
            by_item = f"{low:+.2f} to {high:+.2f}"
        chance = "-"
        if claim.measure == "accuracy":
            chance = text_of(*t_interval(paired(rows, claim.better, claim.worse, "log_probability")[0]), 3)
        yield [claim.id, claim.text, claim.published, f"**{conclusion(mean, p)}**", text_of(mean, half, digits), p_text(p), by_item, unit,
               f"{len(seeds)}; {chance}"]


def kind_rows(rows):
    """Of runs from scratch: the loss of each kind of text, in nats a text."""
    for name, seeds in rows.items():
        for seed, result in seeds.items():
            if "kinds" in result:
                yield [name, str(seed), f"{result['held_out']:.4f}", *(f"{result['kinds'][kind]:.1f}" for kind in KINDS)]


KINDS = ("opposite", "category", "fact", "sequence", "number", "addition", "listed", "swap", "lookup")
WHY_SEEDS_DIFFER = """The spread over seeds is wide because a run meets some kinds of text late, by chance. By kind, in nats a text, of the runs that
were asked: the first six want memory, the last three are answered from the text itself (which word was last in a list, two words
the other way round, who held what), and it is there that seeds of one row lie apart. The best runs end at 0.988 to 0.990 a token,
whatever their router: what is left is mostly the generator's dice (a floor that was not computed), and rows near it cannot be told apart."""
ROUTING = ("sparsity", "load", "dead")


def mean_of(results, key):
    found = [result[key] for result in results if key in result]
    return f"{statistics.fmean(found):.3f}" if found else "-"


def stages_of(results):
    """The means of the two steps at which the first stages of a ReLU router end; a dash where one has no such stages."""
    found = [result["stages"] for result in results if result.get("stages")]
    if not found:
        return "not reached" if any("stages" in result for result in results) else "-"
    return ", ".join(f"{statistics.fmean(ends):.0f}" for ends in zip(*found))


def value_rows(block, rows):
    """Means over seeds of every row and every at-test row."""
    measure = "accuracy" if block.kind == "instruct" else "held_out"
    for name, seeds in rows.items():
        names = [name] + [f"{name} / {test}" for test in next(iter(seeds.values())).get("at_test", {})]
        for label in names:
            values = [scores_of(result, label)[measure] for result in seeds.values() if scores_of(result, label).get(measure) is not None]
            if not values:
                continue
            mean, half = t_interval(values)
            digits = 2 if block.kind == "instruct" else 4
            cells = [label, f"{mean:.{digits}f}" + ("" if half is None else f" +- {half:.{digits}f}")]
            keys = ("dropped", "experts") + (ROUTING if block.kind == "scratch" else ("cosine",))
            if " / " in label:
                cells += ["-"] * (1 + len(keys))
            else:
                results = list(seeds.values())
                cells.append(f"{statistics.fmean(result['loss'] for result in results):.3f}")
                cells += [mean_of(results, key) for key in keys]
                if block.kind == "scratch":
                    cells.append(stages_of(results))
            yield cells + [str(len(values))]


CLAIM_HEAD = ["claim", "what it says", "published", "verdict here", "difference (95 % over seeds)", "p (Holm)", "95 % over questions", "of", "seeds; log-probability"]


def value_head(block):
    head = ["row", "accuracy, %" if block.kind == "instruct" else "held-out loss", "loss, last 20 steps", "dropped", "experts a token"]
    if block.kind == "instruct":
        head += ["cosine between experts"]
    else:
        head += ["sparsity", "busiest expert over the mean", "dead experts", "ends of the dense and the sparsifying stage"]
    return head + ["seeds"]


def summary(results):
    """How many claims have which verdict, over all blocks."""
    verdicts = [row[3].strip("*") for block in BLOCKS.values() for row in claim_rows(block, results[block.name])]
    counts = ", ".join(f"{verdicts.count(verdict)} {words}" for verdict, words in
                       (("holds", "hold"), ("does not hold", "do not hold"), ("not resolved", "are not resolved"), ("not run yet", "were not run"))
                       if verdict in verdicts)
    return f"Of {len(verdicts)} rows {counts}."


def write_readme(study, results):
    parts = [INTRODUCTION.format(summary=summary(results))]
    for block in BLOCKS.values():
        rows = results[block.name]
        seconds = sum(result["seconds"] for seeds in rows.values() for result in seeds.values())
        parts.append(f"## {block.title}\n\n`recipes/study/run.py {block.name}`; {sum(map(len, rows.values()))} of "
                     f"{5 * len(block.rows)} runs are here ({seconds / 3600:.1f} hours of one core).\n\n"
                     + markdown(CLAIM_HEAD, claim_rows(block, rows)) + "\n\n" + markdown(value_head(block), value_rows(block, rows)))
        kinds = list(kind_rows(rows))
        if kinds:
            parts.append(WHY_SEEDS_DIFFER + "\n\n" + markdown(["row", "seed", "held-out loss", *KINDS], kinds))
    parts.append("## What cannot be told here\n\n" + markdown(["claim", "what it says", "why not", "the command that would"],
                                                            [[c, t, w, f"`{m}`"] for c, t, w, m in NOT_HERE]))
    (study / "README.md").write_text("\n\n".join(parts) + "\n")


INTRODUCTION = """# The papers' claims at small scale

Made by `recipes/study/run.py --tables` from the results beside it; do not edit. Models of 0.1 to 1 million parameters: what is
shown is whether the mechanisms do what the papers say, with what certainty, never how large an effect is at size. Rows of a
block start alike, read the same data in the same order and are compared seed by seed. Each claim says that a difference is
above zero, and is tested by Student's t over the paired seeds, two-sided. The p-values are corrected by Holm's method over all
claims of the block. The verdict is "holds" where p < 0.05 and the mean is above zero, "does not hold" where p < 0.05 and it is
below, else "not resolved": these runs do not tell. The interval over seeds is Student's at 95 % for that row alone, without
the correction, so it may leave out zero where the verdict is "not resolved". The interval over questions is a bootstrap, of the
mean over seeds.

{summary}"""


def mean_curve(seeds, key):
    results = [result[key] for result in seeds.values() if key in result]
    if not results:
        return None
    steps = [point[0] for point in results[0]]
    values = [[point[1] for point in curve] for curve in results if len(curve) == len(steps)]
    middle = [t_interval(column) for column in zip(*values)]
    return {"x": steps, "y": [mean for mean, _ in middle], "low": [mean - (half or 0) for mean, half in middle],
            "high": [mean + (half or 0) for mean, half in middle]}


def panel(title, rows, key, log=False):
    series = [{"name": name, **curve} for name, seeds in rows.items() if (curve := mean_curve(seeds, key))]
    return {"kind": "lines", "title": title, "series": series, "is_wide": True, "y": {"log": log}} if series else None


def page(results):
    sections = []
    for block in BLOCKS.values():
        rows = results[block.name]
        if not rows:
            continue
        drawn = [panel("Loss", rows, "curve", True), panel("Held-out loss", rows, "held_out_curve", True), panel("Experts a token", rows, "experts_curve"),
                 panel("Dropped requests", rows, "dropped_curve"), panel("Sparsity", rows, "sparsity_curve")]
        sections.append({"id": block.name, "title": block.title, "x": {"label": "step"}, "panels": [p for p in drawn if p]})
        for name, head, body in (("claims", CLAIM_HEAD, claim_rows(block, rows)), ("rows", value_head(block), value_rows(block, rows))):
            table = {"kind": "table", "columns": head, "rows": [{"name": row[0], "cells": [c.replace("**", "") for c in row[1:]]} for row in body]}
            sections.append({"id": f"{block.name}-{name}", "title": name, "panels": [table]})
    return {"program": "recipes/study", "title": "The papers' claims at small scale", "facts": [], "notes": [], "sections": sections}


def write_all(study):
    results = {block.name: read_results(study / "results", block) for block in BLOCKS.values()}
    write_readme(study, results)
    write_paper_tables(study.parent, results)
    drawn = study.parent.parent / "runs" / "study" / "page.json"
    drawn.parent.mkdir(parents=True, exist_ok=True)
    drawn.write_text(json.dumps(page(results)) + "\n")
    print(f"{study / 'README.md'}\n{study.parent / 'README.md'}\n{drawn}")
