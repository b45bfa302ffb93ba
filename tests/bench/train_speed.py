"""`moe train` against transformers on the same folders, rows and steps: tokens per second, peak memory, losses.

usage: train_speed.py [--folders S,M] [--threads 1] [--rounds 3] [--json FILE]

Folders: S (35 M parameters: hidden 256, 4 layers) and M (176 M: hidden 512, 8 layers), Mixtrals of 8 experts, top-2, random
weights, 2 rows of 512 tokens a step, AdamW, clip 1. The peer is PEERS/hf_mixtral_train.py (PEERS=../shared/peers), as shipped: its
fused AdamW, its grouped_mm experts. With one thread both are measured in CPU seconds of a step (median), which a busy machine does not
change; with more in wall seconds. Each round runs both and gives a ratio. The last lines are a table for a README.
Exit code 1 if losses differ by more than 1e-4 (relative), 77 if the peer's script is missing.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MOE = os.environ.get("MOE", "./moe")
PEERS = pathlib.Path(os.environ.get("PEERS", "../shared/peers"))
SHAPES = {
    "S": ["--hidden", "256", "--ffn", "704", "--layers", "4"],
    "M": ["--hidden", "512", "--ffn", "1376", "--layers", "8"],
}
BATCH, LENGTH, WARMUP, STEPS = 2, 512, 2, 6


def output_of(command, threads=1, codes=(0,)):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}: {(done.stderr + done.stdout).strip()[-300:]}")
    return done.stdout


def json_of(command, threads=1):
    text = output_of(command, threads)
    return json.loads(text) if text.lstrip().startswith("{\n") else json.loads(text.strip().splitlines()[-1])


def seconds_of(words, threads=1):
    """Returns the CPU seconds of a process with one thread, else wall seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output_of(words, threads)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime if threads == 1 else time.perf_counter() - begin


def make_folder(name, folder):
    import numpy

    json_of([sys.executable, PEERS / "make_toy_checkpoint.py", folder, *SHAPES[name]])
    tokens = numpy.fromfile(folder / "tokens.bin", dtype="<i4")
    with open(folder / "rows.jsonl", "w") as out:
        for row in tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH).tolist():
            out.write(json.dumps({"input_ids": row, "labels": row}) + "\n")


def peer(folder, options):
    clock = "cpu" if options.threads == 1 else "wall"
    found = json_of([sys.executable, PEERS / "hf_mixtral_train.py", folder, folder / "tokens.bin", "--experts", "grouped_mm",
                     "--threads", options.threads, "--clock", clock, "--batch", BATCH, "--seq", LENGTH, "--steps", STEPS,
                     "--warmup", WARMUP], options.threads)
    return found["step_s_median"], found["peak_rss_mib"] * 2**20, found["losses"]


def thread_seconds(process):
    """Returns the CPU seconds of each thread of a running process, by thread id."""
    seconds = {}
    for task in pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        try:
            seconds[int(task.parent.name)] = int(task.read_text().split()[0]) / 1e9
        except OSError:  # the thread has ended
            pass
    return seconds


def steps_of(process, metrics):
    """CPU seconds of each step after the first: read whenever a step's record is there."""
    marks, seen = [], 0
    while process.poll() is None:
        count = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
        if count > seen:
            marks.append((count, sum(thread_seconds(process).values())))
            seen = count
        time.sleep(0.005)
    return [(later[1] - before[1]) / (later[0] - before[0]) for before, later in zip(marks, marks[1:])]


def ours(folder, run, options):
    """Seconds a step (median), peak memory, losses."""
    shutil.rmtree(run, ignore_errors=True)
    measured = 2 * STEPS
    flags = {"--steps": WARMUP + measured, "--micro-batch": BATCH, "--seq-len": LENGTH, "--pack": "none", "--shuffle": "off", "--lr": 1e-4,
             "--schedule": "constant", "--beta1": 0.9, "--beta2": 0.95, "--weight-decay": 0.1, "--clip": 1, "--lb-coef": 0,
             "--router": "top2:cf=inf,st=off", "--threads": options.threads}
    words = [str(word) for pair in flags.items() for word in pair]
    process = subprocess.Popen([MOE, "train", folder, "-o", run, "--data", folder / "rows.jsonl", "-q", *words],
                               stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": str(options.threads)})
    used = steps_of(process, run / "metrics.jsonl")
    if process.returncode != 0:
        raise RuntimeError(f"moe train: exit {process.returncode}")
    records = [json.loads(line) for line in open(run / "metrics.jsonl")]
    wall = [record["seconds"] for record in records[WARMUP:]]
    seconds = statistics.median(used[WARMUP - 1:] if options.threads == 1 else wall)
    return seconds, records[-1]["peak_memory_bytes"], [record["loss"] for record in records[: WARMUP + STEPS]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folders", default="S")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if not PEERS.is_dir():
        print(f"{PEERS} is not there: set PEERS to the folder of hf_mixtral_train.py")
        return 77
    failed, numbers = 0, {}
    table = ["| folder | threads | transformers tok/s | moe tok/s | ratio (spread) | memory | losses apart |", "|---|---|---|---|---|---|---|"]
    for name in options.folders.split(","):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            make_folder(name, folder)
            rounds = []
            for number in range(options.rounds):
                theirs, mine = peer(folder, options), ours(folder, folder / "run", options)
                gap = max(abs(a - b) / a for a, b in zip(theirs[2], mine[2], strict=True))
                rounds.append((theirs[0], mine[0], mine[1] / theirs[1], gap))
                print(f"{name} round {number + 1}: transformers {theirs[0]:.3f} s/step, moe {mine[0]:.3f}, ratio {theirs[0] / mine[0]:.2f}", flush=True)
            ratios = [one[0] / one[1] for one in rounds]
            rate = lambda column: BATCH * LENGTH / statistics.median(one[column] for one in rounds)
            gap = max(one[3] for one in rounds)
            failed += gap > 1e-4
            numbers[name] = {"peer_s": [one[0] for one in rounds], "moe_s": [one[1] for one in rounds], "ratio": ratios,
                             "memory": [one[2] for one in rounds], "apart": gap}
            table.append(f"| {name} | {options.threads} | {rate(0):.0f} | {rate(1):.0f} | {statistics.median(ratios):.2f} "
                         f"({min(ratios):.2f} to {max(ratios):.2f}) | {statistics.median(one[2] for one in rounds):.2f} | {gap:.1e} |")
    print("\n".join(table))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
