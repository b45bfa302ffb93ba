#!/usr/bin/env python3
"""`moe eval` against lm-evaluation-harness 0.4.13 on the same folder and task files: CPU seconds, and equal answers.

usage: eval_speed.py [--tasks mmlu:5,hellaswag:100,logiqa:100] [--model FOLDER] [--batches 1,8,32] [--rounds 3] [--threads 1] [--json FILE]

A task is NAME:LIMIT, the limit being of questions a task (MMLU has 57 tasks). Without --model a random LLaMA of hidden 256, 6 layers and
the 32000-piece vocabulary is made (PEERS/make_eval_model.py). Both compute in fp32, or with --precision bf16 in that. What is timed, in
CPU seconds of the process (user and system), or wall seconds with more threads than one:

  scoring     the harness's HFLM._loglikelihood_tokens on ready token ids, at each of --batches, of which its best counts; of tasks
              whose answers are generated (bbh_zeroshot_*) its generate_until
  evaluation  its simple_evaluate: prompts, tokens, scores, metrics. Its start (imports, the list of tasks), its model and the reading
              of the data are not in it. Its tokenizer is sentencepiece's C++, called without transformers' layers in between
  moe         the whole of `moe eval -o FOLDER` less the same process scoring one word (start, loading): it reads the files, makes
              prompts, tokens, scores, metrics and writes every sample

so that "scoring" counts more for us than for the harness, and "evaluation" reading and writing. Each round runs the one, then the
other, and a ratio is taken inside its round. After the first round the harness runs at its best batch size only. Every question of
the first round is compared: |dlogprob| <= 1e-3, and the same choice on 99.9 %; generated texts are equal. In bf16 the two round at other
places: a log-probability of n tokens may be n * BF16_TOLERANCE apart, and a choice may differ where its lead is smaller than that, which is
counted. Exit code 1 if they differ, 77 without the harness or PEERS (../shared/peers).
"""
import argparse
import collections
import contextlib
import datetime
import io
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "interop"))
import eval_parity  # noqa: E402: its readers, its tokenizer
from train_speed import MOE, PEERS, seconds_of  # noqa: E402

# Of a token's log-probability in bf16. A logit is 4 at most here (random weights: spread 1 over 32000 tokens), and the harness rounds it to
# bf16, by 2^-8 at most; hidden states that were rounded about 8 times a layer, in 6 layers, each by 2^-9 relative and independently, put
# sqrt(48) * 2^-9 of the same spread on it on each side. The largest of thousands of tokens is 4 spreads of that out.
BF16_TOLERANCE = 2**-8 + 4 * 2**0.5 * 48**0.5 * 2**-9


def fast_tokenizer(path):
    """eval_parity's tokenizer, with texts going straight to sentencepiece."""
    base = type(eval_parity.sentencepiece_tokenizer(path))

    class Direct(base):
        def __call__(self, texts, add_special_tokens=True, **more):
            if more.get("return_tensors"):  # prompts of a batch, padded
                return super().__call__(texts, add_special_tokens=add_special_tokens, **more)
            head = [self.bos_token_id] if add_special_tokens else []
            encode = lambda text: head + self.sp.encode(text)
            return {"input_ids": encode(texts) if isinstance(texts, str) else [encode(text) for text in texts]}

    return Direct()


class Harness:
    def __init__(self, model, threads, dtype):
        import lm_eval
        import torch
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.models.huggingface import HFLM
        self.evaluate, self.tasks = lm_eval.simple_evaluate, eval_parity.prepare_harness(threads)
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.reading = self.scoring = 0.0
        tokenizer = fast_tokenizer(model / "tokenizer.model")
        tokenizer.padding_side = "left"
        self.model = HFLM(pretrained=str(model), tokenizer=tokenizer, device="cpu", dtype=dtype, batch_size=1, add_bos_token=True)
        self.model.get_model_info = dict  # asks the Hub
        self.versions = {"lm_eval": lm_eval.__version__, "torch": torch.__version__}

        def timed(plain):
            def run(*args, **kwargs):
                begin = self.clock()
                found = plain(*args, **kwargs)
                self.scoring += self.clock() - begin
                return found

            return run

        read = ConfigurableTask.download

        def download(task, *args, **kwargs):
            begin = self.clock()
            read(task, *args, **kwargs)
            self.reading += self.clock() - begin

        self.model._loglikelihood_tokens = timed(self.model._loglikelihood_tokens)
        self.model.generate_until = timed(self.model.generate_until)
        ConfigurableTask.download = download

    def tokens_of(self, text):
        return len(self.model.tok_encode(text, add_special_tokens=False))

    def run(self, task, limit, batch):
        """(seconds of scoring, of the evaluation, samples by task)"""
        self.model.batch_size_per_gpu = batch
        self.reading = self.scoring = 0.0
        begin = self.clock()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run = self.evaluate(model=self.model, tasks=[task], limit=limit, task_manager=self.tasks, log_samples=True)
        return self.scoring, self.clock() - begin - self.reading, run["samples"]


def run_moe(task, limit, options, folder):
    """Seconds without the loading, and the loading."""
    common = [MOE, "eval", options.model, "--bos", "on", "--quiet", "--threads", options.threads, "--precision", options.precision]
    word = folder / "word.jsonl"
    word.write_text(json.dumps({"context": "a", "continuation": " b"}) + "\n")
    loading = min(seconds_of([*common, "--requests", word], options.threads) for _ in range(2))
    whole = seconds_of([*common, "--tasks", task, "--data", eval_parity.DATA / "bench", "--limit", limit, "-o", folder / "out", "--force"],
                       options.threads)
    return whole - loading, loading


def best(values):
    return max(range(len(values)), key=values.__getitem__)


def compare(theirs, folder, precision, tokens_of):
    """Questions, how many have the same choice or text, how many other choices lead by less than rounding, the greatest |dlogprob| and the
    greatest as a share of what is allowed, prompts that differ."""
    found = {"is_generated": False, "questions": 0, "same_choice": 0, "near_ties": 0, "max_abs_dlogprob": 0.0, "of_allowed": 0.0, "prompts_differ": 0}
    for task, samples in theirs.items():
        lines = (folder / f"out/samples_{task}.jsonl").read_text(encoding="utf-8").splitlines()
        ours = {sample["doc_id"]: sample for sample in map(json.loads, lines)}
        for sample in samples:
            other = ours[sample["doc_id"]]
            found["questions"] += 1
            if isinstance(sample["resps"][0][0], str):
                found["is_generated"] = True
                found["prompts_differ"] += sample["arguments"][0][0] != other["arguments"]["gen_args_0"]["arg_0"]
                found["same_choice"] += sample["resps"][0][0] == other["resps"][0][0]
                continue
            arguments = [tuple(x) for x in sample["arguments"]]
            found["prompts_differ"] += arguments != [(v["arg_0"], v["arg_1"]) for v in other["arguments"].values()]
            left, right = [r[0][0] for r in sample["resps"]], [float(r[0][0]) for r in other["resps"]]
            allowed = [eval_parity.TOLERANCE if precision == "fp32" else BF16_TOLERANCE * tokens_of(text) for _, text in arguments]
            for a, b, most in zip(left, right, allowed, strict=True):
                found["max_abs_dlogprob"] = max(found["max_abs_dlogprob"], abs(a - b))
                found["of_allowed"] = max(found["of_allowed"], abs(a - b) / most)
            same = best(left) == best(right)
            found["same_choice"] += same
            found["near_ties"] += not same and left[best(left)] - left[best(right)] <= allowed[best(left)] + allowed[best(right)]
    return found


def measure(harness, task, limit, options, folder):
    batches, rows, agreed = [int(b) for b in options.batches.split(",")], [], None
    for number in range(options.rounds):
        tried = {batch: harness.run(task, limit, batch) for batch in batches}
        batch = min(tried, key=lambda b: tried[b][0])
        ours, loading = run_moe(task, limit, options, folder)
        if number == 0:
            agreed, batches = compare(tried[batch][2], folder, options.precision, harness.tokens_of), [batch]
            for other, (scoring, whole, _) in tried.items():
                print(f"{task}: harness at batch {other}: scoring {scoring:.2f} s, evaluation {whole:.2f} s", flush=True)
        scoring, whole, _ = tried[batch]
        rows.append({"scoring_s": scoring, "evaluation_s": whole, "moe_s": ours, "moe_loading_s": loading})
        print(f"{task} round {number + 1}: harness {scoring:.2f} s scoring ({whole:.2f} s evaluation), moe {ours:.2f} s (+ {loading:.2f} s loading): "
              f"{scoring / ours:.2f} x ({whole / ours:.2f} x)", flush=True)
    spread = lambda key: (lambda r: {"median": statistics.median(r), "worst": min(r), "best": max(r)})([row[key] / row["moe_s"] for row in rows])
    return {"task": task, "limit": limit, "harness_batch": batch, "rounds": rows, "scoring_ratio": spread("scoring_s"),
            "evaluation_ratio": spread("evaluation_s"), **agreed}


def table(found):
    middle = lambda task, key: statistics.median(row[key] for row in task["rounds"])
    shown = lambda ratio: f"{ratio['median']:.2f} ({ratio['worst']:.2f} to {ratio['best']:.2f})"
    lines = ["| task | questions | harness scoring s (batch) | its evaluation s | moe s | scoring ratio (spread) | evaluation ratio | same choice | max dlogprob |",
             "|---|---|---|---|---|---|---|---|---|"]
    for task in found:
        lines.append(f"| {task['task']} | {task['questions']} | {middle(task, 'scoring_s'):.2f} ({task['harness_batch']}) | {middle(task, 'evaluation_s'):.2f} | "
                     f"{middle(task, 'moe_s'):.2f} | {shown(task['scoring_ratio'])} | {shown(task['evaluation_ratio'])} | "
                     f"{task['same_choice']} (+ {task['near_ties']} near ties) | {task['max_abs_dlogprob']:.1e} |")
    return "\n".join(lines)


def machine():
    names = collections.Counter(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    return f"{', '.join(f'{count} x {name}' for name, count in names.items()) or platform.machine()}"


def judge(found):
    for task in found:
        apart = task["prompts_differ"] or task["of_allowed"] > 1
        if apart or task["same_choice"] + task["near_ties"] < eval_parity.SAME_PICKS * task["questions"]:
            print(f"FAILED {task['task']}: other answers than the harness's")
            return 1
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="mmlu:5,hellaswag:100,logiqa:100")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    eval_parity.find_harness()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if options.model is None:
            if not PEERS.is_dir():
                print(f"skipped: {PEERS} is not there: set PEERS to the folder of make_eval_model.py")
                return 77
            options.model = folder / "model"
            subprocess.run([sys.executable, PEERS / "make_eval_model.py", eval_parity.DATA / "llama-tokenizer/tokenizer.model", options.model,
                            "--hidden", "256", "--layers", "6", "--inter", "704", "--std", "0.056"], check=True, stdout=subprocess.DEVNULL)
        harness = Harness(options.model, options.threads, {"fp32": "float32", "bf16": "bfloat16"}[options.precision])
        found = []
        for part in options.tasks.split(","):
            name, _, limit = part.partition(":")
            found.append(measure(harness, name, int(limit or 100), options, folder))
        head = {"machine": machine(), "date": datetime.date.today().isoformat(), "command": " ".join(["eval_speed.py", *sys.argv[1:]]),
                "threads": options.threads, "clock": "cpu" if options.threads == 1 else "wall", **harness.versions}
    print(f"\n{head['machine']}, {head['date']}, {head['threads']} thread(s), {head['clock']} seconds, lm_eval {head['lm_eval']}, torch {head['torch']}: "
          f"`{head['command']}`\n{table(found)}")
    if options.json:
        options.json.write_text(json.dumps({**head, "tasks": found}, indent=2) + "\n")
    return judge(found)


if __name__ == "__main__":
    sys.exit(main())
