#!/usr/bin/env python3
"""A line of the table of recipes/tiny/routers.sh.

  routers.py                 the head of the table
  routers.py RUN/NAME NAME   means over the last 20 steps, the quiz, and for ReLU how well the sparsity was held

Exit code 1 when a ReLU run's sparsity, from the first step at which it reaches 1 - k/E (averaged over 10 steps),
leaves 0.02 around it at the end.
"""
import json
import pathlib
import statistics
import sys

COLUMNS = ["router", "loss", "quiz, %", "dropped, %", "experts a token", "s a step"]


def main():
    if len(sys.argv) == 1:
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
        return 0
    run, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    steps = [json.loads(line) for line in open(run / "train" / "metrics.jsonl", encoding="utf-8")]
    samples = [json.loads(line) for line in open(run / "scores" / "samples_quiz.jsonl", encoding="utf-8")]
    last = steps[-20:]
    mean = {key: statistics.mean(step[key] for step in last) for key in ("loss", "dropped_share", "experts_per_token")}
    quiz = 100 * statistics.mean(sample["acc"] for sample in samples)
    seconds = statistics.median(step["seconds"] for step in steps)
    dropped = f"{100 * mean['dropped_share']:.1f}" if steps[0]["slots_total"] else "-"
    print(f"| `{name}` | {mean['loss']:.3f} | {quiz:.1f} | {dropped} | {mean['experts_per_token']:.2f} | {seconds:.3f} |", flush=True)
    if "lambda" not in steps[0]:
        return 0
    target = 1 - 1 / 8
    sparsity = [statistics.mean(step["sparsity"] for step in steps[i : i + 10]) for i in range(len(steps) - 9)]
    reached = next((i for i, value in enumerate(sparsity) if value >= target), None)
    if reached is None:
        print(f"relu: sparsity {sparsity[-1]:.3f} has not reached {target}", file=sys.stderr)
        return 1
    held = max(abs(value - target) for value in sparsity[-50:])
    print(f"relu: sparsity {target} reached at step {reached + 1}, over the last 50 steps within {held:.3f} of it", file=sys.stderr)
    return 0 if held <= 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
