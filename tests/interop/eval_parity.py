#!/usr/bin/env python3
"""`moe eval` against lm-evaluation-harness itself (0.4.13): the same prompts, log-probabilities, picks and hashes.

Real on the harness's side: its task definitions, request builder, HFLM, metrics and sample log. Ours: readers that turn the
benchmarks' own files into records of the Hub data sets (which cannot be fetched here), and a tokenizer whose ids are
sentencepiece's own, because transformers' LlamaTokenizer built from tokenizer.model alone differs on runs of spaces.

usage: eval_parity.py [--tasks logiqa,arc_easy,..] [--limit 100] [--model FOLDER] [--bos on|off]
environment: MOE (the binary), MOE_SHARED_DATA, MOE_LM_EVAL_PYTHON (a Python that imports lm_eval 0.4.13 and torch)
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HARNESS = "0.4.13"
# The harness's own batch 1 against batch 8 differs by up to 3e-5; fp32 sums over a few hundred tokens in another order.
TOLERANCE = 1e-3
DATA = pathlib.Path(os.environ.get("MOE_SHARED_DATA", "../shared/data"))


def find_harness():
    """Goes on in a Python that has the harness, or ends as skipped."""
    try:
        import lm_eval
        if lm_eval.__version__ == HARNESS:
            return
    except ImportError:
        pass
    python = os.environ.pop("MOE_LM_EVAL_PYTHON", None)
    if python:
        os.execv(python, [python, *sys.argv])
    print(f"skipped: lm_eval {HARNESS} is not installed; point MOE_LM_EVAL_PYTHON at a Python of a virtual environment with "
          f"lm_eval=={HARNESS} transformers==5.23.0 sentencepiece")
    sys.exit(77)


def rows(name):
    with open(DATA / "bench" / name, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def logiqa(_):
    text = (DATA / "bench/logiqa/Test.txt").read_text(encoding="utf-8")
    space = lambda s: s.replace(".", ". ").strip()
    problems = [block.split("\n") for block in text.strip().split("\n\n")]
    return "test", [{"label": p[0].strip(), "context": space(p[1]), "question": space(p[2]),
                     "options": [space(o[2:]) for o in p[3:7]]} for p in problems]


def arc(name):
    return "test", [{"id": r["id"], "question": r["question"]["stem"],
                     "choices": {key: [c[key] for c in r["question"]["choices"]] for key in ("text", "label")},
                     "answerKey": r["answerKey"]} for r in rows(f"arc/{name}-Test.jsonl")]


def piqa(_):
    labels = (DATA / "bench/piqa/valid-labels.lst").read_text().split()
    return "validation", [{**r, "label": int(label)} for r, label in zip(rows("piqa/valid.jsonl"), labels)]


def hellaswag(_):
    order = ["ind", "activity_label", "ctx_a", "ctx_b", "ctx", "endings", "source_id", "split", "split_type"]
    found = next((DATA / "bench/hellaswag").glob("hellaswag_val*.jsonl"))
    return "validation", [{**{key: r[key] for key in order}, "label": str(r["label"])}
                          for r in rows(found.relative_to(DATA / "bench"))]


READERS = {"EleutherAI/logiqa": logiqa, "allenai/ai2_arc": arc, "baber/piqa": piqa, "Rowan/hellaswag": hellaswag}


def sentencepiece_tokenizer(path):
    import sentencepiece
    from tokenizers import decoders
    from transformers import PreTrainedTokenizer

    class SentencePieceTokenizer(PreTrainedTokenizer):
        model_input_names = ["input_ids", "attention_mask"]

        def __init__(self):
            self.sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
            self.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                              decoders.Strip(content=" ", left=1)])
            piece = self.sp.id_to_piece
            super().__init__(bos_token=piece(self.sp.bos_id()), eos_token=piece(self.sp.eos_id()),
                             unk_token=piece(self.sp.unk_id()))

        vocab_size = property(lambda self: self.sp.get_piece_size())

        def get_vocab(self):
            return {self.sp.id_to_piece(i): i for i in range(self.vocab_size)}

        def tokenize(self, text, **_):
            return self.sp.encode(text, out_type=str)

        def _convert_token_to_id(self, token):
            return self.sp.piece_to_id(token)

        def _convert_id_to_token(self, index):
            return self.sp.id_to_piece(index)

        def convert_tokens_to_string(self, tokens):
            # As LLaMA's fast tokenizer: the harness looks for decode(BOS) at the start of a text, and "" would be everywhere.
            return self.decoder.decode(tokens)

        def build_inputs_with_special_tokens(self, a, b=None):
            return [self.bos_token_id] + a + (b or [])

    return SentencePieceTokenizer()


def run_harness(options):
    """{task: (results, samples)}"""
    import datasets
    import lm_eval
    import torch
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    torch.set_num_threads(1)
    datasets.disable_progress_bars()

    def download(self, *_, **__):
        split, records = READERS[self.DATASET_PATH](self.DATASET_NAME)
        self.dataset = datasets.DatasetDict({split: datasets.Dataset.from_list(records)})
        for key in ("training_split", "validation_split", "test_split"):
            if getattr(self.config, key) not in (None, split):
                setattr(self.config, key, None)

    ConfigurableTask.download = download
    model = HFLM(pretrained=str(options.model), tokenizer=sentencepiece_tokenizer(options.model / "tokenizer.model"),
                 device="cpu", dtype="float32", batch_size=8, add_bos_token=options.bos == "on")
    model.get_model_info = dict  # asks the Hub
    manager = TaskManager()
    outcome = {}
    for task in options.tasks.split(","):
        with contextlib.redirect_stdout(io.StringIO()):
            run = lm_eval.simple_evaluate(model=model, tasks=[task], limit=options.limit, task_manager=manager,
                                          log_samples=True)
        outcome[task] = run["results"][task], run["samples"][task]
    return outcome


def run_moe(options, folder):
    binary = os.environ.get("MOE", "./moe")
    words = [binary, "eval", options.model, "--tasks", options.tasks, "--data", DATA / "bench", "--bos", options.bos,
             "-o", folder, "--quiet", "--threads", "1"]
    if options.limit:
        words += ["--limit", options.limit]
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]
    samples = lambda task: (folder / f"samples_{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return {task: (results[task], [json.loads(line) for line in samples(task)]) for task in options.tasks.split(",")}


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, good, detail=""):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        print(f"{'ok    ' if good else 'FAILED'} {what}{': ' if detail else ''}{detail}", flush=True)


def compare_task(tally, task, theirs, ours):
    (their_results, their_samples), (our_results, our_samples) = theirs, ours
    tally.check(f"{task}: as many items", len(their_samples) == len(our_samples), f"{len(our_samples)}")
    worst, texts, picks, greedy, hashes = 0.0, 0, 0, 0, 0
    requests = sum(len(s["arguments"]) for s in their_samples)
    for a, b in zip(their_samples, our_samples):
        arguments = [(v["arg_0"], v["arg_1"]) for v in b["arguments"].values()]
        texts += [tuple(x) for x in a["arguments"]] == arguments and str(a["target"]) == b["target"]
        hashes += all(a[key] == b[key] for key in ("doc_hash", "prompt_hash", "target_hash"))
        left, right = [r[0] for r in a["resps"]], [(float(r[0][0]), r[0][1] == "True") for r in b["resps"]]
        worst = max([worst] + [abs(x[0] - y[0]) for x, y in zip(left, right)])
        greedy += sum(x[1] == y[1] for x, y in zip(left, right))
        best = lambda values: max(range(len(values)), key=lambda i: values[i][0])
        picks += best(left) == best(right) and a["acc_norm"] == b["acc_norm"]
    count = len(their_samples)
    tally.check(f"{task}: prompts, continuations and golds, to the letter", texts == count, f"{texts} of {count}")
    tally.check(f"{task}: hashes of documents, prompts and golds", hashes == count, f"{hashes} of {count}")
    tally.check(f"{task}: max |dlogprob| <= {TOLERANCE}", worst <= TOLERANCE, f"{worst:.2e} over {requests} requests")
    tally.check(f"{task}: picks", picks == count, f"{picks} of {count}")
    tally.check(f"{task}: is_greedy", greedy == requests, f"{greedy} of {requests}")
    keys = [key for key in their_results if "," in key]
    same = all(abs(their_results[key] - our_results[key]) < 1e-12 for key in keys)
    tally.check(f"{task}: means and standard errors", same, ", ".join(f"{key} {our_results[key]:.4f}" for key in keys))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="logiqa,arc_easy,arc_challenge,piqa,hellaswag")
    parser.add_argument("--limit", type=int, default=100, help="questions a task; 0 = all")
    parser.add_argument("--model", type=pathlib.Path, default=DATA / "stories260K-hf")
    parser.add_argument("--bos", choices=("on", "off"), default="on")
    options = parser.parse_args()
    options.limit = options.limit or None
    find_harness()
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        ours = run_moe(options, pathlib.Path(folder))
    theirs = run_harness(options)
    for task in options.tasks.split(","):
        compare_task(tally, task, theirs[task], ours[task])
    print(f"{tally.passed} passed, {tally.failed} failed, 0 skipped")
    sys.exit(1 if tally.failed else 0)


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
main()
