#!/usr/bin/env python3
"""Runs moe on hostile inputs. A run may fail, but not by a crash, a hang, an internal message or a lost file.

    python3 -I tests/slow/hostile.py [--count 1000] [--seed 1] [--group NAME,...] [--case ID,...] [--keep] [--list]

groups:
  files      an input file of a command is damaged, or is a FIFO, a folder, a link, a device, unreadable or sparse
  numbers    a flag of `moe --reference` has a value out of range
  outputs    the output is a folder, file or link of another owner or run
  limits     a small RLIMIT_FSIZE, _AS, _NOFILE, _NPROC, _STACK or _DATA
  signals    SIGINT, SIGTERM, SIGHUP or SIGKILL at a random instant; the same command then gives the same output
  disks      /dev/full as output, closed descriptors, a tiny or read-only file system
  scripts    recipes/*.sh with odd folders, CDPATH, missing tools and foreign files
  terminals  control characters in every string that moe reads, written to a pseudo-terminal

Without --group, the cases are divided over all groups. A case depends only on the seed and its ID; `--case ID --keep` repeats
it, prints its command and keeps its folder. Environment: MOE (the binary). The last line is `N passed, N failed, N skipped`.
"""
import argparse, collections, ctypes, ctypes.util, functools, gzip, hashlib, itertools, json, os, pathlib, pty, random, re, resource, select, shutil
import signal, stat, struct, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from tally import byte_characters  # noqa: E402

TINY = ROOT / "recipes/tiny"
MOE = os.environ.get("MOE", str(ROOT / "build/cpu/moe"))
NOBODY = 65534
SHARES = {"files": 42, "numbers": 20, "outputs": 5, "limits": 6, "signals": 8, "disks": 8, "scripts": 4, "terminals": 7}  # percent

# Internal text, which must not be printed.
INTERNAL = re.compile(
    r"json\.exception|_M_range_check|c10d|basic_filebuf|terminate called|[=<>&|!]=? .* does not hold|nlohmann::|std::|c10::|at::|toml::"
    r"|\b(?:core|cli|kernels)/[\w/]+\.(?:cpp|h|cu)\b|Traceback|libgomp:|Exception raised from|__cxa|what\(\)|\w+::\w+\(|basic_string"
    r"|\bsto[idlf]+\b|filesystem error|map::at|bad_alloc|out_of_range|Sanitizer|runtime error:|\[enforce fail"
)
# Control characters: C0 except tab and line feed, DEL, C1, marks of writing direction.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ERRNO_TEXTS = {os.strerror(number) for number in range(1, 134)}
SAYS_RANK = re.compile(r"^(moe: )?\[rank \d+\]", re.M)
OWN_SEQUENCES = re.compile(r"\r\x1b\[K|\x1b\[[0-9;]*m|\r\n|\r")  # written by moe to a terminal


# --- one case ------------------------------------------------------------------------------------------------------------


class Skip(Exception):
    """Raised by a case that cannot run on this machine, with the reason."""


class Result:
    def __init__(self, code, out, err, hung):
        self.code, self.out, self.err, self.hung = code, out, err, hung


def time_limit():
    """Returns the seconds after which a run counts as hung: 10 on a quiet machine, more under load."""
    return 10 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Place:
    """The folder of one case: `in` (copies of fixtures), `out`, `bait` (files of others), `tmp`, `home`."""

    def __init__(self, folder, base):
        self.folder, self.base = folder, base
        for name in ("in", "out", "bait", "tmp", "home"):
            (folder / name).mkdir(parents=True)
            os.chmod(folder / name, 0o1777)
        for name in ("thesis.partial", "model.safetensors", "report.html", ".moe-run", "note.tokens", "checkpoints"):
            (folder / "bait" / name).write_text(f"of another: {name}")
        os.chmod(folder / "bait", 0o755)

    def copy(self, *names):
        for name in names:
            source, target = self.base / name, self.folder / "in" / name
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy(source, target)

    def snapshot(self, *omitted):
        """Returns {path: (mode, size, inode, mtime, ctime)} of all files that a command must not change."""
        omitted = {str(self.folder / name) for name in (*omitted, "tmp", "home")}
        found = {}
        for place, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if os.path.join(place, name) not in omitted]
            for name in (*folders, *files):
                path = os.path.join(place, name)
                if path not in omitted:
                    status = os.lstat(path)
                    is_out = stat.S_ISDIR(status.st_mode) and path == str(self.folder / "out")
                    is_untimed = is_out or stat.S_ISFIFO(status.st_mode)  # reading a FIFO changes its times
                    times = (0, 0) if is_untimed else (status.st_mtime_ns, status.st_ctime_ns)
                    found[path] = (status.st_mode, 0 if stat.S_ISDIR(status.st_mode) else status.st_size, status.st_ino, *times)
        return found

    def environment(self, more):
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH", "ASAN_OPTIONS") if key in os.environ}
        return {**kept, "HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp"), "OMP_NUM_THREADS": "1", **more}


STARTED = []  # the processes of the current case


def start(place, argv, *, env={}, user=None, limits={}, closed=(), out=subprocess.PIPE, err=subprocess.PIPE, cwd=None):
    """Starts a process in a session of its own, with resource limits, and with the descriptors in `closed` closed. A word of argv
    such as `</file` names standard input."""
    safety = {resource.RLIMIT_AS: 4 << 30, resource.RLIMIT_FSIZE: 4 << 30, resource.RLIMIT_CORE: 0}

    def prepare():
        for which, value in {**safety, **limits}.items():
            resource.setrlimit(which, (value, value))
        for descriptor in closed:
            os.close(descriptor)

    given = [word[1:] for word in argv if word.startswith("</")]
    argv = [word for word in argv if not word.startswith("</")]
    child = subprocess.Popen(
        argv, stdin=open(given[0], "rb") if given else subprocess.DEVNULL, stdout=out, stderr=err, env=place.environment(env), cwd=cwd or place.folder, preexec_fn=prepare,
        start_new_session=True, user=user, group=user, extra_groups=[] if user else None,
    )
    STARTED.append(child)
    return child


def kill_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def finish(child):
    is_hung = False
    try:
        out, err = child.communicate(timeout=time_limit())
    except subprocess.TimeoutExpired:
        is_hung = True
        kill_group(child)
        out, err = child.communicate()
    return Result(child.returncode, out or b"", err or b"", is_hung)


def run(place, argv, **options):
    return finish(start(place, argv, **options))


def run_on_terminal(place, argv, **options):
    """Runs with a pseudo-terminal as standard output and error."""
    master, slave = pty.openpty()
    child = start(place, argv, out=slave, err=slave, **options)
    os.close(slave)
    text, end, is_hung = b"", time.monotonic() + time_limit(), False
    while True:
        if time.monotonic() > end:
            is_hung = True
            kill_group(child)
            break
        if select.select([master], [], [], 0.2)[0]:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            text += part
        elif child.poll() is not None:
            break
    child.wait()
    os.close(master)
    return Result(child.returncode, b"", text, is_hung)


def judge(result, codes=(0, 1, 2), needs_sentence=True):
    """Returns the faults of the exit code and the messages of a run."""
    faults = []
    err = result.err.decode(errors="backslashreplace")
    if result.hung:
        return [f"hang: no end after {time_limit():.0f} s"]
    if result.code not in codes:
        name = signal.Signals(-result.code).name if result.code < 0 else ""
        faults.append(f"exit code {result.code} {name}")
    if needs_sentence and result.code not in (0, 130) and result.code >= 0:
        sentences = [line for line in err.splitlines() if line.startswith("moe: ")]
        if not sentences or len(sentences) > (1 if not SAYS_RANK.search(err) else 8):
            faults.append(f"{len(sentences)} sentences on standard error")
    bare = re.search(r"^moe: (?:\[rank \d+\] )?([A-Z][\w ()]+)$", err, re.M)
    if bare and bare[1] in ERRNO_TEXTS:
        faults.append(f"no more than the text of an errno: {bare[0]!r}")
    found = INTERNAL.search(err)
    if found:
        faults.append(f"internal text: {found[0]!r}")
    if CONTROL.search(OWN_SEQUENCES.sub("", err.replace("\r\n", "\n"))):
        faults.append("a control character on standard error")
    return faults


def changes(before, after):
    changed = [path for path in before if before[path] != after.get(path)]
    return [f"changed: {path}" for path in changed][:3] + [f"new: {path}" for path in after if path not in before][:3]


def leftovers(place, out, may_exist):
    """Returns the files that a failed run left: unfinished ones, those in TMPDIR, and `out` unless it may exist."""
    folder = place.folder / "out"
    left = [str(path) for path in folder.rglob("*") if re.search(r"\.(partial|replaced)", path.name)] if folder.is_dir() else []
    left += [str(path) for path in (place.folder / "tmp").iterdir()]
    if out and not may_exist and os.path.lexists(out):
        left.append(str(out))
    return [f"left: {path}" for path in left[:3]]


# --- fixtures and commands -----------------------------------------------------------------------------------------------


def tokenizer_json():
    vocab = {letter: index for index, letter in enumerate(sorted(byte_characters()))}
    merges = [["h", "e"], ["t", "he"], ["Ġ", "the"], ["i", "n"], ["o", "f"], ["a", "n"]]
    for one, two in merges:
        vocab[one + two] = len(vocab)
    added = [
        {"id": len(vocab) + index, "content": content, "special": True, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        for index, content in enumerate(("<s>", "</s>", "<|im_start|>", "<|im_end|>"))
    ]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [added[0]["id"]], "tokens": ["<s>"]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "~"}, "content": "-"}]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                              {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
            "post_processor": template, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}}


def jsonl(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write_texts(base):
    """Writes every small input: folders with tokenizers, data in all forms, benchmark files, tasks, recipes, logits."""
    dense, other, data = base / "dense", base / "json", base / "data"
    shutil.copytree(TINY / "facts/model", dense)
    for path in (dense, *dense.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    marks = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    (dense / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5], "bos_token_id": 1}))
    (dense / "chat_template.jinja").write_text("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}")
    (dense / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    shutil.copytree(dense, other)
    for name in ("tokenizer.model", "chat_template.jinja"):
        (other / name).unlink()
    (other / "tokenizer.json").write_text(json.dumps(tokenizer_json(), ensure_ascii=False))
    (other / "added_tokens.json").write_text(json.dumps({"<|im_start|>": 264}))
    (other / "tokenizer_config.json").write_text(json.dumps({
        "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "chat_template": marks, "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {"262": {"content": "<s>", "special": True}}}))
    data.mkdir()
    records = [json.loads(line) for line in itertools.islice(open(TINY / "instruct.jsonl"), 12)]
    (data / "alpaca.jsonl").write_text(jsonl(records))
    (data / "alpaca.jsonl.gz").write_bytes(gzip.compress(jsonl(records).encode(), mtime=0))
    talk = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Name a pet."}, {"role": "assistant", "content": "A cat."}]
    (data / "chat.jsonl").write_text(jsonl([{"messages": talk}] * 6))
    (data / "sharegpt.json").write_text(json.dumps([{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}] * 6))
    (data / "rows.jsonl").write_text(jsonl([{"input_ids": [1, 5, 9, 14], "labels": [-100, 5, 9, 14]}] * 6))
    (data / "text.txt").write_text("\n<|endoftext|>\n".join(record["instruction"] for record in records))
    quiz = [json.loads(line) for line in itertools.islice(open(TINY / "quiz.jsonl"), 6)]
    (data / "quiz.jsonl").write_text(jsonl(quiz))
    (data / "lines.jsonl").write_text(jsonl([{"text": "Hello there"}, {"text": "<s> 1"}] * 2))
    (data / "requests.jsonl").write_text(jsonl([{"context": "one two", "continuation": " three"}] * 4))
    task = {"task": "own", "data": "docs.jsonl", "output_type": "multiple_choice", "doc_to_text": "Q: {{question}}\nA:", "num_fewshot": 1,
            "fewshot_data": "docs.jsonl", "doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}", "metric_list": ["acc", "acc_norm"]}
    (data / "task.json").write_text(json.dumps(task))
    (data / "task.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in task.items()))
    (data / "docs.jsonl").write_text(jsonl([{"question": f"{n} and {n}?", "choices": ["one", "two"], "label": n % 2} for n in range(6)]))
    (data / "recipe.toml").write_text('[train]\nsteps = 2\nseq-len = 32\nlr = 1e-3\nrouter = "top1"\n[eval]\nlimit = 3\n')
    (data / "logits.csv").write_text("a,b,c,d\n0.5,-1,2,0.25\n1,2,3,4\n-1,0,0,1\n2,2,2,2\n")
    (data / "logits.json").write_text(json.dumps([[0.5, -1, 2, 0.25], [1, 2, 3, 4], [0, 0, 0, 1], [2, 2, 2, 2]]))
    (data / "placed.json").write_text(json.dumps({
        "num_ranks": 2, "home": [0, 0, 1, 1], "valid": [True] * 4, "logits": [[0.5, 1], [1, 2], [3, 1], [0, 1]]}))
    (data / "prompts.json").write_text(json.dumps({"0": ["What is a pet?"], "1": {"positive": ["What comes next?"], "negative": ["pet"]}}))
    (data / "page.json").write_text(json.dumps({
        "program": "x", "title": "numbers", "facts": [{"name": "a", "value": "1"}], "notes": [{"text": "n"}], "x": {"label": "step"},
        "sections": [{"id": "s", "title": "t", "panels": [{"kind": "lines", "title": "p", "series": [{"name": "l", "x": [1, 2], "y": [0.5, 0.25]}]}]},
                     {"id": "h", "title": "u", "panels": [{"kind": "table", "columns": ["a", "b"], "rows": [{"name": "r", "cells": ["1"]}]}]}]}))
    shutil.copytree(ROOT / "tests/golden/bench", base / "bench")


SHORT_TRAIN = ["--steps", "4", "--seq-len", "32", "--micro-batch", "2", "--save-every", "2", "--eval-every", "2", "--eval-rows", "2", "--lr", "1e-3"]

# Name -> fixtures to copy to `in`, and the arguments of moe, with the paths {in} and {out}. {out} does not exist yet.
COMMANDS = {
    "inspect": (["moe"], "inspect {in}/moe"),
    "inspect dense": (["dense"], "inspect {in}/dense --json"),
    "inspect shards": (["shards"], "inspect {in}/shards"),
    "inspect against": (["moe", "dense"], "inspect {in}/moe --against {in}/dense"),
    "generate": (["dense"], "generate {in}/dense --prompt Hello --max-tokens 4"),
    "generate moe": (["moe"], "generate {in}/moe --prompt Hello --max-tokens 4 --temperature 0.7 --seed 3"),
    "generate json": (["json"], "generate {in}/json --prompt Hello --max-tokens 4"),
    "generate shards": (["shards"], "generate {in}/shards --prompt Hello --max-tokens 4"),
    "chat": (["dense"], "generate {in}/dense --chat --prompt Hello --max-tokens 4"),
    "chat json": (["json"], "generate {in}/json --chat --prompt Hello --max-tokens 4"),
    "tokenize": (["dense"], "tokenize {in}/dense Hello-there"),
    "tokenize json": (["json"], "tokenize {in}/json Hello~the<|im_start|>7"),
    "tokenize text": (["json", "data"], "tokenize {in}/json {in}/data/text.txt"),
    "upcycle": (["dense"], "upcycle {in}/dense -o {out} --experts 2"),
    "upcycle json": (["json"], "upcycle {in}/json -o {out} --experts 2"),
    "upcycle prompts": (["dense", "data"], "upcycle {in}/dense -o {out} --experts 2 --router-init prompts:{in}/data/prompts.json"),
    "upcycle verify": (["dense", "data"], "upcycle {in}/dense -o {out} --experts 2 --verify --verify-text {in}/data/text.txt"),
    "init": (["dense"], "init {in}/dense/config.json -o {out} --experts 2"),
    "init tokenizer": (["dense"], "init {in}/dense -o {out} --tokenizer {in}/dense"),
    "train": (["moe", "data"], "train {in}/moe -o {out} --data {in}/data/alpaca.jsonl EVAL"),
    "train dense": (["dense", "data"], "train {in}/dense -o {out} --data {in}/data/alpaca.jsonl --steps 1 --seq-len 32 --cache off"),
    "train json": (["json", "data"], "train {in}/json -o {out} --data {in}/data/alpaca.jsonl --steps 1 --seq-len 32 --cache off"),
    "train gz": (["dense", "data"], "train {in}/dense -o {out} --data {in}/data/alpaca.jsonl.gz --steps 1 --seq-len 32 --cache off"),
    "train chat": (["dense", "data"], "train {in}/dense -o {out} --data {in}/data/chat.jsonl --template auto --steps 1 --seq-len 64 --cache off"),
    "train chat json": (["json", "data"], "train {in}/json -o {out} --data {in}/data/chat.jsonl --template auto --steps 1 --seq-len 64 --cache off"),
    "train sharegpt": (["dense", "data"], "train {in}/dense -o {out} --data {in}/data/sharegpt.json --steps 1 --seq-len 32 --cache off"),
    "train rows": (["dense", "data"], "train {in}/dense -o {out} --data {in}/data/rows.jsonl --steps 1 --seq-len 32 --cache off"),
    "train lm": (["dense", "data"], "train {in}/dense -o {out} --data {in}/data/text.txt --objective lm --steps 1 --seq-len 32 --cache off"),
    "train recipe": (["moe", "data"], "train {in}/moe -o {out} --data {in}/data/alpaca.jsonl --config {in}/data/recipe.toml --cache off"),
    "train cache": (["moe", "data", "cache"], "train {in}/moe -o {out} --data {in}/data/alpaca.jsonl --steps 1 --seq-len 32 --cache {in}/cache"),
    "train samples": (["json", "data"], "train {in}/json -o {out} --data {in}/data/chat.jsonl --template auto --show-samples 2"),
    "train ranks": (["moe", "data"], "train {in}/moe -o {out} --data {in}/data/alpaca.jsonl --ranks 2 --comm-timeout 8 EVAL"),
    "resume": (["moe", "data", "run"], "train {in}/moe -o {in}/run --data {in}/data/alpaca.jsonl EVAL"),
    "force": (["moe", "data", "run"], "train {in}/moe -o {in}/run --force --data {in}/data/alpaca.jsonl EVAL"),
    "report": (["run"], "report {in}/run -o {out}"),
    "report page": (["data"], "report {in}/data/page.json -o {out}"),
    "eval": (["moe", "data"], "eval {in}/moe --tasks {in}/data/quiz.jsonl -o {out}"),
    "eval json": (["json", "data"], "eval {in}/json --tasks {in}/data/quiz.jsonl --limit 3"),
    "eval task": (["moe", "data"], "eval {in}/moe --tasks {in}/data/task.toml -o {out}"),
    "eval task json": (["moe", "data"], "eval {in}/moe --tasks {in}/data/task.json"),
    "eval requests": (["moe", "data"], "eval {in}/moe --requests {in}/data/requests.jsonl"),
    "eval bench": (["moe", "bench"], "eval {in}/moe --data {in}/bench --limit 2 -o {out} --tasks "
                   "arc_easy,piqa,truthfulqa_mc1,leaderboard_bbh_boolean_expressions,logiqa,openbookqa"),
    "eval against": (["moe", "data", "scores"], "eval {in}/moe --tasks {in}/data/quiz.jsonl --against {in}/scores --items"),
    "eval responses": (["moe", "data", "responses.cache"], "eval {in}/moe --tasks {in}/data/quiz.jsonl --cache-responses {in}/responses.cache"),
    "eval stats": (["moe", "data"], "eval {in}/moe --stats {out} --stats-by source,token --stats-text {in}/data/text.txt"),
    "eval ranks": (["moe", "data"], "eval {in}/moe --tasks {in}/data/quiz.jsonl -o {out} --ranks 2 --comm-timeout 8"),
    "route csv": (["data"], "route {in}/data/logits.csv --router top1+ir+fr --ep-ranks 2"),
    "route json": (["data"], "route {in}/data/logits.json --router top2 --json"),
    "route placed": (["data"], "route {in}/data/placed.json --router top1+ir+fr"),
    "bench route": ([], "bench route --tokens 16 --width 8 --inner 8 --experts 2 --repeats 1"),
    "bench generate": (["dense"], "bench generate {in}/dense --tokens 2 --prompt-tokens 2 --repeats 1"),
    "bench upcycle": (["dense"], "bench upcycle {in}/dense -o {out} --experts 2 --repeats 1"),
    "tokenize stdin": (["json", "data"], "tokenize {in}/json - --json <{in}/data/lines.jsonl"),
    "requests stdin": (["moe", "data"], "eval {in}/moe --requests - <{in}/data/requests.jsonl"),
    "route stdin": (["data"], "route - --router top1 <{in}/data/logits.csv"),
    "completion": ([], "completion bash"),
}
IN_PLACE = {"resume": ["in/run"], "force": ["in/run"], "eval responses": ["in/responses.cache"], "train cache": ["in/cache"]}

# Damaged file -> the commands that read it.
TARGETS = {
    "dense/config.json": ["inspect dense", "upcycle", "init", "train dense", "generate"],
    "dense/model.safetensors": ["inspect dense", "upcycle", "train dense", "generate"],
    "dense/tokenizer.model": ["tokenize", "generate", "train dense", "upcycle"],
    "dense/tokenizer_config.json": ["tokenize", "chat", "train chat"],
    "dense/generation_config.json": ["generate", "chat"],
    "dense/chat_template.jinja": ["chat", "train chat", "upcycle"],
    "json/tokenizer.json": ["tokenize json", "generate json", "train json", "eval json", "chat json"],
    "json/tokenizer_config.json": ["tokenize json", "chat json", "train chat json"],
    "json/special_tokens_map.json": ["tokenize json", "upcycle json"],
    "json/added_tokens.json": ["tokenize json", "upcycle json"],
    "moe/config.json": ["inspect", "generate moe", "train", "eval", "inspect against"],
    "moe/model.safetensors": ["inspect", "generate moe", "eval", "inspect against"],
    "moe/upcycle.json": ["inspect", "train", "eval"],
    "shards/model.safetensors.index.json": ["inspect shards", "generate shards"],
    "shards/model-00001-of-00003.safetensors": ["inspect shards", "generate shards"],
    "data/alpaca.jsonl": ["train dense", "train"],
    "data/alpaca.jsonl.gz": ["train gz"],
    "data/chat.jsonl": ["train chat", "train samples"],
    "data/sharegpt.json": ["train sharegpt"],
    "data/rows.jsonl": ["train rows"],
    "data/text.txt": ["train lm", "tokenize text", "eval stats", "upcycle verify"],
    "data/quiz.jsonl": ["eval", "eval json"],
    "data/requests.jsonl": ["eval requests", "requests stdin"],
    "data/lines.jsonl": ["tokenize stdin"],
    "data/task.toml": ["eval task"],
    "data/task.json": ["eval task json"],
    "data/docs.jsonl": ["eval task"],
    "data/recipe.toml": ["train recipe"],
    "data/prompts.json": ["upcycle prompts"],
    "data/page.json": ["report page"],
    "data/logits.csv": ["route csv", "route stdin"],
    "data/logits.json": ["route json"],
    "data/placed.json": ["route placed"],
    **{f"bench/{name}": ["eval bench"] for name in (
        "arc/ARC-Easy-Test.jsonl", "piqa/valid.jsonl", "piqa/valid-labels.lst", "truthfulqa/mc_task.json", "bbh/boolean_expressions.json",
        "bbh/cot-prompts/boolean_expressions.txt", "logiqa/Test.txt", "openbookqa/test.tsv")},
    "scores/samples_quiz.jsonl": ["eval against"],
    "responses.cache": ["eval responses"],
    "cache/TOKENS": ["train cache"],
    "run/settings.toml": ["resume", "report", "force"],
    "run/inputs.json": ["resume", "report"],
    "run/.moe-run": ["resume", "force"],
    "run/starts.jsonl": ["resume", "report"],
    "run/metrics.jsonl": ["resume", "report"],
    "run/samples.jsonl": ["resume", "report"],
    **{f"run/checkpoints/step-2/{name}": ["resume"] for name in (
        "state.json", "state.safetensors", "history.json", "checksums.json", "config.json", "model.safetensors")},
}


class Fixtures:
    """Inputs that the cases copy, and the results of each command without damage."""

    def __init__(self, work):
        self.base = work / "base"
        self.base.mkdir()
        write_texts(self.base)
        self.place = Place(work / "made", self.base)
        quiet = ["--quiet"]
        self.make("upcycle", self.base / "dense", "-o", self.base / "moe", "--experts", "4", "--router", "top1+ir+fr", "--ep-ranks", "2", *quiet)
        self.make("upcycle", self.base / "dense", "-o", self.base / "shards", "--experts", "2", "--shard-size", "30KB", *quiet)
        data = self.base / "data"
        self.make("train", self.base / "moe", "-o", self.base / "run", "--data", data / "alpaca.jsonl", "--eval-data", data / "alpaca.jsonl",
                  "--cache", self.base / "cache", *SHORT_TRAIN, *quiet)
        shutil.rmtree(self.base / "run/final")
        shutil.rmtree(self.base / "run/checkpoints/step-4")
        self.make("eval", self.base / "moe", "--tasks", data / "quiz.jsonl", "-o", self.base / "scores", "--cache-responses",
                  self.base / "responses.cache", *quiet)
        self.reference = self.make("--reference").decode()
        self.user = None  # an account other than root's that can run moe
        if os.getuid() == 0:
            for folder in (work.parent, work):
                folder.chmod(0o755)
            try:
                if run(self.place, [MOE, "--version"], user=NOBODY).code == 0:
                    self.user = NOBODY
            except OSError:
                pass

    def other_user(self, place):
        """Gives the inputs of a case to another account and returns the options of run() for it."""
        if self.user is None:
            raise Skip("needs an account other than root's that can run moe")
        for one in (place.folder / "in").rglob("*"):
            os.chown(one, NOBODY, NOBODY, follow_symlinks=False)
        return {"user": self.user}

    def make(self, *words):
        result = run(self.place, [MOE, *map(str, words)])
        if result.code != 0:
            sys.exit(f"a fixture could not be made: {' '.join(map(str, words))}\n{result.err.decode()}\n0 passed, 1 failed, 0 skipped")
        return result.out

    @functools.cache
    def healthy(self, name):
        """Returns (result, seconds, {file: digest} of the output) of a command without damage."""
        folder = self.place.folder.parent / "healthy" / name.replace(" ", "-")
        place = Place(folder, self.base)
        began = time.monotonic()
        result = run(place, command(place, name))
        return result, time.monotonic() - began, digests(place, name)


def output_path(place, name):
    """Returns the output of a command, or None."""
    line = COMMANDS[name][1]
    return place.folder / "in/run" if "-o {in}/run" in line else place.folder / "out/made" if "{out}" in line else None


def command(place, name):
    fixtures, line = COMMANDS[name]
    place.copy(*fixtures)
    evaluated = " ".join(["--eval-data {in}/data/alpaca.jsonl --cache off", *SHORT_TRAIN])
    line = line.replace("EVAL", evaluated).format(**{"in": place.folder / "in", "out": place.folder / "out/made"})
    return [MOE, *line.split()]


def digests(place, name):
    """Returns {name: sha256} of the files of an output that do not depend on time or place."""
    out = output_path(place, name)
    if out is None or not out.is_dir():
        return {}
    folder = out / "final" if (out / "settings.toml").exists() else out
    kept = re.compile(r"(\.safetensors|config\.json|tokenizer.*|samples_.*)$")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and kept.search(path.name)}


# --- damage --------------------------------------------------------------------------------------------------------------

NUMBERS = ["-1", "0", "1", "7", "0.5", "2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808",
           "18446744073709551615", "18446744073709551616", "-9223372036854775809", "1e400", "-1e400", "1e308", "1e-320", "1e18"]
VALUES = ["null", "true", '""', "[]", "{}", '"x"', "[[]]", '{"a": [null]}', "-3", "NaN", "Infinity", '"../../x"', '"\\ud800"', '"\\u0000"',
          '"\\u001b]0;owned\\u0007"', '"/etc/passwd"']
ESCAPES = "\u001b]0;owned\u0007\u202e\u009b31m\u007f"


def paths(tree, here=()):
    """Yields the path of every value of a JSON tree."""
    yield here
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from paths(value, (*here, key))


def tokenizer_bomb(data, dice):
    """Returns a tokenizer whose normalizer doubles a text 40 times, or nests 60 deep."""
    tree = json.loads(data)
    double = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
    nested = double
    for _ in range(60):
        nested = {"type": "Sequence", "normalizers": [nested, double]}
    tree["normalizer"] = dice.choice([{"type": "Sequence", "normalizers": [double] * 40}, nested])
    return json.dumps(tree).encode()


def many_tensors(_data, _dice):
    header = "{" + ",".join(f'"t{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(100000)) + "}"
    return struct.pack("<Q", len(header)) + header.encode()


# Small files whose naive processing needs much time or memory.
BOMBS = {
    "json/tokenizer.json": tokenizer_bomb,
    "dense/model.safetensors": many_tensors,
    "run/checkpoints/step-2/state.safetensors": many_tensors,
    "data/alpaca.jsonl.gz": lambda _, dice: gzip.compress(dice.choice([b"\0", b" ", b"\n", b"{", b"x"]) * (100 << 20), 1),
    "data/requests.jsonl": lambda _, dice: jsonl([{"context": "one " * 500000, "continuation": "x"}]).encode(),
    "data/quiz.jsonl": lambda _, dice: jsonl([{"context": "q", "choices": ["a"] * 100000, "answer": 0}]).encode(),
    "data/logits.csv": lambda _, dice: b"1," * 3000000 + b"1\n",
    "data/chat.jsonl": lambda _, dice: jsonl([{"messages": [{"role": role, "content": "a"} for role in ("user", "assistant")] * 20000}]).encode(),
    "data/text.txt": lambda _, dice: dice.choice([b"\t", b" ", "\u0301".encode(), b"<", b"a"]) * 1000000,
}


def damage_json(text, how, dice):
    """Returns the JSON `text` with one value (or key) of it changed."""
    tree = json.loads(text)
    places = list(paths(tree))
    if how in ("key gone", "key twice"):
        places = [path for path in places if path and isinstance(at(tree, path[:-1]), dict)] or [()]
    path = dice.choice(places[1:] or places)
    raw = {"number": lambda: dice.choice(NUMBERS), "type": lambda: dice.choice(VALUES), "deep": lambda: "[" * 200000 + "]" * 200000,
           "deep object": lambda: '{"a":' * 100000 + "1" + "}" * 100000, "long string": lambda: json.dumps("x" * dice.choice([70000, 3000000])),
           "many": lambda: "[" + ",".join(["1"] * 200000) + "]", "many keys": lambda: "{" + ",".join(f'"k{n}":{n}' for n in range(100000)) + "}",
           "number text": lambda: json.dumps(dice.choice(NUMBERS))}
    mark = "@@MARK@@"
    if not path:
        return raw.get(how, raw["type"])()
    parent = at(tree, path[:-1])
    if how == "key gone":
        del parent[path[-1]]
        return json.dumps(tree)
    if how == "key twice":
        parent[mark] = None
        twice = f"{json.dumps(path[-1])}: {dice.choice(VALUES + NUMBERS)}"
        return json.dumps(tree).replace(f'"{mark}": null', twice)
    if how == "key odd" and isinstance(parent, dict):
        parent[dice.choice(["", ESCAPES, "x" * 70000, "a.b", "../x", "__proto__"])] = parent.pop(path[-1])
        return json.dumps(tree)
    parent[path[-1]] = mark
    return json.dumps(tree).replace(f'"{mark}"', raw.get(how, raw["type"])())


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


JSON_DAMAGE = ["number", "number", "type", "type", "key gone", "key twice", "key odd", "deep", "deep object", "long string", "many", "many keys",
               "number text"]
BYTE_DAMAGE = ["empty", "cut", "cut", "flip", "flip", "insert", "zeros", "twice", "bad utf-8", "bom", "crlf", "long line", "deep bytes", "garbage",
               "number in text", "escapes"]
KIND_DAMAGE = ["fifo", "folder", "loop", "dangling", "dev zero", "dev full", "unreadable", "sparse", "missing", "socket", "linked"]
STRUCTURED = re.compile(r"\.(json|jsonl|safetensors|cache)$")


def damage_bytes(data, how, dice):
    if how == "empty":
        return b""
    if how == "cut":
        return data[: dice.randrange(len(data))] if data else data
    if how == "flip":
        changed = bytearray(data or b"\n")
        for _ in range(dice.choice([1, 1, 4, 30])):
            changed[dice.randrange(len(changed)) if dice.random() < 0.5 else dice.randrange(min(200, len(changed)))] = dice.randrange(256)
        return bytes(changed)
    place = dice.randrange(len(data) + 1)
    if how == "number in text":
        found = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", data[:100000]))
        if not found:
            return data
        one = dice.choice(found)
        return data[: one.start()] + dice.choice(NUMBERS).encode() + data[one.end():]
    return {
        "insert": lambda: data[:place] + dice.randbytes(dice.choice([1, 8, 5000])) + data[place:],
        "zeros": lambda: data[:place] + bytes(min(len(data) - place, dice.choice([1, 64, 4096]))) + data[place + 4096:],
        "twice": lambda: data + data,
        "bad utf-8": lambda: data[:place] + dice.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]) + data[place:],
        "bom": lambda: dice.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"]) + data,
        "crlf": lambda: data.replace(b"\n", b"\r\n"),
        "long line": lambda: data + b"a" * 3000000,
        "deep bytes": lambda: dice.choice([b"[", b'{"a":', b"a = [", b"(", b"{{", b"{% if x %}"]) * 200000,
        "garbage": lambda: dice.choice([dice.randbytes(5000), b"\x1f\x8b" + dice.randbytes(500), b"\x28\xb5\x2f\xfd" + dice.randbytes(500),
                                        b"PK\x03\x04" + dice.randbytes(500), b"\x7fELF" + dice.randbytes(500), b"PAR1" + dice.randbytes(500)]),
        "escapes": lambda: data[:place] + ESCAPES.encode() + data[place:],
    }[how]()


@functools.cache
def xxhash():
    try:
        library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
        library.XXH3_64bits.restype = ctypes.c_uint64
        library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        return lambda data: f"{library.XXH3_64bits(data, len(data)):016x}"
    except OSError:
        return None


def seal(path):
    """Updates the checksums of a damaged file of a checkpoint or of the lines of a response cache."""
    digest = xxhash()
    if digest is None or not path.is_file():
        return
    if path.name == "responses.cache":
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([lines[0], *(digest(line[17:]).encode() + b" " + line[17:] if line else line for line in lines[1:])]))
    elif "checkpoints/" in str(path) and path.name != "checksums.json":
        sums = {one.name: digest(one.read_bytes()) for one in sorted(path.parent.iterdir()) if one.is_file() and one.name != "checksums.json"}
        listed = json.dumps(sums, sort_keys=True, separators=(",", ":")).encode()
        (path.parent / "checksums.json").write_text(json.dumps({"xxh3": sums, "list": digest(listed)}))


def damage(path, how, dice):
    """Damages a file in place. Returns the process that writes into it if it became a FIFO of data, else None."""
    if how in KIND_DAMAGE:
        data = path.read_bytes()
        if how == "sparse":
            os.truncate(path, 1 << (33 if "/in/data/" in str(path) else dice.choice([33, 40])))  # data files are read whole
            return None
        if how == "unreadable":
            path.chmod(0)
            return None
        path.unlink()
        beside = path.with_name("linked.data")
        if how == "fifo":
            os.mkfifo(path, 0o666)
            if re.match(r"(alpaca|chat|sharegpt|rows|text|requests|logits)\b", path.name):
                beside.write_bytes(data)
                return subprocess.Popen(["sh", "-c", 'cat "$1" >"$2"', "sh", beside, path], start_new_session=True)
        elif how == "folder":
            path.mkdir()
            (path / "file").write_text("x")
        elif how == "socket":
            import socket
            os.chdir(path.parent)  # the path of a socket is short
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name)
            os.chdir("/")
        elif how == "linked":
            beside.write_bytes(data)
            path.symlink_to(beside)
        elif how != "missing":
            path.symlink_to({"loop": path.name, "dangling": "nowhere", "dev zero": "/dev/zero", "dev full": "/dev/full"}[how])
        return None
    data = path.read_bytes()
    if how in JSON_DAMAGE:
        if path.suffix == ".safetensors":
            size = struct.unpack("<Q", data[:8])[0]
            header = damage_json(data[8 : 8 + size].decode(), how, dice).encode()
            data = struct.pack("<Q", len(header)) + header + data[8 + size :]
        elif path.name == "responses.cache":
            title, line, *rest = data.decode().split("\n")
            data = "\n".join([title, line[:17] + damage_json(line[17:], how, dice), *rest]).encode()
        elif path.suffix == ".jsonl":
            lines = data.decode().splitlines() or ["{}"]
            index = dice.randrange(len(lines))
            lines[index] = damage_json(lines[index], how, dice)
            data = ("\n".join(lines) + "\n").encode()
        else:
            data = damage_json(data.decode(), how, dice).encode()
    else:
        data = damage_bytes(data, how, dice)
    path.write_bytes(data)
    return None


def target_path(place, target):
    if target == "cache/TOKENS":
        return next((place.folder / "in/cache").glob("*.tokens"))
    return place.folder / "in" / target


# --- the groups: each yields the possible cases, and runs one of them ----------------------------------------------------


def list_files(_):
    for target, names in TARGETS.items():
        how = BYTE_DAMAGE + KIND_DAMAGE + (JSON_DAMAGE * 2 if STRUCTURED.search(target) else [])
        how += ["bomb"] * 2 if target in BOMBS else []
        for name, one in itertools.product(names, how):
            if one not in KIND_DAMAGE or "stdin" not in name:
                yield f"{name}: {target}: {one}"


def run_files(fixtures, place, words, dice):
    name, target, how = words.split(": ")
    argv = command(place, name)
    options = fixtures.other_user(place) if how == "unreadable" and os.getuid() == 0 else {}
    path = target_path(place, target)
    feeder = None
    if how == "bomb":
        path.write_bytes(BOMBS[target](path.read_bytes(), dice))
    else:
        feeder = damage(path, how, dice)
    if how not in KIND_DAMAGE and dice.random() < 0.75:
        seal(path)
    return run_watched(place, argv, name, options, feeder)


def run_watched(place, argv, name, options={}, feeder=None, runner=run):
    """Runs a command and checks its end, its leftovers, and that no file outside of its output changed."""
    out = output_path(place, name)
    in_place = IN_PLACE.get(name, [])
    existed = out is not None and os.path.lexists(out)
    before = place.snapshot("out/made", *in_place)
    result = runner(place, argv, **options)
    if feeder:
        kill_group(feeder)
        feeder.wait()
    faults = judge(result)
    faults += changes(before, place.snapshot("out/made", *in_place))
    if result.code != 0 and not result.hung:
        began = b"step 1/" in result.err or b"held-out loss" in result.err  # a started run may stay, to be resumed
        faults += leftovers(place, out, existed or result.code in (1, 130) or began)
    return argv, result, faults


VALUES_OF_FLAGS = ["-1", "0", "-0", "1", "3", "1000000007", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808",
                   "18446744073709551615", "18446744073709551616", "-9223372036854775809", "nan", "-nan", "inf", "-inf", "1e400", "1e-400", "0.5", "1e308",
                   "", " ", "x", "0x10", "1,2", "1;2", "--", "-", "'", "٣", "1" * 400, "x" * 5000, "a\nb", ESCAPES, "\udcff", "../..", "1e3", "+5", "007"]
NOT_TRIED = {"--help", "--out", "--cache", "--cache-responses", "--stats", "--config", "--device", "--force-memory", "--model"}
NO_TEXT_NUMBER = {"", " ", "x", "1,2", "1;2", "-", "'", "٣", "a\nb", ESCAPES, "\udcff", "../..", "1" * 400, "x" * 5000}
NO_NUMBER = {"FLOAT": NO_TEXT_NUMBER | {"nan", "-nan", "1e400"}}  # values that a flag of this type must refuse
NO_NUMBER["INT"] = NO_NUMBER["UINT"] = NO_NUMBER["FLOAT"] | {"-1", "inf", "-inf", "0.5", "1e-400", "18446744073709551616", "-9223372036854775809"}
PROCESSES = {"-1", "0", "-0", "0.5", "x", "", " ", "nan", "1e3", "--", "2147483648", "9223372036854775808", "1000000007"}


def flags_by_command(reference):
    """Returns {command: [(flag, type)]} of the flags with a value, from the tables of `moe --reference`."""
    flags, name = {}, None
    for line in reference.splitlines():
        if line.startswith("## moe "):
            name = line[len("## moe "):]
        found = re.match(r"\| `([^`]*--[\w-]+)[^`]*` \| ([^|]*[^|\s][^|]*)\|", line)
        if name and found:
            flag = re.search(r"--[\w-]+", found[1])[0]
            if flag not in NOT_TRIED:
                flags.setdefault(name, []).append((flag, found[2].strip()))
    return flags


TRIED_BY = {"upcycle": ["upcycle", "upcycle verify"], "init": ["init"], "train": ["train", "train dense"], "eval": ["eval", "eval task"],
            "generate": ["generate moe"], "route": ["route csv", "route placed"], "inspect": ["inspect"], "bench route": ["bench route"],
            "bench generate": ["bench generate"], "bench upcycle": ["bench upcycle"]}


def list_numbers(fixtures):
    flags = flags_by_command(fixtures.reference)
    for group, names in TRIED_BY.items():
        for name, (flag, kind), index in itertools.product(names, flags.get(group, []), range(len(VALUES_OF_FLAGS))):
            if flag != "--ranks" or VALUES_OF_FLAGS[index] in PROCESSES:
                yield f"{name}: {flag} {kind}: {index}"


def run_numbers(fixtures, place, words, dice):
    name, flag, index = words.split(": ")
    flag, kind = flag.split(" ", 1)
    value = VALUES_OF_FLAGS[int(index)]
    argv = command(place, name)
    if flag in argv:
        argv[argv.index(flag) + 1] = value
    elif dice.random() < 0.5:
        argv.append(f"{flag}={value}")
    else:
        argv += [flag, value]
    argv, result, faults = run_watched(place, argv, name, runner=run_or_stop)
    if kind in NO_NUMBER and value in NO_NUMBER[kind] and result.code != 2:
        faults.append(f"{kind} {value!r} was not refused")
    return argv, result, faults


def run_or_stop(place, argv, **options):
    """Like run(), but stops a long run with SIGTERM after some seconds; it must then end."""
    child = start(place, argv, **options)
    try:
        out, err = child.communicate(timeout=time_limit() / 3)
        return Result(child.returncode, out, err, False)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
    result = finish(child)
    if result.code in (130, -signal.SIGTERM):
        result.code = 2 if b": must be " in result.err else 0  # already refused, but slow to end on a loaded machine
    return result


OUTPUTS = {
    "upcycle": ["", "--force"], "init": ["", "--force"], "train": ["", "--force", "--resume"], "eval": ["", "--force"], "report": ["", "--force"],
    "report page": ["", "--force"], "bench upcycle": [""], "eval stats": ["", "--force"],
}
PLACES = ["foreign folder", "empty folder", "foreign file", "link to folder", "link to file", "dangling link", "loop", "input", "parent of input",
          "inside input", "below a file", "fifo", "device", "name too long", "dot", "foreign partial", "linked partial", "run of another", "model",
          "linked checkpoints", "linked final", "root", "control name"]


def list_outputs(_):
    for name, flags in OUTPUTS.items():
        for flag, where in itertools.product(flags, PLACES):
            yield f"{name}: {flag}: {where}"


def make_output(place, where, argv, dice):
    """Prepares an output that must not be replaced. Returns its path."""
    made, bait = place.folder / "out/made", place.folder / "bait"
    if where == "foreign folder":
        shutil.copytree(bait, made)
    elif where == "empty folder":
        made.mkdir()
    elif where == "foreign file":
        made.write_text("mine")
    elif where == "link to folder":
        made.symlink_to(bait)
    elif where == "link to file":
        made.symlink_to(bait / "report.html")
    elif where == "dangling link":
        made.symlink_to(place.folder / "bait/nowhere")
    elif where == "loop":
        made.symlink_to(made)
    elif where == "below a file":
        made.write_text("mine")
        return made / "x"
    elif where == "fifo":
        os.mkfifo(made)
    elif where == "name too long":
        return place.folder / "out" / ("x" * 300)
    elif where == "control name":
        return place.folder / "out" / (ESCAPES + "\nname")
    elif where in ("foreign partial", "linked partial"):
        beside = place.folder / "out/made.partial"
        if where == "linked partial":
            beside.symlink_to(bait)
        else:
            shutil.copytree(bait, beside)
    elif where in ("run of another", "linked checkpoints", "linked final"):
        place.copy("run")
        shutil.copytree(place.folder / "in/run", made)
        if where != "run of another":
            name = where.split()[1]
            shutil.rmtree(made / name, ignore_errors=True)
            (made / name).symlink_to(place.folder / "in/run/checkpoints")
        else:
            (made / "thesis.txt").write_text("mine")
    elif where == "model":
        place.copy("shards")
        shutil.copytree(place.folder / "in/shards", made)
        if dice.random() < 0.5:
            (made / "thesis.txt").write_text("mine")
    folder = pathlib.Path(next(word for word in argv if word.startswith(f"{place.folder}/in/")))
    return {"input": folder if folder.is_dir() else folder.parent, "parent of input": place.folder / "in",
            "inside input": place.folder / "in/dense/sub", "device": "/dev/null", "dot": ".", "root": "/"}.get(where, made)


def run_outputs(fixtures, place, words, dice):
    name, flag, where = words.split(": ")
    argv = command(place, name)
    place.copy("moe", "dense")
    out = make_output(place, where, argv, dice)
    made = str(place.folder / "out/made")
    argv = [str(out) if word == made else word for word in argv] + ([flag] if flag else [])
    is_one_file = name in ("report", "report page", "eval stats")

    def is_protected(path):  # inputs, bait, and files in or next to the output that are not of a run or model
        if path.startswith(made + "/") and where not in ("foreign folder", "below a file"):
            return path.endswith("/thesis.txt")
        if path == made and flag == "--force" and is_one_file:
            return where not in ("foreign file", "link to file", "dangling link", "loop", "fifo")
        return True

    def watched():
        found = place.snapshot()
        return {path: value for path, value in found.items() if is_protected(path) and not stat.S_ISDIR(value[0])}

    def listed():  # the files that moe has listed in its folder
        file = out / ".moe-output"
        return set(file.read_text().splitlines()) if os.path.isfile(file) else set()

    out = pathlib.Path(out)
    before, listed_before = watched(), listed()
    result = run(place, argv)
    faults = judge(result)
    after = watched()
    changed = [path for path in before if after.get(path) != before[path]]
    if listed_before <= listed():
        changed = [path for path in changed if path != str(out / ".moe-output")]
    faults += [f"changed or gone: {path}" for path in changed][:3]
    outputs = (made, f"{place.folder}/out/xxx", f"{place.folder}/out/{ESCAPES[:2]}")
    new = [path for path in after if path not in before and not path.startswith(outputs)]
    follows = where in ("link to folder", "dangling link", "linked checkpoints", "linked final", "inside input", "dot", "input", "parent of input")
    faults += [f"new: {path}" for path in new if not follows][:3]
    return argv, result, faults


LIMITED = ["upcycle", "init", "train", "resume", "eval", "generate", "inspect", "tokenize json", "report", "route csv", "train ranks", "eval bench"]
LIMITS = {"fsize": resource.RLIMIT_FSIZE, "as": resource.RLIMIT_AS, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC,
          "stack": resource.RLIMIT_STACK, "data": resource.RLIMIT_DATA}


def list_limits(_):
    for name, limit, turn in itertools.product(LIMITED, LIMITS, range(4)):
        yield f"{name}: {limit}: {turn}"


@functools.cache
def least_limit(fixtures, which):
    """Returns the smallest RLIMIT_AS or RLIMIT_DATA, to 32 MiB, with which `moe --version` starts."""
    low, high = 0, 4096
    while low + 1 < high:
        middle = (low + high) // 2
        is_enough = run(fixtures.place, [MOE, "--version"], limits={which: middle << 25}).code == 0
        low, high = (low, middle) if is_enough else (middle, high)
    return high << 25


def run_limits(fixtures, place, words, dice):
    name, limit, _ = words.split(": ")
    which, options = LIMITS[limit], {}
    if limit == "fsize":
        value = dice.choice([0, 1, 100, 1000, 4096, 20000, 60000, 100000])
    elif limit in ("as", "data"):
        value = least_limit(fixtures, which) + dice.randrange(1 << 28)
    elif limit == "nofile":
        value = dice.randrange(5, 30)
    elif limit == "stack":
        value = dice.choice([256, 400, 512, 1024]) << 10
    else:
        value = dice.randrange(1, 6)
    argv = command(place, name)
    if limit == "nproc":
        options = fixtures.other_user(place) | {"env": {"OMP_NUM_THREADS": "2"}}
    argv, result, faults = run_watched(place, argv, name, {"limits": {which: value}, **options})
    if result.code == 2 and limit == "fsize":  # a full disk during a run, which can be resumed
        faults = [fault for fault in faults if not fault.endswith("out/made")]
    return [f"[{limit} {value}]", *argv], result, faults


SIGNALLED = ["upcycle", "init", "train", "resume", "eval", "generate", "report", "train ranks", "eval ranks", "upcycle verify", "train cache",
             "eval bench"]


def list_signals(_):
    for name, number, turn in itertools.product(SIGNALLED, ("INT", "TERM", "HUP", "KILL", "STOP"), range(4)):
        yield f"{name}: {number}: {turn}"


def run_signals(fixtures, place, words, dice):
    name, number, _ = words.split(": ")
    number = signal.Signals["SIG" + number]
    healthy, seconds, wanted = fixtures.healthy(name)
    if healthy.code != 0:
        raise Skip(f"the command fails when it is left alone: {healthy.err.decode()}")
    argv = command(place, name)
    in_place = IN_PLACE.get(name, [])
    before = place.snapshot("out", *in_place)
    child = start(place, argv)
    delay = dice.random() * seconds * 1.1
    time.sleep(delay)
    send = os.killpg if dice.random() < 0.7 else os.kill
    twice = dice.random() < 0.3

    def deliver():
        try:
            send(child.pid, number)
            if number == signal.SIGSTOP:
                time.sleep(0.3)
                send(child.pid, signal.SIGCONT)
            elif twice:
                time.sleep(dice.random() * 0.1)
                send(child.pid, number)
        except ProcessLookupError:
            pass

    if child.poll() is None:
        deliver()
    result = finish(child)
    codes = (0,) if number == signal.SIGSTOP else (0, 130, -number) if name.split()[-1] != "ranks" else (0, 1, 130, -number)
    faults = judge(result, codes)
    faults += changes(before, place.snapshot("out", *in_place))
    out = output_path(place, name)
    is_whole = out is not None and os.path.lexists(out) and digests(place, name) == wanted
    again = run(place, argv) if out else Result(0, b"", b"", False)
    if again.code == 2 and is_whole:  # not replaced without --force
        again.code = 0
    faults += [f"afterwards: {fault}" for fault in judge(again, (0,))]
    if again.code == 0:
        if digests(place, name) != wanted:
            faults.append("afterwards: another output than that of a run that was left alone")
        faults += [f"afterwards: {fault}" for fault in leftovers(place, None, True)]
    shown = Result(result.code, result.out, result.err + b"\n-- afterwards:\n" + again.err, result.hung)
    return [f"[{number.name} after {delay:.3f} s]", *argv], shown, faults


DISKS = ["stdout full", "stderr full", "both full", "closed 0", "closed 1", "closed 2", "closed 1 2", "closed 0 1 2", "pipe closed", "small disk",
         "small disk", "few inodes", "read-only disk", "read-only folder", "no home", "tmp full", "home is a file"]
DISK_COMMANDS = ["upcycle", "init", "train", "eval", "generate", "inspect", "inspect dense", "tokenize json", "route csv", "route json", "route placed",
                 "report", "eval requests", "eval stats", "completion", "bench route", "train samples", "eval against", "train cache"]


def list_disks(_):
    for name, how in itertools.product(DISK_COMMANDS, DISKS):
        if how.split()[0] not in ("small", "few", "read-only") or "{out}" in COMMANDS[name][1]:
            yield f"{name}: {how}"


def mount(place, options):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True) if shutil.which("mount") else None
    if done is None or done.returncode != 0:
        raise Skip("a file system cannot be mounted here")


def run_disks(fixtures, place, words, dice):
    name, how = words.split(": ")
    healthy, _, wanted = fixtures.healthy(name)
    argv = command(place, name)
    options, codes, mounted = {}, (0, 1, 2), None
    if how in ("stdout full", "stderr full", "both full"):
        full = open("/dev/full", "wb")
        options = {"out": full if how != "stderr full" else subprocess.PIPE, "err": full if how != "stdout full" else subprocess.PIPE}
        codes = (2,) if how != "stderr full" and healthy.out else (0, 2)
    elif how.startswith("closed"):
        options = {"closed": [int(word) for word in how.split()[1:]]}
    elif how == "pipe closed":
        reader, writer = os.pipe()
        os.close(reader)
        options, codes = {"out": writer}, (0, -signal.SIGPIPE)
    elif how in ("small disk", "few inodes", "read-only disk"):
        mounted = place.folder / "out"
        mount(mounted, {"small disk": f"size={dice.choice([4, 16, 40, 64, 100, 200])}k", "few inodes": f"nr_inodes={dice.randrange(2, 12)}",
                        "read-only disk": "ro"}[how])
    elif how == "tmp full":
        mounted = place.folder / "tmp"
        mount(mounted, "size=4k,nr_inodes=1")
    elif how == "read-only folder":
        options = fixtures.other_user(place)
        os.chmod(place.folder / "out", 0o555)
    elif how == "no home":
        options = {"env": {"HOME": "/nowhere"}}
    elif how == "home is a file":
        (place.folder / "home").rmdir()
        (place.folder / "home").write_text("x")
        if name == "train cache":
            argv = argv[: argv.index("--cache")]
    try:
        result = run(place, argv, **options)
        faults = judge(result, codes, needs_sentence="err" not in options and 2 not in options.get("closed", ()) and how != "pipe closed"
                       or how == "stdout full")
        if mounted == place.folder / "out" and result.code != 0:
            faults += leftovers(place, None, True)
        if mounted and how in ("small disk", "few inodes"):
            subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=0", str(mounted)], check=True)
            if result.code != 0:
                again = run(place, argv)
                faults += [f"afterwards: {fault}" for fault in judge(again, (0,))]
                result.err += b"\n-- afterwards:\n" + again.err
        out = output_path(place, name)
        if result.code == 0 and out is not None and wanted and digests(place, name) != wanted:
            faults.append("another output than that of a run that was left alone")
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(mounted)])
        for stream in (options.get("out"), options.get("err")):
            if hasattr(stream, "close"):
                stream.close()
        if how == "pipe closed":
            os.close(options["out"])
    return [f"[{how}]", *argv], result, faults


SCRIPTS = {
    "quickstart.sh": ["--short {out}", "{out} --short", "--nonsense", "{bait}"],
    "row.sh": ["recipes/rectify_router", "{recipes}/rectify_router", "{recipes}/rectify_router/top1+ir train", "{recipes}/rectify_router/x y", ""],
    "small.sh": ["{recipes}/rectify_router/small/top1+ir {out}", "", "x"],
    "analyses.sh": ["table2 {out}", "remoe-sparsity {in}/run", "topp-table2 {in}/moe", "", "nonsense {in}/moe"],
    "setup.sh": ["--list", "--nonsense", "--list cpu"],
}
SURROUNDINGS = ["plain", "cdpath", "spaces", "link", "no python", "false", "json.py", "odd cwd", "no home", "closed stdin", "killed moe"]


def list_scripts(_):
    for script, lines in SCRIPTS.items():
        for line, how in itertools.product(lines, SURROUNDINGS):
            yield f"{script}: {line}: {how}"


def run_scripts(fixtures, place, words, dice):
    script, line, how = words.split(": ")
    if not (ROOT / "recipes" / script).exists():
        raise Skip(f"there is no recipes/{script}")
    place.copy("moe", "run")
    recipes = ROOT / "recipes"
    cwd = place.folder / "bait"
    env = {"PATH": f"{place.folder}/tools:{os.environ['PATH']}", "MOE": str(place.folder / "tools/stub")}
    (place.folder / "tools").mkdir()
    stub = place.folder / "tools/stub"
    stub.write_text("#!/bin/sh\necho 'moe: no' >&2\nexit 2\n" if how != "killed moe" else "#!/bin/sh\nkill -9 $$\n")
    stub.chmod(0o755)
    if how == "no python":
        for tool in ("awk bash basename cat cp cut date dirname env expr find grep head ls mkdir mktemp mv nproc printf realpath rm sed sh sort tail tee "
                     "touch tr uname wc").split():
            if shutil.which(tool):
                (place.folder / "tools" / tool).symlink_to(shutil.which(tool))
        env["PATH"] = str(place.folder / "tools")
    if script == "analyses.sh" and how != "killed moe":
        env["MOE"] = MOE
    if how == "false":
        env["MOE"] = "/bin/false"
    elif how == "cdpath":
        env["CDPATH"] = f"{place.folder}/bait:/usr:/tmp"
        (cwd / "recipes").mkdir()
    elif how in ("spaces", "link"):
        name = place.folder / ("a b $x ;c" if how == "spaces" else "linked")
        shutil.copytree(recipes, name / "recipes", ignore=shutil.ignore_patterns("results", "study"))
        recipes = name / "recipes"
        if how == "link":
            (place.folder / "script").symlink_to(recipes / script)
    elif how == "json.py":
        for module in ("json", "sys", "re", "random", "string", "os"):
            (cwd / f"{module}.py").write_text(f"open({str(place.folder / 'home/ran')!r}, 'w').write('x')\n")
    elif how == "odd cwd":
        cwd = pathlib.Path("/")
    elif how == "no home":
        env["HOME"] = ""
    folders = {"in": place.folder / "in", "out": place.folder / "out/made", "bait": place.folder / "bait", "recipes": recipes}
    argv = ["bash", str(recipes / script), *(word.format(**folders) for word in line.split())]
    before = place.snapshot("out/made")
    result = run(place, argv, env=env, cwd=cwd, closed=[0] if how == "closed stdin" else ())
    faults = judge(result, (0, 1, 2, 137) if how == "killed moe" else (0, 1, 2), needs_sentence=False)
    faults += changes(before, place.snapshot("out/made"))
    if (place.folder / "home/ran").exists():
        faults.append("a module of the working folder was run")
    found = re.search(rb"unbound variable|syntax error|command not found|line \d+:", result.err)
    if found and how != "killed moe":
        faults.append(f"the shell's own message: {found[0].decode()!r}")
    if result.code != 0 and not (result.err + result.out).strip() and how not in ("false", "killed moe"):
        faults.append("no message")
    return [f"[{how}, in {cwd}]", *argv], result, faults


TERMINAL_ARGUMENTS = ["inspect ESC", "train ESC -o x", "tokenize dense ESC", "--ESC", "ESC", "eval moe --tasks ESC", "route ESC", "report ESC", "init ESC -o x",
                      "generate dense --prompt ESC --max-tokens 1", "train moe -o x --data ESC", "eval moe --tasks quiz --router ESC", "upcycle dense -o ESC",
                      "train moe -o x --data ESC:0.5", "train moe -o x --config ESC", "bench ESC", "completion ESC", "inspect moe --against ESC"]
ENVIRONMENT = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "XDG_CACHE_HOME", "TMPDIR", "HOME", "OMP_NUM_THREADS",
               "LANG", "COLUMNS"]


def list_terminals(_):
    for target, names in TARGETS.items():
        for name, turn in itertools.product(names, range(2)):
            yield f"{name}: {target}: {turn}"
    for line in TERMINAL_ARGUMENTS:
        yield f"arguments: {line}: 0"
    for variable in ENVIRONMENT:
        yield f"environment: {variable}: 0"


def poison(tree, dice, share):
    """Puts control characters into a share of the strings and keys of a JSON tree."""
    def one(text):
        return text[:2] + ESCAPES + text[2:] if dice.random() < share else text
    if isinstance(tree, dict):
        return {one(key): poison(value, dice, share) for key, value in tree.items()}
    if isinstance(tree, list):
        return [poison(value, dice, share) for value in tree]
    return one(tree) if isinstance(tree, str) else tree


def poison_file(path, dice):
    share = dice.choice([0.03, 0.3, 1])
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        size = struct.unpack("<Q", data[:8])[0]
        header = json.dumps(poison(json.loads(data[8 : 8 + size]), dice, share), ensure_ascii=dice.random() < 0.5).encode()
        return path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    if path.suffix == ".json":
        return path.write_text(json.dumps(poison(json.loads(data), dice, share), ensure_ascii=dice.random() < 0.5))
    if path.suffix == ".jsonl":
        return path.write_text(jsonl([poison(json.loads(line), dice, share) for line in data.decode().splitlines()]))
    words = re.split(rb"(\s+)", data) if path.suffix in (".toml", ".txt", ".csv", ".tsv", ".jinja", ".lst") else [data]
    for index in range(len(words)):
        if dice.random() < max(share, 0.1):
            words[index] += ESCAPES.encode()
    return path.write_bytes(b"".join(words))


def run_terminals(fixtures, place, words, dice):
    name, rest, _ = words.split(": ")
    options = {}
    if name == "arguments":
        place.copy("dense", "moe", "data")
        escapes = ESCAPES + dice.choice(["", "\n", "\r", "\x00"[:0], "\u2066"])
        argv = [MOE, *(str(place.folder / "in" / word) if word in ("dense", "moe") else word.replace("ESC", escapes) for word in rest.split())]
        options = {"cwd": place.folder / "out"}
    elif name == "environment":
        argv = command(place, "train") + ["--comm-timeout", "3"]
        options = {"env": {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29", rest: ESCAPES}}
        if rest in ("XDG_CACHE_HOME", "TMPDIR", "HOME", "OMP_NUM_THREADS", "LANG", "COLUMNS"):
            options = {"env": {rest: ESCAPES}}
    else:
        argv = command(place, name)
        path = target_path(place, rest)
        poison_file(path, dice)
        seal(path)
    result = run_on_terminal(place, argv, **options)
    shown = result.err.decode(errors="backslashreplace")
    faults = [fault for fault in judge(result, needs_sentence=False) if "control character" not in fault]
    found = CONTROL.search(OWN_SEQUENCES.sub("", shown))
    if found:
        faults.append(f"a control character on the terminal: {found[0]!r} in {shown[max(0, found.start() - 40) : found.start() + 20]!r}")
    if result.code in (1, 2) and "moe: " not in shown:
        faults.append("no sentence")
    return argv, result, faults


GROUPS = {name: (globals()[f"list_{name}"], globals()[f"run_{name}"]) for name in SHARES}


# --- the series ----------------------------------------------------------------------------------------------------------


def choose(fixtures, groups, count, seed):
    """Returns [(id, words)]: each group's possible cases in an order that the seed decides, as many as its share."""
    total, chosen = sum(SHARES[group] for group in groups), []
    for group in groups:
        possible = list(GROUPS[group][0](fixtures))
        random.Random(f"{seed}/{group}").shuffle(possible)
        for index in range(round(count * SHARES[group] / total)):
            chosen.append((f"{group}-{index:04d}", possible[index % len(possible)]))
    return chosen


def run_case(fixtures, work, identity, words, seed):
    folder = work / identity
    group = identity.rsplit("-", 1)[0]
    try:
        return GROUPS[group][1](fixtures, Place(folder, fixtures.base), words, random.Random(f"{seed}/{identity}"))
    finally:
        os.chdir("/")
        for child in STARTED:
            if child.poll() is None:
                kill_group(child)
                child.wait()
        STARTED.clear()


def remove(folder):
    for path, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(path, name)):
                os.chmod(os.path.join(path, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", default=",".join(SHARES))
    parser.add_argument("--case")
    parser.add_argument("--keep", action="store_true", help="keep the folders of failed cases, or of those of --case")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    given = parser.parse_args()
    groups = given.group.split(",")
    wanted = given.case.split(",") if given.case else None
    if wanted:
        groups = [group for group in SHARES if any(one.startswith(group + "-") for one in wanted)]
        given.group = ",".join(groups)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = pathlib.Path(tempfile.mkdtemp(prefix="moe-hostile-")).resolve() / "w"
    work.mkdir()
    began = time.monotonic()
    passed, failed, skipped, is_kept = collections.Counter(), collections.Counter(), collections.Counter(), False
    try:
        fixtures = Fixtures(work)
        if wanted:  # an ID has its case whatever the count is
            cases = [case for case in choose(fixtures, groups, 100000, given.seed) if case[0] in wanted]
        else:
            cases = choose(fixtures, groups, given.count, given.seed)
        for name in COMMANDS if not wanted and not given.list else ():  # a command that fails without damage would make its cases useless
            healthy = fixtures.healthy(name)[0]
            if healthy.code != 0 or judge(healthy):
                failed["healthy"] += 1
                print(f"FAILED healthy ({name}): exit code {healthy.code}; {healthy.err.decode(errors='backslashreplace')}", flush=True)
        print(f"{len(cases)} cases, seed {given.seed}, {MOE}, load {os.getloadavg()[0]:.1f}", flush=True)
        for identity, words in cases:
            group = identity.rsplit("-", 1)[0]
            if given.list:
                print(identity, words)
                continue
            try:
                argv, result, faults = run_case(fixtures, work, identity, words, given.seed)
            except Skip as reason:
                skipped[group] += 1
                print(f"skipped {identity} ({words}): {reason}", flush=True)
                continue
            (failed if faults else passed)[group] += 1
            if faults or wanted:
                text = result.err.decode(errors="backslashreplace")
                text = text if wanted else text[-600:]
                print(f"{'FAILED' if faults else 'ok    '} {identity} ({words}): {'; '.join(faults)}\n"
                      f"    {' '.join(repr(str(word)) if len(str(word)) < 300 else '...' for word in argv)}\n"
                      f"    exit code {result.code}; {text.encode('unicode_escape').decode()}", flush=True)
            if given.keep and (faults or wanted):
                is_kept = True
            else:
                remove(work / identity)
    finally:
        if is_kept:
            print(f"kept: {work}")
        else:
            remove(work)
            shutil.rmtree(work.parent, ignore_errors=True)
    for group in groups:
        print(f"{group:10} {passed[group]} passed, {failed[group]} failed, {skipped[group]} skipped")
    print(f"seed {given.seed}, {time.monotonic() - began:.0f} s")
    print(f"{sum(passed.values())} passed, {sum(failed.values())} failed, {sum(skipped.values())} skipped")
    sys.exit(1 if failed else 0)


main()
