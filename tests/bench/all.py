#!/usr/bin/env python3
"""Everything that is compared with somebody else's program, in one go: prints a Markdown table for the README.

usage: all.py [--folders S,M] [--threads 1,2] [--rounds 3] [--only train,load,upcycle,eval] [--upcycle-gb 4] [--scratch FOLDER]

Each line runs ours beside a peer of PEERS (../shared/peers) on the same folder and data, in rounds: a ratio is taken inside its round,
and the median stands with the least and the largest. With one thread CPU seconds are compared, which a busy machine does not stretch;
with more, and where a disk is measured, wall seconds.

  train     tests/bench/train_speed.py: `moe train` beside transformers (grouped_mm experts, fused AdamW), losses 1e-4 apart at most
  load      `moe bench train`'s loading of the M folder into memory beside AutoModelForCausalLM.from_pretrained; warm cache
  upcycle   `moe bench upcycle` beside lazy Python (py_upcycle.py --sync) and beside plain writes of as many bytes
  eval      tests/bench/eval_speed.py, where it is there: `moe eval` beside lm-evaluation-harness

MOE names the binary (./moe), Python is this one (needs torch, transformers, numpy). Exit 1 where something differs that must not.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MOE = os.environ.get("MOE", "./moe")
PEERS = pathlib.Path(os.environ.get("PEERS", "../shared/peers"))
NOT_RUN = "not yet run on a card"


def output_of(command, threads=1, check=True):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done


def json_of(command, threads=1):
    text = output_of(command, threads).stdout
    return json.loads(text) if text.lstrip().startswith("{\n") else json.loads(text.strip().splitlines()[-1])


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def machine():
    name = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
    return f"{name}, {os.cpu_count()} processors, {datetime.date.today().isoformat()}, LibTorch {json_of([MOE, 'bench', 'gemm', '--tokens', 16, '--repeats', 1, '--json'])['torch_version']}"


def train_rows(options):
    """The table of train_speed.py, a line a folder and number of threads."""
    rows, failed = [], 0
    for threads in options.threads.split(","):
        command = [sys.executable, HERE / "train_speed.py", "--folders", options.folders, "--threads", threads, "--rounds", options.rounds]
        done = output_of(command, threads, check=False)
        failed += done.returncode != 0
        for line in done.stdout.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 8 and cells[0] in options.folders.split(","):
                clock = "CPU" if threads == "1" else "wall"
                rows.append((f"training, folder {cells[0]}, {threads} thread{'s' if threads != '1' else ''}, fp32 ({clock} seconds)",
                             f"transformers: {cells[3]} tokens/s", f"{cells[4]} tokens/s", cells[5],
                             f"memory {cells[6]}, losses {cells[7]} apart", f"train_speed.py --folders {cells[0]} --threads {threads}"))
    return rows, failed


LOAD = """
import json, sys, time, torch, transformers
torch.set_num_threads(1)
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
start = time.process_time()
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
print(json.dumps({"seconds": time.process_time() - start}))
"""


def load_rows(options, scratch):
    folder = scratch / "M"
    json_of([sys.executable, PEERS / "make_toy_checkpoint.py", folder, "--hidden", 512, "--ffn", 1376, "--layers", 8])
    ratios, theirs, ours = [], [], []
    for _ in range(options.rounds):
        theirs.append(json_of([sys.executable, "-c", LOAD, folder])["seconds"])
        ours.append(json_of([MOE, "bench", "train", folder, "--seq-len", 8, "--warmup", 1, "--repeats", 1, "--threads", 1, "--json"])["load_ms"] / 1e3)
        ratios.append(theirs[-1] / ours[-1])
    return [("loading a folder of 706 MB, warm", f"from_pretrained: {spread(theirs)} s", f"{spread(ours)} s", spread(ratios, 1), "", "moe bench train M --json")], 0


def dense_folder(folder, gigabytes):
    """A dense LLaMA whose mixture of 8 experts in every second layer takes about that much in bf16."""
    layers = max(2, int(gigabytes * 4) // 2 * 2)  # 0.06 GB a dense layer, 4.5 times that for two of them as mixture
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
              "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
              "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
              "torch_dtype": "bfloat16"}
    source = folder.with_suffix(".json.d")
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    output_of([MOE, "init", source / "config.json", "-o", folder, "--dtype", "bf16"])


def upcycle_rows(options, scratch):
    dense = scratch / "dense"
    dense_folder(dense, options.upcycle_gb)
    theirs, ours, disk, ratios, shares, anonymous = [], [], [], [], [], []
    for _ in range(options.rounds):
        shutil.rmtree(scratch / "lazy", ignore_errors=True)
        theirs.append(json_of([sys.executable, PEERS / "py_upcycle.py", dense, scratch / "lazy", "--how", "lazy", "--sync"])["seconds"])
        shutil.rmtree(scratch / "lazy", ignore_errors=True)
        found = json_of([MOE, "bench", "upcycle", dense, "-o", scratch / "out", "--layers", "odd", "--repeats", 1, "--json"])
        ours.append(found["upcycle"]["median_ms"] / 1e3)
        disk.append(found["disk"]["median_ms"] / 1e3)
        anonymous.append(found["anonymous_bytes"] / 2**20)
        ratios.append(theirs[-1] / ours[-1])
        shares.append(found["disk_share"])
    size = found["tensor_bytes"] / 1e9
    note = f"{max(anonymous):.0f} MiB of anonymous memory above the start"
    return [(f"upcycling to {size:.1f} GB, synced (wall seconds)", f"lazy Python: {spread(theirs)} s", f"{spread(ours)} s", spread(ratios), note, "moe bench upcycle"),
            ("the same beside the disk", f"plain writes: {spread(disk)} s", f"{spread(ours)} s", spread(shares), "", "moe bench upcycle")], 0


def eval_rows(options):
    script = HERE / "eval_speed.py"
    if not script.is_file():
        return [], 0
    done = output_of([sys.executable, script, "--rounds", options.rounds], check=False)
    print(done.stdout, file=sys.stderr)
    tables = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [("evaluation", "", "", "", "see the table below", "eval_speed.py")] if tables else [], int(done.returncode not in (0, 77)), tables


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", default="S,M")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="train,load,upcycle,eval")
    parser.add_argument("--upcycle-gb", type=float, default=4)
    parser.add_argument("--scratch", help="a folder on the disk to measure (the system's for temporary files)")
    options = parser.parse_args()
    if not PEERS.is_dir():
        print(f"{PEERS} is not there: set PEERS to the folder of the peers' scripts")
        return 77
    wanted, rows, failed, more = options.only.split(","), [], 0, []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        scratch = pathlib.Path(scratch)
        parts = {"train": lambda: train_rows(options), "load": lambda: load_rows(options, scratch),
                 "upcycle": lambda: upcycle_rows(options, scratch), "eval": lambda: eval_rows(options)}
        for name in wanted:
            print(f"-- {name}", file=sys.stderr, flush=True)
            found, bad, *tables = parts[name]()
            rows += found
            failed += bad
            more += tables[0] if tables else []
    print(f"{machine()}; `tests/bench/all.py --rounds {options.rounds}`; median (least to largest) of the rounds.\n")
    print("| what | peer | moe | ratio | besides | command |\n|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    for what in ("MoE layer, 7B shape, 16384 tokens, bf16, beside a dense SwiGLU", "training the 7B shape cut to 8 layers, top-1"):
        print(f"| {what}, H200 | | {NOT_RUN} | | | |")
    if more:
        print("\n" + "\n".join(more))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
