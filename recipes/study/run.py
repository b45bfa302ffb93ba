#!/usr/bin/env python3
"""The papers' claims at small scale, with many seeds and intervals.

  recipes/study/run.py BLOCK [--seeds 5] [--jobs 2] [--tiny] [--row NAME] [--work FOLDER]
  recipes/study/run.py --tables          what is there, as tables (README.md) and as a page (runs/study/page.json)

BLOCK is rectify_router, top_p, remoe, routers or starts (blocks.py). Every run is `moe` with the block's flags; each that is finished leaves
results/BLOCK/ROW-seedN.json, keyed by its settings, and is not run again while they are the same: an interrupted study goes on.
--tiny runs three steps of each row, of one seed, into the work folder alone: that all of it works.
The binary is $MOE, else ./moe. One thread a run, so that --jobs runs share the machine.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

from blocks import BLOCKS

STUDY = pathlib.Path(__file__).resolve().parent
ROOT = STUDY.parent.parent
TINY = ROOT / "recipes" / "tiny"
MOE = os.environ.get("MOE", str(ROOT / "moe"))
QUESTIONS = 1200
CLOZES = 1000
POINTS = 60  # of a curve
FORMAT = 1   # of the results; another makes every run anew


def moe(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([MOE, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"moe {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def digest(*files):
    sha = hashlib.sha256()
    for file in files:
        sha.update(pathlib.Path(file).read_bytes())
    return sha.hexdigest()[:16]


def downsampled(values, points=POINTS):
    """About `points` of them, the last among them."""
    step = max(1, len(values) // points)
    return values[step - 1::step]


def ask(quiz, model, folder, flags, limit):
    moe("eval", model, "--tasks", quiz, "--bos", "on", "--limit", limit, "-o", folder, "--quiet", "--force", *flags)
    samples = lines(folder / f"samples_{quiz.stem}.jsonl")
    chances = [float(sample["resps"][sample["doc"]["gold"]][0][0]) for sample in samples]
    return {"accuracy": 100 * statistics.fmean(sample["acc"] for sample in samples),
            "log_probability": statistics.fmean(chances),
            "items": "".join(str(int(sample["acc"])) for sample in samples)}


def ask_as_row(quiz, model, row, folder, limit, tests=None):
    """The quiz as the row was trained, and in each of the other ways that it names."""
    found = ask(quiz, model, folder / "scores", [], limit)
    found["at_test"] = {name: ask(quiz, model, folder / "scores", flags, limit) for name, flags in row.at_test[:tests]}
    return found


class Instruct:
    """Upcycled from the quickstart's parent, tuned on its facts, asked its quiz."""

    def __init__(self, work):
        texts = work / "facts"
        subprocess.run([sys.executable, TINY / "facts.py", texts], check=True, stdout=subprocess.DEVNULL)
        self.texts, self.parents, self.making = texts, work / "parents", threading.Lock()
        self.parent, self.recipe = TINY / "facts" / "model", TINY / "facts" / "tune.toml"
        self.data, self.quiz = texts / "instruct.jsonl", texts / "quiz.jsonl"
        self.inputs = digest(self.parent / "model.safetensors", self.data, self.recipe, self.quiz)

    def tuned_parent(self, kind):
        """The parent tuned on one kind of question, made once."""
        with self.making:
            if not (self.parents / "texts").exists():
                self.parents.mkdir(exist_ok=True)
                shutil.copytree(self.texts, self.parents / "texts")
                subprocess.run([sys.executable, TINY / "parents.py", "texts", self.parents], check=True, stdout=subprocess.DEVNULL)
            moe("train", self.parent, "-o", self.parents / f"run-{kind}", "--data", self.parents / f"{kind}.jsonl", "--config", self.recipe,
                "--steps", 400, "--train", "dense", "--quiet")
        return self.parents / f"run-{kind}" / "final"

    def filled(self, flag):
        """A flag of a row with the names of files in the place of their words."""
        if flag.startswith("cluster:"):
            return flag.format(known=self.texts / "known.jsonl")
        kind, brace, copies = flag.removeprefix("{").partition("}")
        return f"{self.tuned_parent(kind)}{copies}" if brace else flag

    def make(self, row, seed, folder):
        if not row.make:
            return self.parent
        moe("upcycle", self.parent, "-o", folder / "model", "--seed", seed, "--quiet", *map(self.filled, row.make))
        return folder / "model"

    def train(self, row, model, seed, folder, flags):
        moe("train", model, "-o", folder / "run", "--data", self.data, "--config", self.recipe, "--seed", seed, "--quiet", *flags)

    def results(self, row, folder, tiny):
        model, limit = folder / "run" / "final", 20 if tiny else QUESTIONS
        found = ask_as_row(self.quiz, model, row, folder, limit, 1 if tiny else None)
        if row.make:
            layers = json.loads(moe("inspect", model, "--against", folder / "model", "--json"))["against"]["layers"]
            found["cosine"] = statistics.fmean(layer["cosine_between_experts"] for layer in layers)
        return found


class Scratch:
    """From random weights, on paragraphs about the small world of recipes/tiny; what counts is the loss of unseen ones."""

    PARAGRAPHS = {"top_p": 200_000, "remoe": 200_000}
    HELD_OUT = 500

    def __init__(self, work, block, tiny):
        self.config = ROOT / "recipes" / block / "small" / ("374M.json" if block == "top_p" else "182M.json")
        self.recipes = {kind: ROOT / "recipes" / block / "small" / f"{kind}.toml" for kind in ("dense", "table")}
        count = 2000 if tiny else self.PARAGRAPHS[block]
        texts = work / f"texts-{count}"
        sys.path.insert(0, str(TINY))
        if not (texts / "held_out.jsonl").exists():
            texts.mkdir(parents=True, exist_ok=True)
            from generate import corpus, write_lines
            from world import Dice, facts
            records = list(corpus(Dice(3), facts(Dice(1)), count + self.HELD_OUT))
            write_lines(texts / "corpus.jsonl", records[:count])
            write_lines(texts / "held_out.jsonl", records[count:])
        self.data, self.held_out = texts / "corpus.jsonl", texts / "held_out.jsonl"
        from cloze import write_cloze, write_domains
        self.quiz, self.domains = texts / "cloze.jsonl", texts / "domains.jsonl"
        write_cloze(self.quiz, CLOZES)
        write_domains(self.domains)
        self.inputs = digest(self.config, *self.recipes.values(), self.data, self.held_out, self.quiz, self.domains,
                             TINY / "model" / "tokenizer.model")

    def make(self, row, seed, folder):
        recipe = self.recipes["table" if row.make else "dense"]
        config = STUDY / row.config if row.config else self.config
        moe("init", config, "-o", folder / "model", "--tokenizer", TINY / "model", "--config", recipe, "--seed", seed, "--quiet",
            *row.make)
        return folder / "model"

    def train(self, row, model, seed, folder, flags):
        recipe = self.recipes["table" if row.make else "dense"]
        moe("train", model, "-o", folder / "run", "--data", self.data, "--config", recipe, "--seed", seed, "--quiet", "--eval-data",
            self.held_out, "--eval-rows", "0", *flags)

    def results(self, row, folder, tiny):
        held_out = [step for step in lines(folder / "run" / "metrics.jsonl") if "held_out_loss" in step]
        model = folder / "run" / "final"
        return {"held_out": held_out[-1]["held_out_loss"] if held_out else None,
                "held_out_curve": [[step["step"], round(step["held_out_loss"], 4)] for step in held_out],
                "kinds": self.loss_by_kind(model, folder),
                **ask_as_row(self.quiz, model, row, folder, 20 if tiny else CLOZES, 1 if tiny else None),
                **(self.experts_of_texts(model, folder) if row.make else {})}

    def loss_by_kind(self, model, folder):
        """{kind of text: nats a text}, over texts that each tell one kind of thing."""
        texts, requests, found = lines(self.domains), folder / "requests.jsonl", {}
        requests.write_text("".join(json.dumps({"context": "", "continuation": text["text"]}) + "\n" for text in texts))
        answers = moe("eval", model, "--requests", requests, "--bos", "on", "--quiet").splitlines()
        for text, answer in zip(texts, answers, strict=True):
            found.setdefault(text["source"], []).append(-json.loads(answer)["logprob"])
        return {kind: statistics.fmean(losses) for kind, losses in found.items()}

    def experts_of_texts(self, model, folder):
        """Which tokens have more experts, and what the kind of a text tells of its experts."""
        stats = folder / "stats.json"
        moe("eval", model, "--stats", stats, "--stats-by", "source,token", "--stats-text", self.domains, "--quiet")
        found = json.loads(stats.read_text())
        entries = sorted(found["token"], key=lambda entry: entry["count"])
        words = [entry for entry in entries if entry["complete_word_share"] > 0.5]
        pieces = [entry for entry in entries if entry["complete_word_share"] <= 0.5]
        by_layer = found["source_information"]
        return {"pieces_over_words": experts_a_token(pieces) - experts_a_token(words),
                "rare_over_frequent": experts_a_token(first_tenth(entries)) - experts_a_token(first_tenth(entries[::-1])),
                "source_bits": statistics.fmean(layer["bits"] - layer["bits_by_chance"] for layer in by_layer)}


def experts_a_token(entries):
    return sum(entry["count"] * entry["experts_per_token"] for entry in entries) / sum(entry["count"] for entry in entries)


def first_tenth(entries):
    """The first of the vocabulary's entries that a tenth of all tokens are."""
    tokens, seen = sum(entry["count"] for entry in entries), 0
    for place, entry in enumerate(entries):
        seen += entry["count"]
        if 10 * seen >= tokens:
            return entries[:place + 1]


NUMBERS = {"dropped_share": "dropped", "experts_per_token": "experts", "sparsity": "sparsity"}  # with a curve
ALSO = {"load_max_over_mean": "load", "dead_experts": "dead", "lambda": "lambda"}  # their mean over the last steps
EARLY = 0.08, 0.10  # of a run: where top-p routing is first looked at in the paper, 8 B of 100 B tokens
HELD = 0.02         # how far from its target a sparsity that is held may be


def experts_by_layer(steps):
    columns = zip(*([layer["experts_per_token"] for layer in step["layers"]] for step in steps))
    return [round(statistics.fmean(column), 4) for column in columns]


def routing(steps, last):
    """What single steps say of the routing: by layer, how far experts a token fell, the stages of a ReLU router."""
    found = {name: statistics.fmean(step[key] for step in last) for key, name in ALSO.items() if key in steps[-1]}
    if "layers" in steps[-1]:
        layers = experts_by_layer(last)
        early = steps[int(EARLY[0] * len(steps)):max(1, round(EARLY[1] * len(steps)))] or steps[:1]
        found |= {"experts_by_layer": layers, "experts_down": layers[0] - layers[-1],
                  "experts_fall": statistics.fmean(step["experts_per_token"] for step in early)
                  - statistics.fmean(step["experts_per_token"] for step in last)}
    if "target_sparsity" in steps[-1]:
        error = abs(statistics.fmean(step["sparsity"] for step in last) - steps[-1]["target_sparsity"])
        found |= {"sparsity_held": HELD - error,
                  "stages": next(([step["dense_stage_end"], step["sparsifying_stage_end"]] for step in steps
                                  if "sparsifying_stage_end" in step), None)}
    return found


def curves(folder):
    steps = [step for step in lines(folder / "run" / "metrics.jsonl") if "loss" in step]
    last = steps[-20:]
    found = {"steps": len(steps), "seconds": sum(step["seconds"] for step in steps),
             "loss": statistics.fmean(step["loss"] for step in last if step["loss"] is not None),
             "curve": [[step["step"], round(step["loss"], 4)] for step in downsampled(steps) if step["loss"] is not None]}
    for key, name in NUMBERS.items():
        if key in steps[-1]:
            found[name] = statistics.fmean(step[key] for step in last)
            found[name + "_curve"] = [[step["step"], round(step[key], 4)] for step in downsampled(steps)]
    return found | routing(steps, last)


def settings_of(block, task, row, seed, flags):
    settings = {"format": FORMAT, "block": block.name, "row": row.name, "seed": seed, "make": row.make, "train": [*flags, *row.train],
                "at_test": row.at_test, "questions": QUESTIONS, "inputs": task.inputs}
    return settings | ({"config": [row.config, digest(STUDY / row.config)]} if row.config else {})


def key_of(settings):
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def file_of(folder, block, row, seed):
    name = "".join(c if c.isalnum() or c in "+.-" else "_" for c in row.name)
    return folder / block.name / f"{name}-seed{seed}.json"


def run_row(block, task, row, seed, flags, results, tiny):
    settings = settings_of(block, task, row, seed, flags)
    file = file_of(results, block, row, seed)
    if file.exists() and json.loads(file.read_text())["key"] == key_of(settings):
        return "is there"
    with tempfile.TemporaryDirectory(prefix="moe-study-") as name:
        folder = pathlib.Path(name)
        model = task.make(row, seed, folder)
        task.train(row, model, seed, folder, [*flags, *row.train])
        found = {"key": key_of(settings), "settings": settings, "moe": moe("--version").strip().splitlines()[0], **curves(folder),
                 **task.results(row, folder, tiny)}
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".partial")
    staged.write_text(json.dumps(found) + "\n")
    staged.replace(file)
    return f"loss {found['loss']:.3f}, {found['seconds']:.0f} s" + (f", {found['accuracy']:.1f} %" if "accuracy" in found else "")


def run_block(arguments):
    block, tiny = BLOCKS[arguments.block], arguments.tiny
    work = pathlib.Path(arguments.work or ROOT / "runs" / "study")
    work.mkdir(parents=True, exist_ok=True)
    task = Instruct(work) if block.kind == "instruct" else Scratch(work, block.name, tiny)
    results = work / "tiny" if tiny else STUDY / "results"
    rows = [row for row in block.rows if arguments.row in (None, row.name)]
    if not rows:
        sys.exit(f"study: {block.name} has no row '{arguments.row}'; known: {', '.join(row.name for row in block.rows)}")
    jobs = [(row, seed) for seed in range(1, (1 if tiny else arguments.seeds) + 1) for row in rows]
    said = threading.Lock()

    def run(job):
        row, seed = job
        line = run_row(block, task, row, seed, block.tiny if tiny else block.train, results, tiny)
        with said:
            print(f"{block.name}: {row.name}, seed {seed}: {line}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for future in [pool.submit(run, job) for job in jobs]:
            future.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("block", nargs="?", choices=sorted(BLOCKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--row")
    parser.add_argument("--work")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--tables", action="store_true")
    arguments = parser.parse_args()
    if arguments.tables:
        from tables import write_all
        write_all(STUDY)
    elif arguments.block:
        try:
            run_block(arguments)
        except RuntimeError as error:
            sys.exit(f"study: {error}")
    else:
        parser.error("name a BLOCK, or --tables")


if __name__ == "__main__":
    main()
