#!/usr/bin/env python3
"""`moe eval` against lm-evaluation-harness itself (0.4.13): the same prompts, log-probabilities, picks and hashes.

Real on the harness's side: its task definitions, request builder, HFLM, filters, metrics and sample log. Ours: readers that turn the
benchmarks' own files into records of the Hub data sets (which cannot be fetched here), and a tokenizer whose ids are
sentencepiece's own, because transformers' LlamaTokenizer built from tokenizer.model alone differs on runs of spaces.

usage: eval_parity.py [--tasks logiqa,mmlu_anatomy,..|all] [--limit 100] [--model FOLDER] [--bos auto|on|off] [--num-fewshot K] [--batch 8]
                      [--chat turns|message] [--system TEXT]
  --limit 0 compares every question; --model takes any folder that both load (LLaMA, its kin or a stock mixture, with sentencepiece's
  tokenizer.model or a tokenizer.json), or the name of a random one (tests/support/kin_folders.py), with "+moe" behind it of its
  upcycled child; written answers (bbh_zeroshot) are not in `all`, they take hours. Without --model the real one is followed by random
  ones of other shapes, with fewer questions, and by the cases of chat templates (CHAT). --chat applies the model's chat template, with
  examples as turns or in the question's message; --system is a system instruction. Examples of tasks whose training files are not
  there are taken from the end of the scored ones. The last line is `N passed, N failed, N skipped`.
environment: MOE (the binary), MOE_SHARED_DATA, MOE_LM_EVAL_PYTHON (a Python that imports lm_eval 0.4.13 and torch)
"""
import argparse
import contextlib
import csv
import io
import json
import os
import pathlib
import re
import shutil
import string
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from tally import DATA, SHORT, TRAINED, Tally, moe, read_jsonl, skip_without, write_jsonl  # noqa: E402

# (random folder, tasks or None for --tasks, maximum of questions per task, batch size of the harness; Llama 3's logits are large)
KIN = [("llama3", None, 10, 1), ("mistral", "hellaswag,lambada_openai", 20, 8), ("qwen2+moe", "hellaswag,lambada_openai", 20, 8),
       ("qwen3", "hellaswag,lambada_openai", 20, 8), ("qwen3+moe", "hellaswag,lambada_openai", 20, 8)]
# Without PIQA's runs of spaces, which transformers' LlamaTokenizer splits in another way than sentencepiece.
CHOSEN = "arc_easy,hellaswag,bbh_zeroshot_boolean_expressions,mine"
# (chat_folder(), tasks, examples, --chat, --system, --bos)
CHAT = [("chatml", CHOSEN, 0, "turns", "", "auto"), ("chatml", CHOSEN, 2, "turns", "Be brief.", "on"),
        ("chatml", CHOSEN, 2, "message", "", "auto"), ("mistral", CHOSEN, 2, "turns", "Be brief.", "on"),
        ("mistral", "winogrande,mmlu_anatomy", 0, "message", "", "auto"), ("llama3", CHOSEN + ",piqa", 0, "turns", "Be brief.\n", "auto"),
        ("llama3", CHOSEN + ",piqa", 2, "message", "", "on"), ("llama3", CHOSEN + ",piqa", 1, None, "Be brief.", "on")]
if SHORT:
    KIN = [("qwen3+moe", "lambada_openai", 10, 8)]
    CHAT = [("chatml", "arc_easy,mine", 2, "turns", "Be brief.", "auto"), ("mistral", "bbh_zeroshot_navigate", 0, "message", "", "on")]
HARNESS = "0.4.13"
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + "
          "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
           "{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}{% else %}{{ raise_exception('no ' + m['role']) }}"
           "{% endif %}{% endfor %}")
# The harness's own batch 1 against batch 8 differs by up to 3e-5; fp32 sums over a few hundred tokens in another order.
TOLERANCE = 1e-3
SAME_PICKS = 0.999  # of the items: two choices may be as good as equal


def find_harness():
    """Executes this script in a Python with the harness, or ends it as skipped."""
    try:
        import lm_eval
        if lm_eval.__version__ == HARNESS:
            return
    except ImportError:  # or what it imports
        pass
    python = os.environ.pop("MOE_LM_EVAL_PYTHON", None)
    if python:
        os.execv(python, [python, *sys.argv])
    print(f"skipped: lm_eval {HARNESS} is not installed; recipes/setup.sh --no-build --python tests/interop/requirements-eval.txt installs "
          "it, or point MOE_LM_EVAL_PYTHON at a Python that has it")
    sys.exit(77)


def rows(name):
    return read_jsonl(DATA / "bench" / name)


def ordered(records, keys, **changed):
    return [{key: changed[key](r[key]) if key in changed else r[key] for key in keys.split()} for r in records]


def logiqa(_):
    def read(name):
        text = (DATA / "bench/logiqa" / name).read_text(encoding="utf-8")
        problems = [block.split("\n") for block in text.strip().split("\n\n")]
        return [{"label": p[0].strip(), "context": space(p[1]), "question": space(p[2]),
                 "options": [space(o[2:]) for o in p[3:7]]} for p in problems]
    space = lambda s: s.replace(".", ". ").strip()
    return {"test": read("Test.txt")}


def choices_of(question):
    return {key: [c[key] for c in question["choices"]] for key in ("text", "label")}


def arc(name):
    return {"test": [{"id": r["id"], "question": r["question"]["stem"], "choices": choices_of(r["question"]),
                      "answerKey": r["answerKey"]} for r in rows(f"arc/{name}-Test.jsonl")]}


def commonsense_qa(_):
    return {"validation": [{"id": r["id"], "question": r["question"]["stem"],
                            "question_concept": r["question"]["question_concept"], "choices": choices_of(r["question"]),
                            "answerKey": r["answerKey"]} for r in rows("commonsenseqa/dev_rand_split.jsonl")]}


def openbookqa(_):
    records = []
    for line in (DATA / "bench/openbookqa/test.tsv").read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            ident, stem, choices, _, key = line.split("\t")
            parts = re.split(r"\s*\(([A-D])\)\s+", choices)
            records.append({"id": ident, "question_stem": stem, "choices": {"text": parts[2::2], "label": parts[1::2]},
                            "answerKey": key.strip()})
    return {"test": records}


def piqa(_):
    labels = (DATA / "bench/piqa/valid-labels.lst").read_text().split()
    return {"validation": [{**r, "label": int(label)} for r, label in zip(rows("piqa/valid.jsonl"), labels)]}


def hellaswag(_):
    found = next((DATA / "bench/hellaswag").glob("hellaswag_val*.jsonl"))
    return {"validation": ordered(rows(found.relative_to(DATA / "bench")),
                                  "ind activity_label ctx_a ctx_b ctx endings source_id split split_type label", label=str)}


def mmlu(subject):
    def read(split):
        with open(DATA / f"bench/mmlu/{split}/{subject}_{split}.csv", encoding="utf-8", newline="") as f:
            return [{"question": r[0], "subject": subject, "choices": r[1:5], "answer": "ABCD".index(r[5])} for r in csv.reader(f)]
    return {"test": read("test"), "dev": read("dev")}


def truthfulqa(_):
    both = lambda t: {"choices": list(t), "labels": list(t.values())}
    with open(DATA / "bench/truthfulqa/mc_task.json", encoding="utf-8") as f:
        return {"validation": [{"question": r["question"], "mc1_targets": both(r["mc1_targets"]),
                                "mc2_targets": both(r["mc2_targets"])} for r in json.load(f)]}


def wsc_fixed(record):
    """Returns the record as in the Hub's wsc.fixed: a span that is not in the text gets the case of the text."""
    fixed = {"text": record["text"], **{f"span{i}_{k}": record["target"][f"span{i}_{k}"] for k in ("index", "text") for i in (1, 2)}}
    for span in ("span1", "span2"):
        words = fixed[span + "_text"]
        if words not in fixed["text"] and words not in ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin"):
            first = fixed["text"].split()[fixed[span + "_index"]][0]
            words = (words[0].lower() if first.islower() else words[0].upper()) + words[1:]
            fixed[span + "_text"] = words.rstrip(".").replace("\n", " ")
    return {**fixed, "idx": record["idx"], "label": int(record["label"])}


def super_glue(name):
    folder = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD", "rte": "RTE", "wic": "WiC",
              "wsc.fixed": "WSC"}[name]
    entailment = lambda label: ["entailment", "contradiction" if name == "cb" else "not_entailment", "neutral"].index(label)
    forms = {"boolq": ("question passage idx label", {"label": int}),
             "cb": ("premise hypothesis idx label", {"label": entailment}),
             "copa": ("premise choice1 choice2 question idx label", {}),
             "rte": ("premise hypothesis idx label", {"label": entailment}),
             "wic": ("word sentence1 sentence2 start1 start2 end1 end2 idx label", {"label": int})}
    splits = {}
    for split, file in {"train": "train.jsonl", "validation": "fewglue_train32.jsonl" if name == "record" else "val.jsonl"}.items():
        if not (DATA / f"bench/superglue/{folder}/{file}").exists():
            continue
        records = rows(f"superglue/{folder}/{file}")
        if name in forms:
            splits[split] = ordered(records, forms[name][0], **forms[name][1])
        elif name == "wsc.fixed":
            splits[split] = [wsc_fixed(r) for r in records]
        elif name == "multirc":
            splits[split] = [{"paragraph": r["passage"]["text"], "question": q["question"], "answer": a["text"],
                              "idx": {"paragraph": r["idx"], "question": q["idx"], "answer": a["idx"]}, "label": int(a["label"])}
                             for r in records for q in r["passage"]["questions"] for a in q["answers"]]
        else:
            spans = lambda p: sorted({p["text"][e["start"]:e["end"] + 1] for e in p["entities"]})
            splits[split] = [{"passage": r["passage"]["text"], "query": q["query"], "entities": spans(r["passage"]),
                              "answers": sorted({a["text"] for a in q["answers"]}), "idx": {"passage": r["idx"], "query": q["idx"]}}
                             for r in records for q in r["qas"]]
    return splits


def winogrande(_):
    records = []
    for r in rows("winogrande/winogrande.jsonl"):
        one, two = r["context_options"]
        cut = os.path.commonprefix([one, two]).rfind(" ") + 1
        records.append({"sentence": one[:cut] + "_ " + r["continuation"], "option1": one[cut:], "option2": two[cut:],
                        "answer": str(r["gold"] + 1)})
    return {"validation": records}


def lambada(_):
    glue = lambda word: word if word[0].isspace() else " " + word
    return {"test": [{"text": r["context"] + glue(r["continuation"])} for r in rows("lambada/lambada_openai.jsonl")]}


def bbh(name):
    with open(DATA / f"bench/bbh/{name}.json", encoding="utf-8") as f:
        return {"test": json.load(f)["examples"]}


# A task of the user, with the keys that both sides have. Its records have sorted keys, as moe logs them.
MINE = {"task": "mine", "output_type": "multiple_choice", "description": "Birds.\n", "doc_to_text": "How many {{what}} has a {{bird}}?",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}", "gen_prefix": "A {{bird}} has", "fewshot_delimiter": "\n---\n"}


def mine(_):
    records = [{"bird": bird, "choices": ["one", "two", "ten"], "label": label, "what": what} for label, bird in enumerate(
        ("hen", "duck", "gull")) for what in ("wings", "eyes", "feet")]
    return {"test": records[:6], "train": records[6:]}


READERS = {"EleutherAI/logiqa": logiqa, "allenai/ai2_arc": arc, "baber/piqa": piqa, "Rowan/hellaswag": hellaswag, "cais/mmlu": mmlu,
           "truthfulqa/truthful_qa": truthfulqa, "aps/super_glue": super_glue, "tau/commonsense_qa": commonsense_qa,
           "allenai/openbookqa": openbookqa, "allenai/winogrande": winogrande, "EleutherAI/lambada_openai": lambada,
           "SaylorTwift/bbh": bbh, "mine": mine}
ALL = ("logiqa,arc_easy,arc_challenge,piqa,hellaswag,commonsense_qa,openbookqa,winogrande,truthfulqa_mc1,truthfulqa_mc2,"
       "lambada_openai,super-glue-lm-eval-v1,mmlu,leaderboard_bbh")


TRAINING = {("allenai/ai2_arc", "ARC-Easy"): "arc_easy", ("baber/piqa", None): "piqa", ("Rowan/hellaswag", None): "hellaswag"}


def splits_of(path, name):
    splits = READERS[path](name)
    if (path, name) in TRAINING:
        splits["train"] = next(iter(splits.values()))[-40:]
    return splits


def data_folder(folder):
    """Links the benchmark files; BIG-Bench-Hard's worked examples are made from the harness's if missing."""
    import lm_eval
    import yaml
    for entry in (DATA / "bench").resolve().iterdir():
        (folder / entry.name).mkdir()
        for file in entry.iterdir():
            (folder / entry.name / file.name).symlink_to(file)
    for (path, name), task in TRAINING.items():
        (folder / task).mkdir(exist_ok=True)
        write_jsonl(folder / task / "train.jsonl", splits_of(path, name)["train"])
    for split, records in mine(None).items():
        write_jsonl(folder / f"mine_{split}.jsonl", records)
    (folder / "mine.json").write_text(json.dumps(MINE | {"data": "mine_test.jsonl", "fewshot_data": "mine_train.jsonl",
                                                         "metric_list": ["acc", "acc_norm"]}))
    (folder / "mine.yaml").write_text(json.dumps(MINE | {
        "dataset_path": "mine", "test_split": "test", "training_split": "train",
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]}))
    if (folder / "bbh/cot-prompts").exists():
        return folder
    (folder / "bbh/cot-prompts").mkdir()
    for file in (pathlib.Path(lm_eval.__file__).parent / "tasks/leaderboard/bbh_mc").glob("[a-z]*.yaml"):
        shots = yaml.safe_load(file.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
        text = "".join(f"\nQ: {s['input']}\nA: Let's think step by step.\nSo the answer is {s['target']}.\n" for s in shots)
        (folder / f"bbh/cot-prompts/{file.stem}.txt").write_text(text, encoding="utf-8")
    return folder


def provide_squad_metrics():
    """Provides a module that transformers 5 has removed and ReCoRD's task imports."""
    name = "transformers.data.metrics"
    try:
        __import__(name + ".squad_metrics")
    except ImportError:
        def words(s):
            s = "".join(c for c in s.lower() if c not in string.punctuation)
            return re.sub(r"\b(a|an|the)\b", " ", s).split()

        def f1(a, b):
            a, b = words(a), words(b)
            same = sum(min(a.count(w), b.count(w)) for w in set(a))
            return int(a == b) if not a or not b else 2 * same / (len(a) + len(b)) if same else 0
        package, module = types.ModuleType(name), types.ModuleType(name + ".squad_metrics")
        module.compute_exact, module.compute_f1 = lambda a, b: int(words(a) == words(b)), f1
        package.squad_metrics = module
        sys.modules[name], sys.modules[name + ".squad_metrics"] = package, module


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


ADD_BOS = {"auto": None, "on": True, "off": False}


def harness_tokenizer(folder, bos):
    """As HFLM loads it, but for a bare tokenizer.model."""
    config = folder / "tokenizer_config.json"
    if not (folder / "tokenizer.json").exists() and not (config.exists() and "chat_template" in json.loads(config.read_text())):
        return sentencepiece_tokenizer(folder / "tokenizer.model")
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(folder, clean_up_tokenization_spaces=False,
                                         **({} if bos == "auto" else {"add_bos_token": ADD_BOS[bos]}))


def cut_to_window(model_class):
    """Makes the harness score the end of a continuation longer than the window, as moe does, instead of stopping."""
    score = model_class._loglikelihood_tokens

    def cut(self, requests, *rest, **named):
        window, long = self.max_length, sum(len(continuation) > self.max_length for _, _, continuation in requests)
        if long:
            print(f"note: {long} continuations longer than the window of {window} are scored by their end, on both sides")
            requests = [(key, context + continuation[:-window], continuation[-window:]) for key, context, continuation in requests]
        return score(self, requests, *rest, **named)

    model_class._loglikelihood_tokens = cut


def data_set(records):
    """Returns a data set with nested fields in the order of the records, as on the Hub; pyarrow would sort them."""
    import datasets
    inferred = datasets.Dataset.from_list(records).features
    features = {key: {inner: inferred[key][inner] for inner in value} if isinstance(value, dict) else inferred[key]
                for key, value in records[0].items()}
    return datasets.Dataset.from_list(records, features=datasets.Features(features))


def prepare_harness(threads=1, include=None):
    """Replaces the downloads and windows of the harness by ours; returns its TaskManager."""
    import datasets
    import torch
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    torch.set_num_threads(threads)
    datasets.disable_progress_bars()
    provide_squad_metrics()
    cut_to_window(HFLM)

    def download(self, *_, **__):
        splits = splits_of(self.DATASET_PATH, self.DATASET_NAME)
        self.dataset = datasets.DatasetDict({split: data_set(records) for split, records in splits.items()})
        for key in ("training_split", "validation_split", "test_split"):
            if getattr(self.config, key) not in (None, *splits):
                setattr(self.config, key, None)

    ConfigurableTask.download = download
    return TaskManager(include_path=include)


def run_harness(options, task_manager):
    """(results, {task: samples})"""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    tokenizer = harness_tokenizer(options.model, options.bos)
    tokenizer.padding_side = "left"
    model = HFLM(pretrained=str(options.model), tokenizer=tokenizer, device="cpu", dtype="float32", batch_size=options.batch,
                 add_bos_token=ADD_BOS[options.bos])
    model.get_model_info = dict  # asks the Hub
    with contextlib.redirect_stdout(io.StringIO()):
        run = lm_eval.simple_evaluate(model=model, tasks=options.tasks.split(","), limit=options.limit, task_manager=task_manager,
                                      num_fewshot=options.num_fewshot, log_samples=True, apply_chat_template=bool(options.chat),
                                      fewshot_as_multiturn=options.chat == "turns", system_instruction=options.system or None)
    return run["results"], run["samples"]


def run_moe(options, data, folder):
    tasks = [str(data / f"{task}.json") if task == "mine" else task for task in options.tasks.split(",")]
    words = ["eval", options.model, "--tasks", ",".join(tasks), "--data", data, "--bos", options.bos,
             "-o", folder, "--quiet", "--threads", "1"]
    if options.limit:
        words += ["--limit", options.limit]
    if options.num_fewshot is not None:
        words += ["--num-fewshot", options.num_fewshot]
    if options.chat:
        words += ["--apply-chat-template", "--fewshot-as-multiturn", "on" if options.chat == "turns" else "off"]
    if options.system:
        words += ["--system-instruction", options.system]
    moe(*words)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if options.chat:
        from lm_eval.utils import hash_string
        assert results["chat_template_sha"] == hash_string(harness_tokenizer(options.model, options.bos).chat_template)
    return results["results"], {path.stem.removeprefix("samples_"): read_jsonl(path) for path in folder.glob("samples_*.jsonl")}


def compare_scores(tally, task, theirs, ours):
    worst, texts, picks, greedy, hashes, requests = 0.0, 0, 0, 0, 0, 0
    for a, b in zip(theirs, ours):
        arguments = [(v["arg_0"], v["arg_1"]) for v in b["arguments"].values()]
        texts += [tuple(x) for x in a["arguments"]] == arguments and str(a["target"]) == b["target"]
        hashes += all(a[key] == b[key] for key in ("doc_hash", "prompt_hash", "target_hash"))
        left, right = [r[0] for r in a["resps"]], [(float(r[0][0]), r[0][1] == "True") for r in b["resps"]]
        worst = max([worst] + [abs(x[0] - y[0]) for x, y in zip(left, right)])
        greedy += sum(bool(x[1]) == y[1] for x, y in zip(left, right))
        best = lambda values: max(range(len(values)), key=lambda i: values[i][0])
        picks += best(left) == best(right)
        requests += len(left)
    count = len(theirs)
    tally.check(f"{task}: prompts, continuations and golds, to the letter", texts == count, f"{texts} of {count}")
    tally.check(f"{task}: hashes of documents, prompts and golds", hashes == count, f"{hashes} of {count}")
    tally.check(f"{task}: max |dlogprob| <= {TOLERANCE}", worst <= TOLERANCE, f"{worst:.2e} over {requests} requests")
    tally.check(f"{task}: picks", picks >= SAME_PICKS * count, f"{picks} of {count}")
    tally.check(f"{task}: is_greedy", greedy >= SAME_PICKS * requests, f"{greedy} of {requests}")


def compare_answers(tally, task, theirs, ours):
    count = len(theirs)
    same = lambda good: sum(good(a, b) for a, b in zip(theirs, ours))
    prompts = same(lambda a, b: a["arguments"][0][0] == b["arguments"]["gen_args_0"]["arg_0"] and str(a["target"]) == b["target"])
    answers = same(lambda a, b: a["resps"][0][0] == b["resps"][0][0])
    filtered = same(lambda a, b: a["filtered_resps"][0] == b["filtered_resps"][0] and a["filter"] == b["filter"])
    tally.check(f"{task}: prompts and targets, to the letter", prompts == count, f"{prompts} of {count}")
    tally.check(f"{task}: answers, to the letter", answers >= SAME_PICKS * count, f"{answers} of {count}")
    tally.check(f"{task}: filtered answers", filtered >= SAME_PICKS * count, f"{filtered} of {count}")


def plain(value):
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else float(value)


def compare_results(tally, name, theirs, ours, exact):
    """Checks equal sums if every item is equal, else four equal decimals."""
    keys = [key for key in theirs if "," in key]
    same = [key for key in keys if theirs[key] == ours.get(key) or
            isinstance(ours.get(key), float) and abs(theirs[key] - ours[key]) <
            (1e-12 if exact else 5e-5 * max(1, abs(ours[key])))]
    tally.check(f"{name}: means and standard errors", same == keys, ", ".join(f"{key} {ours.get(key)}" for key in keys))


def compare_model(tally, options, data, task_manager, label):
    with tempfile.TemporaryDirectory() as folder:
        our_results, our_samples = run_moe(options, data, pathlib.Path(folder))
    their_results, their_samples = run_harness(options, task_manager)
    exact = {task: compare_task(tally, label + task, samples, our_samples.get(task, [])) for task, samples in their_samples.items()}
    for name, results in their_results.items():
        if any("," in key for key in results):
            compare_results(tally, label + name, results, our_results.get(name, {}), exact.get(name, all(exact.values())))


def named_folder(name, work):
    """A random folder of that name, upcycled where it ends with "+moe"."""
    import kin_folders
    dense = work / name.removesuffix("+moe")
    if not dense.exists():
        kin_folders.make_folder(dense.name, dense)
    if not name.endswith("+moe"):
        return dense
    moe("upcycle", dense, "-o", work / name, "--experts", 4, "--router", "top2:cf=inf", "--router-std", 1)
    return work / name


def compare_kin(tally, options, data, task_manager, work):
    import kin_folders
    for name, tasks, limit, batch in KIN:
        if name == "llama3" and not kin_folders.LLAMA3.is_file():
            print(f"skipped: {name}: no {kin_folders.LLAMA3}")
            continue
        its = argparse.Namespace(**vars(options))
        its.model, its.tasks, its.batch = named_folder(name, work), tasks or options.tasks, batch
        its.limit = min(limit, options.limit or limit)
        compare_model(tally, its, data, task_manager, f"{name}: ")


def chat_folder(name, work):
    """A model with a chat template: Llama 3's tokenizer; or sentencepiece, with the marks of ChatML as tokens or with Mistral's as text."""
    import kin_folders
    import torch
    from transformers import AutoModelForCausalLM
    folder = work / f"{name}-chat"
    if folder.exists():
        return folder
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer", "legacy": False,
              "chat_template": MISTRAL}
    if name == "llama3":
        kin_folders.make_folder("llama3", folder)
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": LLAMA3}
    else:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(TRAINED)
        if name == "chatml":
            size = model.config.vocab_size
            model.resize_token_embeddings(size + 2)
            flags = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
            config |= {"chat_template": CHATML, "add_bos_token": True, "added_tokens_decoder": {
                str(size + i): {"content": mark, **flags} for i, mark in enumerate(("<|im_start|>", "<|im_end|>"))}}
        model.save_pretrained(folder)
        shutil.copy(TRAINED / "tokenizer.model", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def compare_chat(tally, options, data, task_manager, work):
    for name, tasks, shots, chat, system, bos in CHAT:
        its = argparse.Namespace(**vars(options) | dict(model=chat_folder(name, work), tasks=tasks, num_fewshot=shots, chat=chat,
                                                        system=system, bos=bos, limit=min(4, options.limit or 4), batch=1))
        compare_model(tally, its, data, task_manager, f"{name}, {shots} examples, chat {chat}, system {system!r}, BOS {bos}: ")


def compare_task(tally, task, theirs, ours):
    tally.check(f"{task}: as many items", len(theirs) == len(ours), f"{len(ours)}")
    (compare_answers if isinstance(theirs[0]["arguments"][0][1], dict) else compare_scores)(tally, task, theirs, ours)
    close = lambda a, b: all(abs(x - y) <= 1e-3 * max(1, abs(y)) for x, y in zip(flat(a), flat(b)))
    flat = lambda value: sum((flat(v) for v in value), []) if isinstance(value, list) else [value]
    values = sum(all(close(plain(a[m]), plain(b[m])) for m in a["metrics"]) and a["metrics"] == b["metrics"] for a, b in zip(theirs, ours))
    tally.check(f"{task}: metrics of each item", values >= SAME_PICKS * len(theirs), f"{values} of {len(theirs)}")
    return all(plain(a[m]) == plain(b[m]) for a, b in zip(theirs, ours) for m in a["metrics"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="logiqa,hellaswag,mmlu_anatomy,lambada_openai,record",
                        help="tasks and groups; all = everything whose files are there, but for written answers")
    parser.add_argument("--limit", type=int, default=10 if SHORT else 100, help="questions a task; 0 = all")
    parser.add_argument("--model", help="a folder, or one of kin_folders; without it the real model, then random ones")
    parser.add_argument("--bos", choices=ADD_BOS, default="on")
    parser.add_argument("--chat", choices=("turns", "message"))
    parser.add_argument("--system", default="")
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--batch", type=int, default=8, help="the harness's batch size")
    options = parser.parse_args()
    options.limit = options.limit or None
    options.tasks = ALL if options.tasks == "all" else options.tasks
    skip_without(DATA / "bench")
    find_harness()
    tally = Tally()
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as data:
        work, data = pathlib.Path(work), data_folder(pathlib.Path(data))
        task_manager = prepare_harness(include=str(data))
        asked = options.model or str(DATA / "stories260K-hf")
        is_folder = pathlib.Path(asked).is_dir()
        is_default = options.model is None
        options.model = pathlib.Path(asked) if is_folder else named_folder(asked, work)
        compare_model(tally, options, data, task_manager, "")
        if is_default:
            compare_kin(tally, options, data, task_manager, work)
            compare_chat(tally, options, data, task_manager, work)
    tally.finish()


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
if __name__ == "__main__":
    main()
