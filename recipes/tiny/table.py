#!/usr/bin/env python3
"""The quickstart's last word: the quiz answered by the models, what they cost, and what was gained, as a table and as a page.

  table.py steps RUN              the steps that the dense model takes in the time that the mixture took
  table.py RUN QUIZ.jsonl NAME... the table of these models; and RUN/page.json, which `moe report` draws

Reads RUN/scores/NAME/samples_quiz.jsonl (`moe eval`), RUN/inspect/NAME.json (`moe inspect --json`), RUN/NAME/metrics.jsonl and
RUN/stats.json (`moe eval --stats`). A short quickstart has no dense model that was tuned, and asked fewer questions. Exit code 1 when
the tuned mixture is not as far above its dense parent as it is known to be (25 points, of a short one 10), or not above the dense
model of as many steps.
"""
import json
import math
import pathlib
import sys

COLUMNS = {"dense": "dense parent", "dense-tuned": "dense, tuned", "dense-longer": "same time", "moe-tuned": "MoE, tuned"}
LEAST_GAIN, LEAST_GAIN_OF_A_SHORT_ONE = 25, 10


def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def steps_of(run, name):
    return [step for step in lines(run / name / "metrics.jsonl") if "loss" in step]


def seconds_of(run, name):
    return sum(step["seconds"] for step in steps_of(run, name))


def equal_time(run):
    dense = steps_of(run, "dense-tuned")
    return round(len(dense) * seconds_of(run, "moe-tuned") / seconds_of(run, "dense-tuned"))


def accuracies(run, name, quiz):
    """{kind: per cent}, with "all" last."""
    samples = {sample["doc_id"]: sample["acc"] for sample in lines(run / "scores" / name / "samples_quiz.jsonl")}
    right = {}
    for index, acc in samples.items():
        right.setdefault(quiz[index]["source"], []).append(acc)
    right["all"] = [value for values in right.values() for value in values]
    return {kind: 100 * sum(values) / len(values) for kind, values in right.items()}


def row(label, cells):
    print(f"{label:<22}" + "".join(f"{cell:>14}" for cell in cells))


def loss_series(run, name):
    steps = [step for step in steps_of(run, name) if step["loss"] is not None]
    return {"name": COLUMNS[name], "x": [step["step"] for step in steps], "y": [round(step["loss"], 4) for step in steps]}


def accuracy_series(run, name):
    asked = [step for step in lines(run / name / "metrics.jsonl") if "tasks" in step]
    values = [100 * step["tasks"]["quiz"]["acc"] for step in asked]
    return {"name": COLUMNS[name], "x": [step["step"] for step in asked], "y": values, "is_marked": True}


def load_map(stats, layer):
    """Rows of each expert for each kind of question, in hundredths of an equal share."""
    sources = stats["source"]
    values = []
    for source in sources:
        rows = source["layers"][layer]["tokens_per_expert"]
        values.append([round(100 * len(rows) * count / max(1, sum(rows))) for count in rows])
    information = stats["source_information"][layer]
    return {"kind": "heat map", "title": f"Layer {information['layer']}",
            "subtitle": f"a question's kind tells {information['bits']:.3f} bits of its expert, {information['bits_by_chance']:.4f} by chance",
            "x": {"label": "kind", "names": [source["source"] for source in sources]},
            "y": {"label": "expert", "names": [str(expert) for expert in range(stats["experts"])]}, "values": values}


def page(run, tuned, questions, scores, counts, seconds):
    stats = json.loads((run / "stats.json").read_text())
    names = list(scores)
    table = {"kind": "table", "columns": ["model", "questions right", "parameters, total", "active", "steps", "seconds"], "rows": [
        {"name": COLUMNS[name], "cells": [f"{scores[name]['all']:.1f} %", str(counts[name]["total"]), str(counts[name]["active"]),
                                          str(len(steps_of(run, name))) if name in tuned else "-", seconds[name]]}
        for name in names]}
    maps = [load_map(stats, layer) for layer in range(len(stats["source_information"]))]
    return {"program": "recipes/quickstart.sh", "title": "What a tiny mixture remembers",
            "facts": [{"name": COLUMNS[name], "value": f"{scores[name]['all']:.1f} %"} for name in names],
            "notes": [{"text": f"{questions} held-out questions, four choices each: chance is 25 %"}],
            "sections": [
                {"id": "table", "title": "The quiz", "panels": [table]},
                {"id": "steps", "title": "Over the steps", "x": {"label": "step"}, "panels": [
                    {"kind": "lines", "title": "Questions right, %", "series": [accuracy_series(run, name) for name in tuned]},
                    {"kind": "lines", "title": "Loss", "series": [loss_series(run, name) for name in tuned], "y": {"log": True}}]}]
            + [{"id": f"experts-{i}", "title": "Which expert serves which kind of question" if i == 0 else "",
                "x": panel.pop("x"), "panels": [panel]} for i, panel in enumerate(maps)]}


def main():
    if sys.argv[1] == "steps":
        print(equal_time(pathlib.Path(sys.argv[2])))
        return
    run, quiz = pathlib.Path(sys.argv[1]), lines(sys.argv[2])
    names = [name for name in COLUMNS if name in sys.argv[3:]]
    tuned = [name for name in names if name != "dense"]
    questions = len(lines(run / "scores" / "dense" / "samples_quiz.jsonl"))
    scores = {name: accuracies(run, name, quiz) for name in names}
    counts = {name: json.loads((run / "inspect" / f"{name}.json").read_text())["parameters"] for name in names}
    seconds = {name: f"{seconds_of(run, name):.0f}" if name in tuned else "-" for name in names}
    (run / "page.json").write_text(json.dumps(page(run, tuned, questions, scores, counts, seconds)) + "\n")

    print()
    row("quiz, per cent right", [COLUMNS[name] for name in names])
    for kind in scores["dense"]:
        if kind == "all":
            print("-" * (22 + 14 * len(names)))
        row(kind, [f"{scores[name][kind]:.1f}" for name in names])
    row("parameters, total", [f"{counts[name]['total'] / 1e3:.0f} K" for name in names])
    row("parameters, active", [f"{counts[name]['active'] / 1e3:.0f} K" for name in names])
    row("steps to tune", [str(len(steps_of(run, name))) if name in tuned else "-" for name in names])
    row("seconds to tune", [seconds[name] for name in names])

    def ahead(of):
        return scores["moe-tuned"]["all"] - scores[of]["all"]

    is_short = "dense-tuned" not in names
    against_tuned = "" if is_short else (f"; against the dense parent tuned alike: {ahead('dense-tuned'):+.1f} at equal steps, "
                                         f"{ahead('dense-longer'):+.1f} in equal time")
    error = 100 * math.sqrt(0.25 / questions)
    print(f"\n{questions} held-out questions, four choices each (chance 25; one standard error is at most {error:.1f} points)")
    print(f"gained by upcycling and tuning: {ahead('dense'):+.1f} points{against_tuned}")
    least = LEAST_GAIN_OF_A_SHORT_ONE if is_short else LEAST_GAIN
    if not ahead("dense") >= least:
        sys.exit(f"quickstart: the gain of {ahead('dense'):.1f} points is below the {least} that this run is known to reach")
    if not is_short and not ahead("dense-tuned") > 0:
        sys.exit("quickstart: the mixture is not above the dense model of as many steps, as this run is known to be")


if __name__ == "__main__":
    main()
