"""The rows of all.py: measurements, peers and required values. A row is a function of a Bench that returns Results."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import train_speed
from train_speed import MOE, PEERS, json_of, output_of, seconds_of

HERE = pathlib.Path(__file__).resolve().parent


class Lacks(Exception):
    """A missing requirement of a row, and how to get it."""


@dataclasses.dataclass
class Result:
    what: str
    peer: str
    must: float
    command: str
    values: list = dataclasses.field(default_factory=list)
    most: bool = False  # `must` is an upper bound
    unit: str = ""
    digits: int = 2
    note: str = ""
    lacks: str = ""

    def met(self):
        middle = statistics.median(self.values)
        return middle <= self.must if self.most else middle >= self.must

    def measured(self):
        show = lambda value: f"{value:.{self.digits}f}"
        return f"{show(statistics.median(self.values))}{self.unit} ({show(min(self.values))} to {show(max(self.values))})"

    def must_text(self):
        return f"{'at most' if self.most else 'at least'} {self.must:g}{self.unit}"


@dataclasses.dataclass
class Bench:
    scratch: pathlib.Path
    rounds: int
    upcycle_gb: float


def need_peer(script):
    if not (PEERS / script).is_file():
        raise Lacks(f"needs {script}: set PEERS to the folder of the peers' scripts")


def guarded(name, measure, bench):
    """Returns the results of a row, or one with the reason why it cannot run."""
    try:
        return measure(bench)
    except (Lacks, RuntimeError, OSError, KeyError, ValueError) as error:
        words = " ".join(str(error).split())
        return [Result(name, "", 0, f"all.py --rows {name}", lacks=words.replace("|", "/") or type(error).__name__)]


def training(folder, threads):
    """Speed, peak memory and losses relative to transformers."""

    def measure(bench):
        need_peer("hf_mixtral_train.py")
        command = ["train_speed.py", "--folders", folder, "--threads", threads]
        out = bench.scratch / "train.json"
        output_of([sys.executable, HERE / command[0], *command[1:], "--rounds", bench.rounds, "--json", out], threads, (0, 1))
        found = json.loads(out.read_text())[folder]
        words, label = " ".join(map(str, command)), f"{folder}, {threads} thread{'s' if threads > 1 else ''}"
        peer = f"transformers, {1024 / statistics.median(found['peer_s']):.0f} tokens/s"
        return [
            Result(f"training, fp32: {label}", peer, 1.25, words, found["ratio"], note=f"{1024 / statistics.median(found['moe_s']):.0f} tokens/s"),
            Result(f"peak memory of training: {label}", "transformers", 0.75, words, found["memory"], most=True),
            Result(f"max. relative difference of losses: {label}", "transformers", 1e-4, words, [found["apart"]], most=True, digits=6),
        ]

    return measure


def train_bench(model, threads, *more):
    return json_of([MOE, "bench", "train", model, "--threads", threads, "--repeats", 5, "--json", *more], threads)


def roof(folder, threads):
    """FLOP rate of a step as a share of the rate of LibTorch's products at the same shapes."""

    def measure(bench):
        shares = [train_bench(folder, threads)["roof_share"] for _ in range(bench.rounds)]
        label = f"{folder}, {threads} thread{'s' if threads > 1 else ''}"
        return [Result(f"training: share of the GEMM rate: {label}", "at::mm", 0.75, f"moe bench train {folder} --threads {threads}", shares)]

    return measure


def bf16(folder):
    def measure(bench):
        if not bf16_processor():
            raise Lacks("needs a processor that multiplies bf16 (AVX512_BF16)")
        ratios = []
        for _ in range(bench.rounds):
            wide, narrow = (train_bench(folder, 1, "--precision", precision)["step"]["median_ms"] for precision in ("fp32", "bf16"))
            ratios.append(wide / narrow)
        return [Result(f"training speed with `--precision bf16`: {folder}", "our fp32", 1.6, f"moe bench train {folder} --precision bf16 --threads 1", ratios)]

    return measure


def bf16_processor():
    """Returns True if the processor has bf16 products; others multiply in f32 without a gain."""
    try:
        return "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def main_and_other_seconds(words, threads):
    """Returns the CPU seconds of the main thread of a process and of the others. Waiting OpenMP threads sleep, and so do not count."""
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL,
                               env=os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"})
    seconds = {}
    while process.poll() is None:
        seconds |= train_speed.thread_seconds(process)
        time.sleep(0.005)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {process.returncode}")
    main = seconds.pop(process.pid)
    return main, sum(seconds.values())


def serial(folder):
    """Share of a step's CPU time in which the calling thread computes alone. With n threads, serial work S and shared work P the caller takes S + P / n
    and each other thread P / n, so S = caller - others / (n - 1). Steps are the difference between a long and a short run."""

    def measure(bench):
        threads = len(os.sched_getaffinity(0))
        if threads < 2:
            raise Lacks("needs two processors")
        shares = []
        for _ in range(bench.rounds):
            short, long = (main_and_other_seconds([MOE, "bench", "train", folder, "--threads", threads, "--repeats", repeats], threads) for repeats in (1, 11))
            caller, others = (more - less for more, less in zip(long, short))
            shares.append(100 * (caller - others / (threads - 1)) / (caller + others))
        return [Result(f"serial share of a training step: {folder}, {threads} threads", "", 10, f"all.py --rows serial-{folder}", shares, most=True, unit=" %", digits=1)]

    return measure


def oversubscribed(folder):
    """2 and 4 threads per processor relative to one."""

    def measure(bench):
        processors = len(os.sched_getaffinity(0))
        slower = {2: [], 4: []}
        for _ in range(bench.rounds):
            plain = train_bench(folder, processors)["step"]["median_ms"]
            for times, found in slower.items():
                found.append(train_bench(folder, times * processors)["step"]["median_ms"] / plain)
        return [Result(f"time of a training step with {times * processors} threads on {processors} processors: {folder}", f"{processors} threads", 1.1,
                       f"moe bench train {folder} --threads {times * processors}", found, most=True) for times, found in slower.items()]

    return measure


def routing(bench):
    routers = ("top1", "top1+ir+fr", "top2+ir+fr")
    shares = {router: [] for router in routers}
    for _ in range(bench.rounds):
        found = json_of([MOE, "bench", "route", "--threads", 1, "--json", *[word for router in routers for word in ("--router", router)]])
        for router, layer in zip(routers, found["layers"], strict=True):
            shares[router].append(100 * layer["routing"]["median_ms"] / layer["products"]["median_ms"])
    return [Result(f"routing forward and backward, `{router}`: T 4096, D 1024, E 8", "expert GEMMs", 1.5, "moe bench route --threads 1", found, most=True, unit=" %")
            for router, found in shares.items()]


def rectifying(folder):
    """Time that +ir+fr add to the routing of a step, as a share of the step. Rows cost the same for all rules."""
    layers, width, inner = {"S": (4, 256, 704), "M": (8, 512, 1376)}[folder]
    shape = ("--tokens", 1024, "--width", width, "--inner", inner, "--repeats", 25)

    def measure(bench):
        shares = []
        for _ in range(bench.rounds):
            found = json_of([MOE, "bench", "route", "--threads", 1, "--json", *shape, "--router", "top1", "--router", "top1+ir+fr"])
            plain, both = (layer["routing"]["median_ms"] for layer in found["layers"])
            shares.append(100 * layers * (both - plain) / train_bench(folder, 1, "--router", "top1+ir+fr")["step"]["median_ms"])
        command = f"moe bench route --tokens 1024 --width {width} --inner {inner} --threads 1"
        return [Result(f"added routing time of `+ir+fr` over `top1`: {folder}", "a training step", 1, command, shares, most=True, unit=" %")]

    return measure


def harness_beside(bench, task, limit, *more):
    """Returns the result of eval_speed.py for one task, and the command."""
    out = bench.scratch / "eval.json"
    out.unlink(missing_ok=True)
    command = ["eval_speed.py", "--tasks", f"{task}:{limit}", *more]
    text = output_of([sys.executable, HERE / command[0], *command[1:], "--rounds", bench.rounds, "--json", out], 1, (0, 1, 77))
    if not out.is_file():
        raise Lacks(text.strip().splitlines()[-1] if text.strip() else "lm_eval is missing: tests/interop/run.sh installs it")
    return json.loads(out.read_text())["tasks"][0], " ".join(command)


def same(found):
    ties = f", {found['near_ties']} near ties" if found["near_ties"] else ""
    return f"{found['same_choice']} of {found['questions']} {'answers' if found['is_generated'] else 'choices'} equal{ties}"


def evaluation(task, limit, must, *more):
    def measure(bench):
        found, command = harness_beside(bench, task, limit, *more)
        ratios = [one["scoring_s"] / one["moe_s"] for one in found["rounds"]]
        what = "generated answers" if found["is_generated"] else "evaluation"
        precision = ", bf16" if "bf16" in more else ""
        return [Result(f"{what}{precision}, {task}: {limit} questions per task", f"lm-evaluation-harness, batch {found['harness_batch']}, scoring only", must, command,
                       ratios, note=same(found))]

    return measure


def eval_model(bench):
    """Creates the random LLaMA of eval_speed.py (hidden size 256, 6 layers, vocabulary 32000). Returns its folder and that of the benchmarks."""
    need_peer("make_eval_model.py")
    data = pathlib.Path(os.environ.get("MOE_SHARED_DATA", "../shared/data"))
    folder = bench.scratch / "E"
    if not folder.is_dir():
        output_of([sys.executable, PEERS / "make_eval_model.py", data / "llama-tokenizer/tokenizer.model", folder, "--hidden", 256, "--layers", 6,
                   "--inter", 704, "--std", 0.056])
    return folder, data / "bench"


def eval_bf16(bench):
    """Scoring in bf16 relative to our fp32, on processors with AVX512_BF16."""
    folder, data = eval_model(bench)
    if "avx512_bf16" not in pathlib.Path("/proc/cpuinfo").read_text():
        raise Lacks("needs a processor that multiplies bf16 (AVX512_BF16)")
    command = [MOE, "bench", "eval", folder, "--tasks", "hellaswag", "--data", data, "--limit", 100, "--threads", 1, "--json"]
    ratios = []
    for _ in range(bench.rounds):
        wide, narrow = (json_of([*command, "--precision", precision])["sets"][0]["scoring"]["median_ms"] for precision in ("fp32", "bf16"))
        ratios.append(wide / narrow)
    return [Result("evaluation in bf16, hellaswag: 100 questions", "our fp32", 1.7, "moe bench eval E --tasks hellaswag --precision bf16", ratios)]


def generating(bench):
    """Generation of one text: each token reads all active weights. The 25 MB of E may fit the cache, 270 MB do not."""
    small, _ = eval_model(bench)
    large = bench.scratch / "G"
    dense_folder(large, hidden=1024, inner=2816, layers=8)
    results = []
    for name, folder in (("E", small), ("hidden size 1024, 8 layers", large)):
        found = [json_of([MOE, "bench", "generate", folder, "--threads", 1, "--json"]) for _ in range(bench.rounds)]
        note = f"{1e3 / statistics.median(one['step']['median_ms'] for one in found):.0f} tokens/s"
        what = f"generation of one text, {name}: read rate of its {found[0]['active_bytes'] / 1e6:.0f} MB of weights"
        results.append(Result(what, "memory bandwidth", 0.8, f"moe bench generate {folder.name} --threads 1",
                              [one["share_of_read_rate"] for one in found], note=note))
    shutil.rmtree(large)
    return results


def dense_folder(folder, hidden, inner, layers):
    """A random dense LLaMA in bf16."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
              "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
              "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
              "torch_dtype": "bfloat16"}
    source = folder.with_suffix(".json.d")
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    output_of([MOE, "init", source / "config.json", "-o", folder, "--dtype", "bf16"])


def upcycling(bench):
    need_peer("py_upcycle.py")
    free = shutil.disk_usage(bench.scratch).free / 1e9
    if free < 4 * bench.upcycle_gb:  # the dense folder, our output and as many plain writes at once
        raise Lacks(f"needs {4 * bench.upcycle_gb:.0f} GB free in --scratch, there are {free:.0f}")
    dense = bench.scratch / "dense"
    # 0.06 GB per dense layer; a pair of layers, one with 8 experts, is 4.5 times the dense pair
    dense_folder(dense, hidden=2048, inner=5632, layers=max(2, int(bench.upcycle_gb * 4) // 2 * 2))
    python, disk, memory = [], [], []
    for _ in range(bench.rounds):
        lazy = json_of([sys.executable, PEERS / "py_upcycle.py", dense, bench.scratch / "lazy", "--how", "lazy", "--sync"])["seconds"]
        shutil.rmtree(bench.scratch / "lazy")
        found = json_of([MOE, "bench", "upcycle", dense, "-o", bench.scratch / "out", "--layers", "odd", "--repeats", 1, "--json"])
        python.append(1e3 * lazy / found["upcycle"]["median_ms"])
        disk.append(found["disk_share"])
        memory.append(found["anonymous_bytes"] / 2**20)
    shutil.rmtree(dense)
    what, command = f"upcycling to {found['tensor_bytes'] / 1e9:.1f} GB, synced", "moe bench upcycle DENSE -o OUT --layers odd"
    return [Result(what, "lazy Python (as mergekit-moe)", 1.8, command, python), Result(what, "plain large writes, alternating 1 GB pieces", 0.75, command, disk),
            Result(what, "anonymous memory at the start", 64, command, memory, most=True, unit=" MiB", digits=1)]


LOAD = """
import json, sys, time, torch, transformers
torch.set_num_threads(1)
seconds = []
for _ in range(6):
    start = time.process_time()
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    seconds.append(time.process_time() - start)
    del model
print(json.dumps({"first_s": seconds[0], "median_s": sorted(seconds[1:])[2]}))
"""


def loading(bench):
    """Repeated loads in one process of files in the page cache; the first load is measured separately."""
    need_peer("make_toy_checkpoint.py")
    folder = bench.scratch / "M"
    json_of([sys.executable, PEERS / "make_toy_checkpoint.py", folder, "--hidden", 512, "--ffn", 1376, "--layers", 8])
    ratios, firsts, copies, mapped, mapped_firsts = [], [], [], [], []
    for _ in range(bench.rounds):
        theirs = json_of([sys.executable, "-c", LOAD, folder])
        ours = json_of([MOE, "bench", "load", folder, "--threads", 1, "--json"])
        ratios.append(1e3 * theirs["median_s"] / ours["load"]["median_ms"])
        firsts.append(1e3 * theirs["first_s"] / ours["first_ms"])
        mapped.append(1e3 * theirs["median_s"] / ours["mapped"]["load"]["median_ms"])
        mapped_firsts.append(1e3 * theirs["first_s"] / ours["mapped"]["first_ms"])
        copies.append(ours["anonymous_bytes"] / ours["weight_bytes"])
    shutil.rmtree(folder)
    command = "moe bench load M --threads 1"
    return [Result("loading a folder of 706 MB, repeated in one process", "from_pretrained", 4, command, ratios,
                   note=f"{ours['load']['median_ms']:.0f} ms; first load of a process {statistics.median(firsts):.1f}"),
            Result("mapping that folder, as eval and generate do, repeated", "from_pretrained", 20, command, mapped,
                   note=f"{ours['mapped']['load']['median_ms']:.1f} ms; first token after {ours['mapped']['first_token_ms']:.0f} ms"),
            Result("mapping that folder, first load of a process", "from_pretrained", 20, command, mapped_firsts),
            Result("memory for loading", "bytes of the weights", 1.05, command, copies, most=True)]


def starting(bench):
    """CPU seconds of `moe --version`, and their difference to a program that links LibTorch and does nothing."""
    rounds = max(21, bench.rounds)
    seconds = [seconds_of([MOE, "--version"]) for _ in range(5)]
    results = [Result("start of the binary (CPU seconds)", "", 0.5, "moe --version", seconds, most=True, unit=" s")]
    torch = importlib.util.find_spec("torch")
    if torch is None:
        raise Lacks("needs Python's torch")
    folder = pathlib.Path(torch.submodule_search_locations[0]) / "lib"
    bare = bench.scratch / "bare"
    build = ["g++", "-x", "c++", "-", "-o", bare, "-Wl,--no-as-needed", f"-L{folder}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
    subprocess.run([str(word) for word in build], input="int main() {}", text=True, check=True)
    extra = [seconds_of([MOE, "--version"]) - seconds_of([bare]) for _ in range(rounds)]
    results.append(Result("start above that of a bare LibTorch program (CPU seconds)", "", 0.03, "moe --version", extra, most=True, unit=" s", digits=3))
    return results


def spinning(bench):
    """Wall time of training a tiny mixture on two threads, with moe's and other OpenMP wait policies, on idle and on busy cores."""
    tiny = HERE.parent.parent / "recipes/tiny"
    model = bench.scratch / "spin"
    output_of([MOE, "upcycle", tiny / "facts/model", "-o", model, "--experts", 4, "--force", "--quiet"])
    command = [MOE, "train", model, "--data", tiny / "instruct.jsonl", "--steps", 60, "--seq-len", 64, "--micro-batch", 4, "--global-batch", 4, "--cache", "off", "--quiet", "--force"]
    settings = {"moe": {}, "passive": {"OMP_WAIT_POLICY": "PASSIVE"}, "libgomp": {"GOMP_SPINCOUNT": "300000"}}  # libgomp's default without a policy

    def seconds(variables):
        unset = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")}
        start = time.perf_counter()
        subprocess.run([str(word) for word in [*command, "-o", bench.scratch / "spin-run"]], env=unset | variables, check=True, capture_output=True)
        return time.perf_counter() - start

    def round_of():
        return {name: seconds(variables) for name, variables in settings.items()}

    quiet = [round_of() for _ in range(bench.rounds)]
    busy_processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        busy = [round_of() for _ in range(bench.rounds)]
    finally:
        for process in busy_processes:
            process.kill()
    ratio = lambda rounds, peer: [one["moe"] / one[peer] for one in rounds]
    return [Result("training a tiny mixture, a busy process on each core (wall)", "OMP_WAIT_POLICY=PASSIVE", 1.3, "moe train", ratio(busy, "passive"), most=True),
            Result("the same", "libgomp's default", 1.0, "moe train", ratio(busy, "libgomp"), most=True),
            Result("the same on idle cores", "libgomp's default", 1.03, "moe train", ratio(quiet, "libgomp"), most=True),
            Result("the same on idle cores", "OMP_WAIT_POLICY=PASSIVE", 1.03, "moe train", ratio(quiet, "passive"), most=True)]


def processes(bench):
    """`moe train --ranks 2` with one thread each relative to one process of two threads on S: wall seconds per step, and losses."""
    need_peer("make_toy_checkpoint.py")
    if len(os.sched_getaffinity(0)) < 2:
        raise Lacks("needs two processors")
    folder, run, results = bench.scratch / "ranks-S", bench.scratch / "ranks-run", []
    train_speed.make_folder("S", folder)

    def steps(count, micro_batches):
        """Median seconds of a step after three, and the losses."""
        output_of([MOE, "train", folder, "-o", run, "--data", folder / "rows.jsonl", "-q", "--force", "--steps", 13, "--micro-batch", 2, "--global-batch",
                   2 * micro_batches, "--seq-len", 512, "--pack", "none", "--shuffle", "off", "--lr", 1e-4, "--schedule", "constant", "--clip", 1, "--router",
                   "top2:cf=inf", "--ep-ranks", 2, "--threads", 2 // count, *(["--ranks", count] if count > 1 else [])], 2 // count)
        records = [json.loads(line) for line in open(run / "metrics.jsonl")]
        return statistics.median(record["seconds"] for record in records[3:]), [record["loss"] for record in records]

    for micro_batches in (1, 4):
        pairs = [(steps(1, micro_batches), steps(2, micro_batches)) for _ in range(bench.rounds)]
        apart = max(abs(a - b) / abs(a) for (_, one), (_, two) in pairs for a, b in zip(one, two, strict=True))
        what = f"two processes of one thread, S, {micro_batches} micro-batches a step (wall)"
        results += [Result(what, "one process of two threads", 1.1, "all.py --rows processes", [two[0] / one[0] for one, two in pairs], most=True),
                    Result("max. relative difference of losses", "one process", 1e-4, "all.py --rows processes", [apart], most=True, digits=6)]
    shutil.rmtree(folder)
    return results


ROWS = {
    "start": starting,
    "spin": spinning,
    "load": loading,
    "route": routing,
    **{f"rectify-{folder}": rectifying(folder) for folder in ("S", "M")},
    **{f"train-{folder}-{threads}": training(folder, threads) for folder in ("S", "M") for threads in (1, 2)},
    **{f"roof-{folder}-{threads}": roof(folder, threads) for folder in ("S", "M") for threads in (1, 2)},
    **{f"bf16-{folder}": bf16(folder) for folder in ("S", "M")},
    **{f"serial-{folder}": serial(folder) for folder in ("S", "M")},
    "threads-S": oversubscribed("S"),
    "eval-mmlu": evaluation("mmlu", 5, 2.5),
    "eval-hellaswag": evaluation("hellaswag", 100, 5.5),
    "eval-arc": evaluation("arc_easy", 100, 5),
    "eval-piqa": evaluation("piqa", 100, 5),
    "eval-bf16": eval_bf16,
    "eval-bf16-hellaswag": evaluation("hellaswag", 100, 5.5, "--precision", "bf16"),
    "generate-bbh": evaluation("bbh_zeroshot_boolean_expressions", 48, 4, "--batches", "16,48"),
    "generate-one": generating,
    "upcycle": upcycling,
    "processes": processes,
}
