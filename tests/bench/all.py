#!/usr/bin/env python3
"""Measures every ratio that moe promises; prints a line per row, and the table of README.md as Markdown.

usage: all.py [--rows NAME,..] [--list] [--rounds 3] [--scratch FOLDER] [--upcycle-gb 4] [--out table.md]

Each row alternates moe and a peer (PEERS, ../shared/peers: transformers, lm-evaluation-harness, lazy Python, plain writes) or LibTorch's
products on the same folders. A ratio is computed per round; the table has the median, the minimum and the maximum of the rounds, and
the required value. With one thread CPU seconds are compared, which a busy machine does not change; with more threads, and for disks,
wall seconds. rows.py has the rows.

MOE names the binary (./moe); this Python needs torch, transformers, numpy, and lm_eval for the eval rows. A row whose requirements are
missing names them. Exit code 1 if a row that ran misses its required value.
"""

import argparse
import datetime
import os
import pathlib
import platform
import shutil
import sys
import tempfile

import rows


def machine():
    lines = open("/proc/cpuinfo").read().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    found = rows.json_of([rows.MOE, "bench", "gemm", "--tokens", 16, "--repeats", 1, "--json"])
    return f"{name} ({found['instruction_set']}), {os.cpu_count()} processors, {datetime.date.today().isoformat()}, LibTorch {found['torch_version']}"


def shown(found):
    """Returns the cells (measured, goal, met)."""
    if found.lacks:
        return found.lacks, found.must_text(), "-"
    return found.measured(), found.must_text(), "yes" if found.met() else "**no**"


def table(results):
    lines = ["| what | baseline | measured | goal | met | command |", "|---|---|---|---|---|---|"]
    for found in results:
        measured, must, met = shown(found)
        note = f"; {found.note}" if found.note else ""
        lines.append(f"| {found.what} | {found.peer} | {measured}{note} | {must} | {met} | `{found.command}` |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names or prefixes of names, separated by commas (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="folder on the disk to measure (default: the system's temporary folder)")
    parser.add_argument("--upcycle-gb", type=float, default=4)
    parser.add_argument("--out", type=pathlib.Path, help="also write the table to this file")
    options = parser.parse_args()
    wanted = [part for part in (options.rows or "").split(",") if part]
    chosen = {name: measure for name, measure in rows.ROWS.items() if not wanted or any(name.startswith(part) for part in wanted)}
    if options.list or not chosen:
        print("\n".join(rows.ROWS))
        return 0 if options.list else 2
    if not shutil.which(rows.MOE):
        print(f"all.py: {rows.MOE} is not an executable; build it (recipes/setup.sh) or set MOE", file=sys.stderr)
        return 2
    heading = machine()
    results = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        bench = rows.Bench(pathlib.Path(scratch), options.rounds, options.upcycle_gb)
        for name, measure in chosen.items():
            print(f"-- {name}", file=sys.stderr, flush=True)
            for found in rows.guarded(name, measure, bench):
                results.append(found)
                print(" | ".join([name, found.what, *shown(found), found.command]), flush=True)
                if options.out:  # after every row, so that an interrupted run keeps its results
                    options.out.write_text(table(results) + "\n")
    text = f"{heading}; `{' '.join(['tests/bench/all.py', *sys.argv[1:]])}`; median (minimum to maximum) of {options.rounds} rounds.\n\n{table(results)}\n"
    print("\n" + text)
    if options.out:
        options.out.write_text(text)
    return 1 if any(not found.lacks and not found.met() for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
