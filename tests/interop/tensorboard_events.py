#!/usr/bin/env python3
"""The event file of a run, read back by the tensorboard package: every curve of metrics.jsonl with its steps and values, for a run
that was never stopped and for one that was killed and went on.

usage: tensorboard_events.py          environment: MOE (the binary)
"""
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from tally import MOE, TINY, Tally, moe, read_jsonl  # noqa: E402


def train(model, run):
    return ["train", model, "-o", run, "--data", TINY / "instruct.jsonl", "--config", TINY / "tune.toml", "--steps", "20", "--save-every", "5",
            "--threads", "1", "--quiet"]


def check(run):
    lines = read_jsonl(run / "metrics.jsonl")
    files = list(run.glob("events.out.tfevents.*"))
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    wrong = [] if len(files) == 1 else [f"{len(files)} event files"]
    wanted = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "routing/dropped_share": "dropped_share",
              "routing/experts_per_token": "experts_per_token"}
    for tag, key in wanted.items():
        found = events.Scalars(tag)
        if [point.step for point in found] != [line["step"] for line in lines]:
            wrong.append(f"{tag}: steps {[point.step for point in found]}")
        elif any(abs(point.value - line[key]) > 1e-6 * abs(line[key]) for point, line in zip(found, lines)):
            wrong.append(f"{tag}: other values")
    layers = {tag.split("/")[0] for tag in events.Tags()["scalars"] if tag.startswith("layer_")}
    if layers != {f"layer_{one['layer']}" for one in lines[0]["layers"]}:
        wrong.append(f"layers {layers}")
    return wrong


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        moe("upcycle", TINY / "model", "-o", folder / "model", "--experts", 4, "--router", "top1+ir+fr", "--quiet")
        moe(*train(folder / "model", folder / "whole"))
        killed = subprocess.Popen([MOE, *train(folder / "model", folder / "killed")], stdout=subprocess.DEVNULL)
        while killed.poll() is None and not (folder / "killed" / "checkpoints" / "step-10").exists():
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        moe(*train(folder / "model", folder / "killed"))
        for name in ("whole", "killed"):
            wrong = check(folder / name)
            tally.check(f"{name}: curves equal metrics.jsonl", not wrong, "; ".join(wrong))


tally = Tally()
tally.run(main)
