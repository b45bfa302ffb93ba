#!/usr/bin/env python3
"""The quickstart's comparison over several seeds: mixture against dense parent at equal steps and in equal time, with intervals.

  recipes/tiny/seeds.py [--seeds 5] [--work runs/seeds] [--steps N]

A seed draws the router and orders the examples; parent, texts and quiz stay. Prints the table of recipes/README.md: means over seeds with
Student's 95 % interval. Every run takes one thread, and time is processor time of the whole training command, which other work beside it
hardly stretches (about three minutes a seed). Interrupted, it goes on: a run whose scores are there is not made again. The binary is $MOE,
else ./moe. --steps N takes N steps everywhere and asks 40 questions, to see that it works.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys

TINY = pathlib.Path(__file__).resolve().parent
ROOT = TINY.parent.parent
sys.path.insert(0, str(ROOT / "recipes" / "study"))
from intervals import t_interval  # noqa: E402
from table import steps_of  # noqa: E402

MOE = os.environ.get("MOE", str(ROOT / "moe"))
PARENT, RECIPE = TINY / "facts" / "model", TINY / "facts" / "tune.toml"
MODELS = {"dense-tuned": "dense", "moe-tuned": "MoE of 8, `top2`", "dense-longer": "dense, same time"}


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def moe(*words):
    """Runs moe with one thread; its processor time in seconds."""
    began = processor_seconds()
    done = subprocess.run([MOE, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"seeds: moe {' '.join(map(str, words))}: {done.stderr.strip()}")
    return processor_seconds() - began


def tune(folder, name, model, texts, seed, steps, is_short):
    """(accuracy of `name` in per cent, steps, seconds of training); trained and asked unless it was. Without `steps` those of the recipe."""
    scores, seconds = folder / "scores" / name / "results.json", folder / f"{name}.seconds"
    if not scores.exists():
        words = ["--steps", steps] if steps else []
        words += ["--force"] if (folder / name).exists() else []  # of a run that was interrupted
        took = moe("train", model, "-o", folder / name, "--data", texts / "instruct.jsonl", "--config", RECIPE, "--seed", seed, "--threads", 1,
                   "--quiet", *words)
        seconds.write_text(f"{took}\n")
        moe("eval", folder / name / "final", "--tasks", texts / "quiz.jsonl", "--bos", "on", "-o", scores.parent, "--quiet",
            *(["--limit", 40] if is_short else []), *(["--force"] if scores.parent.exists() else []))
    accuracy = 100 * json.loads(scores.read_text())["results"]["quiz"]["acc,none"]
    return accuracy, len(steps_of(folder, name)), float(seconds.read_text())


def run_seed(folder, texts, seed, steps):
    """{name: (accuracy, steps, seconds)}; the mixture and the dense model of as many steps first, since they say what equal time is."""
    if not (folder / "model").exists():
        moe("upcycle", PARENT, "-o", folder / "model", "--experts", "8", "--layers", "all", "--router", "top2", "--seed", seed, "--quiet")
    is_short = steps is not None
    found = {"moe-tuned": tune(folder, "moe-tuned", folder / "model", texts, seed, steps, is_short),
             "dense-tuned": tune(folder, "dense-tuned", PARENT, texts, seed, steps, is_short)}
    (_, _, moe_seconds), (_, dense_steps, dense_seconds) = found.values()
    longer = steps if is_short else round(dense_steps * moe_seconds / dense_seconds)
    found["dense-longer"] = tune(folder, "dense-longer", PARENT, texts, seed, longer, is_short)
    return found


def text_of(values):
    mean, half = t_interval(values)
    return f"{mean:.1f}" + ("" if half is None else f" +- {half:.1f}")


def print_table(results):
    def cells(name):
        accuracy, steps, seconds = zip(*(result[name] for result in results))
        return [text_of(accuracy), f"{statistics.fmean(steps):.0f}", f"{statistics.fmean(seconds):.0f}"]

    def ahead(of):
        return text_of([result["moe-tuned"][0] - result[of][0] for result in results])

    print("| model | correct answers, % | steps | processor seconds |\n|---|---|---|---|")
    for name, label in MODELS.items():
        print("| " + " | ".join([label, *cells(name)]) + " |")
    print(f"\nThe mixture less the dense model, paired by seed ({len(results)} seeds, 95 %): {ahead('dense-tuned')} points at equal steps, "
          f"{ahead('dense-longer')} in equal time.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--work", default=str(ROOT / "runs" / "seeds"))
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    work = pathlib.Path(arguments.work)
    texts = work / "texts"
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, TINY / "facts.py", texts], check=True, stdout=subprocess.DEVNULL)
    results = []
    for seed in range(1, arguments.seeds + 1):
        folder = work / f"seed{seed}"
        folder.mkdir(exist_ok=True)
        results.append(run_seed(folder, texts, seed, arguments.steps))
        print(f"seed {seed}: " + ", ".join(f"{MODELS[name]} {accuracy:.1f}" for name, (accuracy, _, _) in results[-1].items()),
              file=sys.stderr, flush=True)
    print_table(results)


if __name__ == "__main__":
    main()
