"""The rows of one call of tests/gpu/run.sh, each a measurement with what is expected of it, to callN.json.

usage: measure.py 1|2|3 --pack FOLDER --out FOLDER [--rehearse] [--only ROW]...
       measure.py 1|2|3 --list

A row is "passed", "failed" (it ran and broke off, or is below its floor) or "not run", with the reason. Goals are no floors: a row
says by "met" whether its numbers reach them. --rehearse takes the CPU and toy sizes, for the plumbing; then nothing is compared.
"""
import argparse
import collections
import concurrent.futures
import csv
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

CALL_S = 465  # of a call: eight minutes, less unpacking
MINUTE = 60
SKIPPED = 77  # of a test file, all of whose cases look into the emulated GPU


class NotRun(Exception):
    pass


class Failed(Exception):
    pass


class Machine:
    """Where the rows run: the pack, the device, the time that is left."""

    def __init__(self, pack, rehearse):
        self.pack, self.rehearse = pathlib.Path(pack).resolve(), rehearse
        self.began = time.monotonic()
        self.device = "cpu" if rehearse else "cuda"
        self.scratch = self.pack / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.why_not = self.other_torch() or (None if rehearse else self.why_no_gpu())

    def other_torch(self):
        wanted, found = (self.pack / "torch_version").read_text().strip(), importlib.metadata.version("torch")
        return None if found.split("+")[0] == wanted else f"torch is {found} here, the pack was built against {wanted}"

    def why_no_gpu(self):
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            return "CUDA_VISIBLE_DEVICES hides every GPU"
        if shutil.which("nvidia-smi") is None:
            return "no nvidia-smi: this machine has no NVIDIA driver"
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
                               capture_output=True, text=True)
        if asked.returncode != 0 or not asked.stdout.strip():
            return f"nvidia-smi shows no GPU: {(asked.stdout + asked.stderr).strip()}"
        if not (self.pack / "bin/libmoe_cuda.so").exists():
            return "the pack has no libmoe_cuda.so: pack a gpu build"
        return None

    def describe(self):
        asked = "" if self.why_not or self.rehearse else subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout
        return {"gpu": asked.strip(), "torch": importlib.metadata.version("torch"), "python": platform.python_version(), "cpus": os.cpu_count(),
                "commit": (self.pack / "commit").read_text().strip(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat()}

    def gpu_gib(self):
        asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True)
        return float(asked.stdout.split()[0]) / 1024 if asked.stdout.split() else 0

    def left_s(self):
        return CALL_S - (time.monotonic() - self.began)

    def run(self, words, limit_s, env=None, may_fail=False):
        """What a program printed. Its end is the end of the row's time, or of the call's."""
        # A rehearsal is of the plumbing: a machine that is busy with other things fails nothing.
        limit = 10 * limit_s if self.rehearse else min(limit_s, self.left_s())
        if limit < 5:
            raise NotRun("no time was left in this call")
        words = [str(word) for word in words]
        print("$ " + " ".join(words) + "\n", end="", flush=True)
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=limit, env=os.environ | (env or {}), cwd=self.pack)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"ran past {limit:.0f} s: {' '.join(words)}") from error
        if done.returncode != 0 and not may_fail:
            raise Failed(f"exit {done.returncode}: {' '.join(words)}: {(done.stderr or done.stdout).strip()[-800:]}")
        return done

    def moe(self, *words, limit_s):
        done = self.run([self.pack / "bin/moe", *words, "--device", self.device, "--json"], limit_s)
        return json.loads(done.stdout)

    def peer(self, *words, limit_s):
        done = self.run([sys.executable, self.pack / "peers.py", *words, "--device", self.device], limit_s, may_fail=True)
        if done.returncode == 77:
            raise NotRun(done.stdout.strip().splitlines()[-1])
        if done.returncode != 0:
            raise Failed(f"exit {done.returncode}: {done.stderr.strip()[-800:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])


def ms(timing):
    return timing["median_ms"]


# --- call 1 ---------------------------------------------------------------------------------------------------------------------

def test_row(test, limit_s):
    """The cases of a test binary that are tagged [gpu], the slow ones too, one process per file. On a CPU, one file on the emulator."""
    def measure(machine):
        binary, tags = machine.pack / "bin" / test, "~[.]" if machine.rehearse else "[gpu]"
        if not binary.exists():
            raise NotRun(f"the pack has no {test}: build and pack --target all")
        # Catch2 2 exits with the number of tags.
        listed = machine.run([binary, "-#", "--list-tags", tags], limit_s, may_fail=True).stdout
        files = sorted(re.findall(r"\[#(\w+)\]", listed))
        if not files:
            raise Failed(f"{test} lists no case with {tags}: {listed[-800:]}")
        files = files[:1] if machine.rehearse else files

        def one(file):
            began = time.monotonic()
            try:
                done = machine.run([binary, "-#", f"[#{file}]{tags}"], limit_s, may_fail=True)
            except (Failed, NotRun) as error:
                return {"exit": -1, "said": str(error)}
            said = done.stdout.strip().splitlines()
            result = {"exit": done.returncode, "seconds": round(time.monotonic() - began, 1), "said": said[-1] if said else ""}
            return result | ({"output": (done.stdout + done.stderr)[-6000:]} if done.returncode not in (0, SKIPPED) else {})

        # Side by side: nothing is timed here, and each test spends most of its time in starting CUDA.
        with concurrent.futures.ThreadPoolExecutor(min(6, os.cpu_count() or 1)) as pool:
            numbers = dict(zip(files, pool.map(one, files)))
        failed = [name for name, result in numbers.items() if result["exit"] not in (0, SKIPPED)]
        if failed:
            raise Failed(f"{len(failed)} of {len(files)} files: {', '.join(failed)}", numbers)
        return numbers
    return measure


def commands_row(machine):
    """A small mixture trained by every router, generated from and evaluated: the device beside the CPU, the losses of ten steps in fp32."""
    config, data, quiz = machine.scratch / "small.json", machine.scratch / "sums.jsonl", machine.scratch / "quiz.jsonl"
    config.write_text(json.dumps(shape_of(machine, 4) | {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4,
                                                         "num_key_value_heads": 2, "vocab_size": 512, "torch_dtype": "float32"}))
    write_tokenizer(machine.scratch / "small-tokenizer.json", 512)
    data.write_text("".join(json.dumps({"instruction": f"What is {a} plus {b}?", "output": f"{a} plus {b} is {a + b}."}) + "\n"
                            for a in range(20) for b in range(20)))
    quiz.write_text("".join(json.dumps({"question": f"What is {a} plus 1?", "choices": [str(a + 1), str(a)], "answer": 0}) + "\n"
                            for a in range(50)))
    moe, dense = machine.pack / "bin/moe", machine.scratch / "small"
    machine.run([moe, "init", config, "-o", dense, "-q", "--tokenizer", machine.scratch / "small-tokenizer.json"], 60)
    routers = ("top1", "top1+ir+fr", "top2", "topp:0.4", "relu:k=1", "expert-choice")
    runs = list(dict.fromkeys((router, *where) for router in routers
                              for where in (("fp32", "cpu"), ("fp32", machine.device), ("bf16", machine.device))))

    def one(run):
        router, precision, device = run
        folder = machine.scratch / "-".join(run).replace(":", "_")
        try:
            words = [moe, "train", dense, "--upcycle", 4, "--router", router, "--data", data, "-o", folder, "--steps", 10, "--micro-batch", 8,
                     "--seq-len", 256, "--lr", "1e-3", "--precision", precision, "--device", device, "--json", "-q", "--force"]
            last = json.loads(machine.run(words, MINUTE).stdout)["last_loss"]
            if router == "expert-choice":  # trains only: no inference
                return {"last_loss": last}
            text = machine.run([moe, "generate", folder / "final", "--prompt", "What is 3 plus 4?", "--max-tokens", 8, "--device", device], MINUTE).stdout
            score = json.loads(machine.run([moe, "eval", folder / "final", "--tasks", quiz, "--device", device, "--json", "-q"], MINUTE).stdout)
            return {"last_loss": last, "text": text, "eval": score}
        except Failed as error:
            return {"why": str(error)}

    with concurrent.futures.ThreadPoolExecutor(min(6, os.cpu_count() or 1)) as pool:
        found = dict(zip(runs, pool.map(one, runs)))
    numbers = {" ".join(run): result for run, result in found.items()}
    broken = [" ".join(run) for run, result in found.items() if "why" in result]
    if broken:
        raise Failed(f"broke off: {', '.join(broken)}", numbers)
    for (router, precision, device), result in found.items():
        numbers[f"{router} {precision} {device} loss"] = result["last_loss"]
        beside = found[router, "fp32", "cpu"]["last_loss"]
        # Ten steps of AdamW at 1e-3 grow the rounding of one step; bf16 products have 8 bits.
        if abs(result["last_loss"] / beside - 1) > (1e-3 if precision == "fp32" else 5e-2):
            raise Failed(f"{router} in {precision} on {device}: loss {result['last_loss']}, {beside} on the CPU", numbers)
    return numbers


def products_row(machine):
    shape = ["--experts", 2, "--rows", 64, "--width", 32, "--inner", 48] if machine.rehearse else []
    return machine.peer("products", *shape, limit_s=MINUTE)


def layer_row(router):
    def measure(machine):
        sizes = (["--tokens", 64, "--width", 32, "--inner", 48, "--experts", 4, "--repeats", 1] if machine.rehearse else
                 ["--tokens", 16384, "--width", 4096, "--inner", 11008, "--experts", 8, "--repeats", 20])
        layer = machine.moe("bench", "layer", "--router", router, "--precision", "bf16", *sizes, limit_s=80)["layers"][0]
        parts = layer["parts_ms"]
        routed = sum(parts.get(name, 0) for name in ("routing", "permute", "combine"))
        return {"of_dense": ms(layer["roof"]) / ms(layer["layer"]), "products_of_dense": ms(layer["roof"]) / ms(layer["products"]),
                "routing_share": routed / max(sum(parts.values()), 1e-9), "layer_ms": ms(layer["layer"]), "routing_ms": ms(layer["routing"]),
                "all": layer}
    return measure


# --- call 2 ---------------------------------------------------------------------------------------------------------------------

METRICS = {"gpu__time_duration.sum": "us", "dram__bytes.sum": "bytes", "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
           "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent"}
SCALES = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6,
          "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 1}


def kernels_of(text):
    """Of ncu's CSV: for each kernel its launches, microseconds, bytes a second, and shares of what the GPU can."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    sums = collections.defaultdict(lambda: collections.defaultdict(float))
    for row in csv.DictReader(lines):
        name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|moe::kernels::|void ", "", row["Kernel Name"]).split("(")[0]
        key = METRICS.get(row["Metric Name"])
        if key:
            sums[name][key] += float(row["Metric Value"].replace(",", "")) * SCALES.get(row["Metric Unit"], 1)
            sums[name]["launches"] += key == "us"
    return {name: {"launches": int(one["launches"]), "us": one["us"], "us_each": one["us"] / max(one["launches"], 1),
                   "gb_per_s": one["bytes"] / max(one["us"], 1e-9) / 1e3, "dram_percent": one["dram_percent"] / max(one["launches"], 1),
                   "sm_percent": one["sm_percent"] / max(one["launches"], 1)}
            for name, one in sorted(sums.items(), key=lambda item: -item[1]["us"])}


SAMPLE = """==PROF== Disconnected
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void moe::kernels::<unnamed>::permute_kernel<__nv_bfloat16, 4>(PermuteShape, const long *)","gpu__time_duration.sum","us","56.00"
"0","void moe::kernels::<unnamed>::permute_kernel<__nv_bfloat16, 4>(PermuteShape, const long *)","dram__bytes.sum","Mbyte","268.4"
"1","void moe::kernels::<unnamed>::permute_kernel<__nv_bfloat16, 4>(PermuteShape, const long *)","gpu__time_duration.sum","ns","44,000"
"""


def find_tool(name):
    for folder in [None, "/usr/local/cuda/bin", *sorted(map(str, pathlib.Path("/opt/nvidia/nsight-compute").glob("*")), reverse=True)]:
        found = shutil.which(name, path=folder)
        if found:
            return found
    raise NotRun(f"no {name} on this machine")


def kernels_row(router):
    """Our own kernels, in every measurement that bench layer makes; LibTorch's are in the parts of the rows of call 1."""
    def measure(machine):
        if machine.rehearse:  # what its documentation says that it prints, for its reader
            found = kernels_of(SAMPLE)
            if found["permute_kernel<__nv_bfloat16, 4>"]["us_each"] != 50:
                raise Failed(f"ncu's numbers were read as {found}")
            return {"kernels": found}
        tool, ours = find_tool("ncu"), "|".join((machine.pack / "kernels").read_text().split())
        layer = ["--tokens", 16384, "--width", 4096, "--inner", 11008, "--experts", 8, "--repeats", 1, "--router", router]
        done = machine.run([tool, "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS), "--kernel-name", f"regex:^({ours})$",
                            machine.pack / "bin/moe", "bench", "layer", *layer, "--precision", "bf16", "--device", "cuda", "--json"], 120)
        kernels = kernels_of(done.stdout)
        if not kernels:
            raise Failed(f"ncu printed no kernel: {(done.stdout + done.stderr)[-800:]}")
        return {"kernels": kernels}
    return measure


def sanitizer_row(file, *checks):
    """compute-sanitizer over each case of a test file, slow cases excluded, one process per case, side by side: racecheck slows a case
    down by some thousand times."""
    def measure(machine):
        if machine.rehearse:
            raise NotRun("compute-sanitizer is for GPUs; the address sanitizer runs these tests on the emulator")
        tool, binary = find_tool("compute-sanitizer"), machine.pack / "bin/kernels_cuda_test"
        # Catch2 2 exits with the number of cases.
        cases = machine.run([binary, "-#", "--list-test-names-only", f"[#{file}][gpu]~[slow]"], MINUTE, may_fail=True).stdout.splitlines()
        if not cases:
            raise Failed(f"{file} has no case")

        def one(check, case):
            # LibTorch's allocator hands out pieces of large blocks; without it each buffer has ends of its own.
            try:
                done = machine.run([tool, "--tool", check, "--error-exitcode", 1, "--print-limit", 20, binary, case.replace(",", "\\,")],
                                   150, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, may_fail=True)
            except (Failed, NotRun) as error:
                return {"exit": -1, "said": str(error)}
            return {"exit": done.returncode, "said": (done.stdout + done.stderr)[-800:]}

        runs = [(check, case) for check in checks for case in cases]
        with concurrent.futures.ThreadPoolExecutor(min(12, os.cpu_count() or 1)) as pool:
            numbers = dict(zip(map(": ".join, runs), pool.map(lambda run: one(*run), runs)))
        failed = [name for name, result in numbers.items() if result["exit"] != 0]
        if failed:
            raise Failed("; ".join(failed), numbers)
        return numbers
    return measure


# --- call 3 ---------------------------------------------------------------------------------------------------------------------

def shape_of(machine, layers):
    """LLaMA-2-7B's, with fewer layers; or a toy's."""
    width, inner, heads, vocabulary = (64, 96, 4, 512) if machine.rehearse else (4096, 11008, 32, 32000)
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "initializer_range": 0.02}


def layers_that_fit(machine):
    """Eight of top-1's 5.7 B parameters take 91 GB to train, four take 48."""
    if machine.rehearse:
        return 2
    return 8 if machine.gpu_gib() > 120 else 4


def byte_characters():
    """How byte-level tokenizers write the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + number) for number in range(len(others))]


def write_tokenizer(file, vocabulary):
    """One that a folder can be evaluated with: bytes, and words that no text has."""
    words = byte_characters()
    words += [f"<{number}>" for number in range(len(words), vocabulary)]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    file.write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                                "pre_tokenizer": bytes_of, "post_processor": None, "decoder": bytes_of,
                                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                                          "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                                          "vocab": {word: number for number, word in enumerate(words)}, "merges": []}}))


def folder_of(machine, layers):
    folder = machine.scratch / f"dense-{layers}"
    if not folder.is_dir():
        config, shape = machine.scratch / "config.json", shape_of(machine, layers)
        config.write_text(json.dumps(shape))
        write_tokenizer(machine.scratch / "tokenizer.json", shape["vocab_size"])
        machine.run([machine.pack / "bin/moe", "init", config, "-o", folder, "-q", "--tokenizer", machine.scratch / "tokenizer.json"], 90)
    return folder


def train(machine, folder, *words, limit_s=100):
    sizes = ["--rows", 1, "--seq-len", 64, "--warmup", 1, "--repeats", 1] if machine.rehearse else [
        "--rows", 8, "--seq-len", 2048, "--warmup", 2, "--repeats", 5]
    precision = "fp32" if machine.rehearse else "bf16"
    report = machine.moe("bench", "train", folder, "--precision", precision, *sizes, *words, limit_s=limit_s)
    return {"tokens_per_second": report["tokens_per_second"], "roof_share": report["roof_share"], "step_ms": ms(report["step"]),
            "useful_rows": report["useful_rows"], "parts_ms": report["parts_ms"], "peak_bytes": report["peak_bytes"]}


def training_row(router):
    def measure(machine):
        layers = layers_that_fit(machine)
        folder = folder_of(machine, layers)
        numbers = {"layers": layers} | train(machine, folder, *(["--upcycle", 8, "--router", router] if router else []))
        kept = machine.scratch / "dense.json"
        if not router:
            kept.write_text(json.dumps(numbers["tokens_per_second"]))
        elif kept.exists():
            numbers["of_dense"] = numbers["tokens_per_second"] / json.loads(kept.read_text())
        return numbers
    return measure


def beside_transformers(machine):
    """Mixtral of two layers, every one with eight experts, top-2 without drops: the same arithmetic on both sides."""
    shape = shape_of(machine, 2)
    ours = train(machine, folder_of(machine, 2), "--upcycle", 8, "--layers", "all", "--router", "top2:cf=inf")
    sizes = ["--batch", 1, "--length", 64, "--steps", 1] if machine.rehearse else ["--batch", 8, "--length", 2048, "--steps", 5]
    config = machine.scratch / "mixtral.json"
    config.write_text(json.dumps(shape))
    theirs = machine.peer("train", config, *sizes, limit_s=90)
    return {"ratio": ours["tokens_per_second"] / theirs["tokens_per_second"], "moe": ours, "transformers": theirs}


def evaluation(machine):
    """Requests of the same lengths on both sides, ready as tokens: the harness's scoring of them, and ours."""
    folder = folder_of(machine, layers_that_fit(machine))
    limit = 4 if machine.rehearse else 400
    sets = machine.moe("bench", "eval", folder, "--limit", limit, "--repeats", 1 if machine.rehearse else 3, limit_s=60)["sets"]
    theirs = machine.peer("evaluate", folder, "--questions", limit, limit_s=90)
    ours = {one["name"]: ms(one["scoring"]) / 1e3 for one in sets}
    return {name: theirs["seconds"][name] / ours[name] for name in ours} | {"moe": sets, "harness": theirs}


# --- the rows -------------------------------------------------------------------------------------------------------------------

Row = collections.namedtuple("Row", "name measure goals")  # goals: a number of the row -> at least (or, as ("<=", x), at most)

CALLS = {
    1: [Row("kernel tests", test_row("kernels_cuda_test", 60), {}),
        Row("model tests", test_row("core_cuda_test", 60), {}),
        Row("commands", commands_row, {}),
        Row("grouped products", products_row, {"best_of_one": 0.95}),
        Row("layer top1", layer_row("top1"), {"of_dense": 0.95, "routing_share": ("<=", 0.025)}),
        Row("layer top1+ir+fr", layer_row("top1+ir+fr"), {"of_dense": 0.95, "routing_share": ("<=", 0.025)}),
        Row("layer top2", layer_row("top2"), {"of_dense": 0.95, "routing_share": ("<=", 0.025)})],
    2: [Row("kernel times top1", kernels_row("top1"), {}),
        Row("sanitizer top_k_plan", sanitizer_row("top_k_plan_test", "memcheck", "racecheck"), {}),
        Row("sanitizer router", sanitizer_row("router_test", "memcheck", "racecheck"), {}),
        Row("sanitizer permute", sanitizer_row("permute_test", "memcheck"), {}),
        Row("sanitizer swiglu", sanitizer_row("swiglu_test", "memcheck"), {}),
        Row("kernel times top1+ir+fr", kernels_row("top1+ir+fr"), {})],
    3: [Row("training dense", training_row(""), {"roof_share": 0.6}),
        Row("training top1", training_row("top1"), {"of_dense": 0.97, "roof_share": 0.6}),
        Row("training top2", training_row("top2"), {"of_dense": 0.74}),
        Row("training beside transformers", beside_transformers, {"ratio": 1.3}),
        Row("evaluation beside the harness", evaluation, {"letters": 1.3, "spans": 2.6})],
}


def met(numbers, goals):
    result = {}
    for name, goal in goals.items():
        value = numbers.get(name)
        at_most = isinstance(goal, tuple)
        result[name] = None if value is None else value <= goal[1] if at_most else value >= goal
    return result


def measure(machine, row):
    began = time.monotonic()
    result = {"row": row.name, "state": "passed", "goals": row.goals}
    try:
        if machine.why_not:
            raise NotRun(machine.why_not)
        result["numbers"] = row.measure(machine)
        if not machine.rehearse:
            result["met"] = met(result["numbers"], row.goals)
    except NotRun as reason:
        result |= {"state": "not run", "why": str(reason)}
    except Failed as reason:
        result |= {"state": "failed", "why": reason.args[0]}
        if len(reason.args) > 1:
            result["numbers"] = reason.args[1]
    except (KeyError, ValueError, OSError) as error:  # output that is not what it was
        result |= {"state": "failed", "why": f"{type(error).__name__}: {error}"}
    result["seconds"] = round(time.monotonic() - began, 1)
    shown = {name: round(value, 3) for name, value in result.get("numbers", {}).items() if isinstance(value, float)}
    print(f"{result['state']:8} {row.name} ({result['seconds']} s) {result.get('why', '')}{shown or ''} {result.get('met', '')}", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("call", type=int, choices=CALLS)
    parser.add_argument("--pack")
    parser.add_argument("--out")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", metavar="ROW", help="run this row of the call; may be given again")
    options = parser.parse_args()
    if options.list:
        print("\n".join(row.name for row in CALLS[options.call]))
        return 0
    machine = Machine(options.pack, options.rehearse)
    table = {"call": options.call, "machine": machine.describe(), "rehearsal": options.rehearse, "rows": []}
    unknown = set(options.only or []) - {row.name for row in CALLS[options.call]}
    if unknown:
        parser.error(f"call {options.call} has no row {', '.join(sorted(unknown))}; --list names its rows")
    for row in CALLS[options.call]:
        if options.only and row.name not in options.only:
            continue
        table["rows"].append(measure(machine, row))
        # After each row: a call that is cut off leaves what it has.
        pathlib.Path(options.out, f"call{options.call}.json").write_text(json.dumps(table, indent=1) + "\n")
    states = {row["state"] for row in table["rows"]}
    return 1 if "failed" in states else 77 if "not run" in states else 0


if __name__ == "__main__":
    sys.exit(main())
