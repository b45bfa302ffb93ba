#!/usr/bin/env python3
"""Runs the same commands with the binary of an old commit and with this one and compares their files and output, without times.
Both run on this machine, because instruction sets round differently.

  tests/slow/same_as.py COMMIT [--only WORDS]       builds COMMIT in a worktree of its own
  tests/slow/same_as.py --binary OLD [--only WORDS]

Environment: MOE (this build's binary), MOE_SHARED_DATA (benchmark files).

A case is a list of command lines in which {moe} is the binary and {out} the case's own folder, which has one path for both
binaries (it is moved away after the first), so that paths written into files are equal too.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from tally import Tally, differences, read_jsonl  # noqa: E402

TINY = "recipes/tiny"
ROUTERS = ["top1", "top1+ir", "top1+fr", "top1+ir+fr", "top2", "top2+ir+fr", "topp:0.4", "relu:k=1"]
VARIANTS = {
    "fp32": [],
    "bf16": ["--precision", "bf16"],
    "recompute": ["--recompute", "layer"],
    "lora": ["--lora", "4"],
    "2 ranks": ["--ranks", "2"],
}
TASKS = ["hellaswag", "arc_easy", "piqa", "logiqa", "copa", "wic", "truthfulqa_mc2", "bbh_zeroshot_navigate"]
# Times, rates, memory and identities, which may differ between two runs of one binary.
VOLATILE = {"seconds", "tokens_per_second", "peak_memory_bytes", "data_wait_seconds", "evaluation_seconds", "date", "moe",
            "version", "commit", "wall_seconds", "time", "total_evaluation_time_seconds", "git_hash", "threads"}
# Invalid input: both binaries must have the same exit code and name the word.
WRONG = [
    (["upcycle", "{out}/nosuch", "-o", "{out}/o"], "nosuch"),
    (["upcycle", f"{TINY}/model", "-o", "{out}/o", "--router", "top9000"], "top9000"),
    (["upcycle", f"{TINY}/model", "-o", "{out}/o", "--experts", "0"], "experts"),
    (["train", f"{TINY}/model", "-o", "{out}/o", "--data", "{out}/nosuch.jsonl"], "nosuch.jsonl"),
    (["train", f"{TINY}/model", "-o", "{out}/o", "--data", f"{TINY}/instruct.jsonl", "--schedule", "zigzag"], "zigzag"),
    (["train", f"{TINY}/model", "-o", "{out}/o", "--data", f"{TINY}/instruct.jsonl", "--micro-batch", "3", "--global-batch", "8"],
     "micro"),
    (["eval", f"{TINY}/model", "--tasks", "nosuchtask", "--data", "{out}"], "nosuchtask"),
    (["eval", f"{TINY}/model", "--tasks", "arc_easy", "--data", "{out}/empty"], "empty"),
    (["generate", f"{TINY}/model"], "prompt"),
    (["inspect", f"{TINY}/tune.toml"], "tune.toml"),
    (["route", "{out}/nosuch.json"], "nosuch.json"),
    (["evla"], "evla"),
]


def without_volatile(value):
    if isinstance(value, dict):
        return {key: without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [without_volatile(item) for item in value]
    return value


def files_differ(old, new):
    """Returns the first difference of two files, or None."""
    if old.suffix not in (".json", ".jsonl"):
        return None if old.read_bytes() == new.read_bytes() else "bytes differ"
    read = read_jsonl if old.suffix == ".jsonl" else lambda path: json.loads(path.read_text(encoding="utf-8"))
    return next(differences(without_volatile(read(new)), without_volatile(read(old))), None)


def folders_differ(old, new, names):
    """Compares the files that a case names by glob patterns; a pattern that matches nothing is a difference."""
    for pattern in names:
        files = sorted(path.relative_to(old) for path in old.glob(pattern) if path.is_file())
        if not files:
            return f"no file {pattern}"
        others = sorted(path.relative_to(new) for path in new.glob(pattern) if path.is_file())
        if files != others:
            return f"files {sorted(map(str, set(files) ^ set(others)))} on one side only"
        for file in files:
            what = files_differ(old / file, new / file)
            if what:
                return f"{file}: {what}"
    return None


def run(command, binary, out):
    line = [part.format(moe=binary, out=out) for part in command]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout, done.stderr


def run_case(case, binary, out):
    """Runs the commands of a case; returns the error of the first that fails."""
    out.mkdir(parents=True)
    for number, command in enumerate(case["commands"]):
        code, stdout, stderr = run(command, binary, out)
        if code != 0:
            return f"exit code {code}: {stderr.strip().splitlines()[-1:]}"
        (out / f"stdout.{number}").write_text(stdout, encoding="utf-8")
    return None


def compare_case(case, old, new, work):
    out, kept = work / "case", work / "old"
    for folder in (out, kept):
        shutil.rmtree(folder, ignore_errors=True)
    wrong = run_case(case, old, out)
    if wrong:
        return f"the old binary: {wrong}"
    out.rename(kept)
    wrong = run_case(case, new, out)
    if wrong:
        return f"the new binary: {wrong}"
    return folders_differ(kept, out, case["files"])


def train_commands(router, flags):
    scale = "auto" if router.startswith(("topp", "relu")) else "1"
    return [
        ["{moe}", "upcycle", f"{TINY}/model", "-o", "{out}/model", "--experts", "8", "--layers", "even", "--router", router,
         "--gate-scale", scale, "--seed", "1", "--quiet"],
        ["{moe}", "train", "{out}/model", "-o", "{out}/run", "--data", f"{TINY}/instruct.jsonl", "--config", f"{TINY}/tune.toml",
         "--steps", "20", "--micro-batch", "4", "--quiet", *flags],
    ]


def cases(data):
    for router in ROUTERS:
        for name, flags in VARIANTS.items():
            files = ["run/metrics.jsonl", "run/final/*"]
            if name == "fp32":
                files.append("model/*")
            yield {"name": f"20 steps, {router}, {name}", "commands": train_commands(router, flags), "files": files}
    yield {"name": "20 steps, dense", "files": ["run/metrics.jsonl", "run/final/*"],
           "commands": [["{moe}", "train", f"{TINY}/model", "-o", "{out}/run", "--data", f"{TINY}/instruct.jsonl", "--config",
                         f"{TINY}/tune.toml", "--steps", "20", "--quiet"]]}
    yield {"name": "init, dense and mixture", "files": ["dense/*"],
           "commands": [["{moe}", "init", f"{TINY}/config.json", "-o", "{out}/dense", "--seed", "3", "--quiet"]]}
    yield {"name": "generated text", "files": ["stdout.*"],
           "commands": [["{moe}", "generate", f"{TINY}/model", "--prompt", "The", "--max-tokens", "40"]]}
    yield {"name": "inspect", "files": ["stdout.0"], "commands": [["{moe}", "inspect", f"{TINY}/model", "--json"]]}
    logits = [path for path in sorted((data.parent / "oracle" / "cases").glob("*.json"))
              if "logits" in json.loads(path.read_text()).get("input", {})]
    if logits:
        write = "import json, sys; json.dump(json.load(open(sys.argv[1]))['input'], open(sys.argv[2], 'w'))"
        yield {"name": f"routes of the logits of {len(logits)} golden cases", "files": ["stdout.*"],
               "commands": [command for index, path in enumerate(logits) for command in (
                   [sys.executable, "-c", write, str(path), "{out}/logits.json"],
                   ["{moe}", "route", "{out}/logits.json", "--router", ROUTERS[index % len(ROUTERS)].replace("top2", "top1")])]}
    model = data / "stories260K-hf"
    for task in TASKS if (data / "bench").is_dir() else []:
        yield {"name": f"samples of {task}", "files": ["scores/samples_*.jsonl", "scores/results.json"],
               "commands": [["{moe}", "eval", str(model), "--tasks", task, "--data", str(data / "bench"), "--limit", "40", "-o",
                             "{out}/scores", "--quiet"]]}


def compare_wrong(command, word, old, new, work):
    out = work / "wrong"
    shutil.rmtree(out, ignore_errors=True)
    (out / "empty").mkdir(parents=True)
    results = [run(["{moe}", *command], binary, out) for binary in (old, new)]
    if results[0][0] != results[1][0]:
        return f"exit code {results[0][0]} became {results[1][0]}: {results[1][2].strip()}"
    silent = [name for name, result in zip(("old", "new"), results) if word not in result[2]]
    return f"the {silent[-1]} message does not name {word!r}: {results[-1][2].strip()}" if silent else None


def build(commit, tree):
    """Builds a commit in the worktree `tree` with the LibTorch of this one; returns the binary."""
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
    torch = next(iter(ROOT.glob(".venv/lib/python3*/site-packages/torch/share/cmake/Torch")), "")
    subprocess.run([tree / "recipes/setup.sh", "cpu"], env={"Torch_DIR": str(torch)} | os.environ, stdout=sys.stderr, check=True)
    return tree / "build/cpu/moe"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--binary", type=pathlib.Path, help="an old binary, instead of a commit")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = parser.parse_args()
    if (arguments.commit is None) == (arguments.binary is None):
        parser.error("give a commit or --binary")
    old = arguments.binary and arguments.binary.resolve()
    new, data = os.environ.get("MOE", str(ROOT / "build/cpu/moe")), pathlib.Path(os.environ.get("MOE_SHARED_DATA", ROOT / "../shared/data"))
    os.chdir(ROOT)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        os.environ |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": f"{work}/cache"}
        try:
            old = old or build(arguments.commit, work / "tree")
            compared = [(case["name"], lambda case=case: compare_case(case, old, new, work)) for case in cases(data.resolve())]
            compared += [("wrong: moe " + " ".join(command), lambda command=command, word=word: compare_wrong(command, word, old, new, work))
                         for command, word in WRONG]
            for name, compare in compared:
                if arguments.only in name:
                    what = compare()
                    tally.check(name, what is None, what or "")
        finally:
            if arguments.commit:
                subprocess.run(["git", "worktree", "remove", "--force", work / "tree"], check=False)
    tally.finish()


main()
