#!/usr/bin/env python3
"""The quickstart's last word: quiz accuracy of the three models, kind by kind, what they cost, and what was gained.

  table.py RUN QUIZ.jsonl

Reads RUN/scores/NAME/samples_quiz.jsonl (`moe eval`), RUN/inspect/NAME.json (`moe inspect --json`) and RUN/seconds/NAME for
NAME = dense, dense-tuned, moe-tuned. Exit code 1 when the tuned mixture is not at least 25 points above the dense parent.
"""
import json
import math
import pathlib
import sys

COLUMNS = {"dense": "dense parent", "dense-tuned": "dense, tuned", "moe-tuned": "MoE, tuned"}
LEAST_GAIN = 25


def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def accuracies(run, name, quiz):
    """{kind: per cent}, with "all" last."""
    samples = {sample["doc_id"]: sample["acc"] for sample in lines(run / "scores" / name / "samples_quiz.jsonl")}
    right = {}
    for index, item in enumerate(quiz):
        right.setdefault(item["kind"], []).append(samples[index])
    right["all"] = [value for values in right.values() for value in values]
    return {kind: 100 * sum(values) / len(values) for kind, values in right.items()}


def row(label, cells):
    print(f"{label:<22}" + "".join(f"{cell:>14}" for cell in cells))


def main():
    run, quiz = pathlib.Path(sys.argv[1]), lines(sys.argv[2])
    scores = {name: accuracies(run, name, quiz) for name in COLUMNS}
    counts = {name: json.loads((run / "inspect" / f"{name}.json").read_text())["parameters"] for name in COLUMNS}
    seconds = {name: (run / "seconds" / name).read_text().strip() if name != "dense" else "-" for name in COLUMNS}

    print()
    row("quiz, per cent right", COLUMNS.values())
    for kind in scores["dense"]:
        if kind == "all":
            print("-" * (22 + 14 * len(COLUMNS)))
        row(kind, [f"{scores[name][kind]:.1f}" for name in COLUMNS])
    row("parameters, total", [f"{counts[name]['total'] / 1e6:.2f} M" for name in COLUMNS])
    row("parameters, active", [f"{counts[name]['active'] / 1e6:.2f} M" for name in COLUMNS])
    row("seconds to tune", [seconds[name] for name in COLUMNS])

    gain = scores["moe-tuned"]["all"] - scores["dense"]["all"]
    beside = scores["moe-tuned"]["all"] - scores["dense-tuned"]["all"]
    error = 100 * math.sqrt(0.25 / len(quiz))
    print(f"\n{len(quiz)} held-out questions, four choices each (chance 25; one standard error is at most {error:.1f} points)")
    print(f"gained by upcycling and tuning: {gain:+.1f} points; against the dense parent tuned alike: {beside:+.1f}")
    if not gain >= LEAST_GAIN:
        sys.exit(f"quickstart: the gain of {gain:.1f} points is below the {LEAST_GAIN} that this run is known to reach")


if __name__ == "__main__":
    main()
