"""`moe train` of 2 processes with one thread each beside one process with two threads: seconds a step, and the ratio.

usage: ranks_speed.py [FOLDER] [--micro-batches 1,4] [--rounds 3] [--steps 10] [--router top2:cf=inf] [--lr 1e-4] [--most 1.10]

FOLDER: an MoE checkpoint with rows.jsonl (input_ids, labels) beside it; without one a Mixtral of 8 experts, 35 M parameters
(hidden 256, 4 layers, 32000 pieces, random weights) is made with PEERS/make_toy_checkpoint.py (PEERS=../shared/peers). A micro-batch is 2 rows of
512 tokens for all processes together; --micro-batches says how many make a step. Each round runs the one, then the other; the figure
of a run is the median wall time of its steps, the first ones left out; a ratio is taken inside its round. The machine needs two cores
and nothing else to do. The last lines are a table for a README.
Exit 1 where losses are more than 1e-4 apart (relative) or the median ratio is above --most, 77 where the peer's script is missing.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

MOE = os.environ.get("MOE", "./moe")
PEERS = pathlib.Path(os.environ.get("PEERS", "../shared/peers"))
SHAPE = ["--hidden", "256", "--ffn", "704", "--layers", "4"]
ROWS, LENGTH, WARMUP, LOGICAL_RANKS = 2, 512, 3, 2


def make_folder(folder):
    import numpy

    subprocess.run([sys.executable, PEERS / "make_toy_checkpoint.py", folder, *SHAPE], check=True, stdout=subprocess.DEVNULL)
    tokens = numpy.fromfile(folder / "tokens.bin", dtype="<i4")
    with open(folder / "rows.jsonl", "w") as out:
        for row in tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH).tolist():
            out.write(json.dumps({"input_ids": row, "labels": row}) + "\n")


def run(folder, out, processes, micro_batches, options):
    """Median seconds of a step, and the losses of all steps."""
    threads = 2 // processes
    flags = {"--steps": WARMUP + options.steps, "--micro-batch": ROWS, "--global-batch": ROWS * micro_batches, "--seq-len": LENGTH,
             "--pack": "none", "--shuffle": "off", "--lr": options.lr, "--schedule": "constant", "--clip": 1, "--threads": threads,
             "--router": options.router, "--ep-ranks": LOGICAL_RANKS}
    words = [str(word) for pair in flags.items() for word in pair]
    words += ["--ranks", str(processes)] if processes > 1 else []
    subprocess.run([MOE, "train", folder, "-o", out, "--data", folder / "rows.jsonl", "-q", "--force", *words], check=True,
                   stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    records = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return statistics.median(record["seconds"] for record in records[WARMUP:]), [record["loss"] for record in records]


def measure(folder, out, micro_batches, options):
    """A line of the table, the median ratio and the largest distance of two losses."""
    rounds, gap = [], 0
    for number in range(options.rounds):
        one, one_losses = run(folder, out, 1, micro_batches, options)
        two, two_losses = run(folder, out, 2, micro_batches, options)
        gap = max([gap, *(abs(a - b) / abs(a) for a, b in zip(one_losses, two_losses, strict=True))])
        rounds.append((one, two, two / one))
        print(f"{micro_batches} micro-batches, round {number + 1}: one process {one:.3f} s/step, two {two:.3f}, ratio {two / one:.3f}", flush=True)
    one, two, ratio = (statistics.median(column) for column in zip(*rounds))
    ratios = [each[2] for each in rounds]
    line = f"| {micro_batches} | {one:.3f} | {two:.3f} | {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {gap:.1e} |"
    return line, ratio, gap


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--micro-batches", default="1,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--router", default="top2:cf=inf")
    parser.add_argument("--lr", type=float, default=1e-4, help="as train_speed.py trains (1e-4); faster learning makes loads less even")
    parser.add_argument("--most", type=float)
    options = parser.parse_args()
    if options.folder is None and not PEERS.is_dir():
        print(f"{PEERS} is not there: set PEERS to the folder of make_toy_checkpoint.py, or name a FOLDER")
        return 77
    failed = False
    table = ["| micro-batches a step | 1 process, 2 threads: s/step | 2 processes, 1 thread | ratio (spread) | losses apart |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        folder = options.folder
        if folder is None:
            folder = place / "model"
            make_folder(folder)
        for micro_batches in map(int, options.micro_batches.split(",")):
            line, ratio, gap = measure(folder, place / "run", micro_batches, options)
            table.append(line)
            failed |= gap > 1e-4 or (options.most is not None and ratio > options.most)
    print("\n".join(table))
    return 1 if failed else 0


sys.exit(main())
