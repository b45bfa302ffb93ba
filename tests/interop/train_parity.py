"""`moe train` against transformers with torch's AdamW: loss and gradient norm of every one of the first steps.

usage: train_parity.py [--steps 20] [--batch 4] [--length 128] [--only NAME]

For the real model as it is (LlamaForCausalLM) and for its upcycled top-2 dropless child (Qwen2MoeForCausalLM; auxiliary
loss off; straight-through off, since transformers differentiates through the renormalised weights): rows of
real text in file order, constant learning rate. Then the ways to fill a step: 4 micro-batches of one row, rows of unequal
length (padded on the other side), examples packed into a stream with the plain causal mask, and with the document mask (on the
other side every piece of an example is a sequence of its own). Then random folders of other shapes (tests/support/kin_folders.py), for five
steps: Llama 3's with its real tokenizer, dense and upcycled, and Qwen3's with norms of queries and keys, packed, upcycled and in
bf16. Last line: `N passed, N failed, N skipped`.

Tolerance 1e-4 relative: both sides sum in f32 in different orders. One thing amplifies that without bound: right after
upcycling all experts are equal, so the router's gradient is zero but for rounding (1e-9), and AdamW with eps 1e-8 makes
steps of lr out of it, other ones on each side. Hence the child runs with the paper's small lr, and with a large lr and
eps 1e-6, which leaves that noise where it is: at lr 1e-3 and eps 1e-8 step 4 was 8e-4 apart, with eps 1e-6 all are 1e-6.
Another is a jump: a token whose second and third expert score alike to rounding may go to either. Cut into micro-batches, the
child at lr 1e-3 stays within 5e-7 for four steps, then one token changes its expert (the loads say so) and the loss moves by 6e-4;
at the small lr experts are still so alike that such a token moves nothing.

bf16 is held to torch.autocast, which like ours keeps weights, sums of gradients, norms and the residual stream in fp32 (the router,
which autocast would round too, is left in fp32 on both sides). Both round at a few other places (we round hidden products once, keep
logits unrounded and, where the processor does not multiply bf16, queries and probabilities too), each by up to u = 2^-8. The loss is a mean over n = 500 targets of numbers about 3 whose logits,
up to 10 in size, go through 5 layers of 4 products: sqrt(20) u 10 / sqrt(3 n) = 0.5 % of it at worst; the norm, without such a mean over
targets, may be sqrt(20) u / sqrt(3) = 1 % off in each of forward and backward: 2 %.
"""

import argparse
import contextlib
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import kin_folders  # noqa: E402
from tally import DATA, SHORT, TINY, TRAINED, Tally, moe, read_jsonl, write_jsonl  # noqa: E402

TOLERANCE = (1e-4, 1e-4)  # of loss and norm, relative
BF16_TOLERANCE = (5e-3, 2e-2)
BETAS, CLIP = (0.9, 0.95), 1.0
LEFT_OUT = {"top-2 dropless, 4 micro-batches", "dense, packed, document mask", "top-2 dropless, bf16, layers computed again"}  # of a short run


def story_ids(model, count):
    """Returns BOS and tokens of stories (without the shared data, of instructions), one after the other, at least `count`."""
    encode, bos = kin_folders.encoder(model)
    file = DATA / "text" / "tinystories_v2_train_head.txt"
    stories = (file.read_text().split("<|endoftext|>") if file.exists() else
               [record["instruction"] + " " + record["output"] for record in read_jsonl(TINY / "instruct.jsonl")])
    ids = []
    for story in stories:
        ids += [bos] + encode(story.strip())
        if len(ids) >= count:
            return ids
    return ids


def examples_of(ids, lengths):
    """Cut into examples of these lengths; every fourth learns its second half only."""
    examples, start = [], 0
    for number, length in enumerate(lengths):
        part = ids[start : start + length]
        hidden = length // 2 if number % 4 == 3 else 0
        examples.append((part, [-100] * hidden + part[hidden:]))
        start += length
    return examples


def rows_of(examples, name):
    """Rows with the tokens of `examples`: padded on both sides, three documents in one, or one each."""
    if "padded" in name:
        return [{"input_ids": [0] * 3 + ids + [0] * 2, "labels": [-100] * 3 + labels + [5] * 2,
                 "attention_mask": [0] * 3 + [1] * len(ids) + [0] * 2} for ids, labels in examples]
    size = 3 if "rows of documents" in name else 1
    parts = [examples[i : i + size] for i in range(0, len(examples), size)]
    return [{"input_ids": sum((ids for ids, _ in part), []), "labels": sum((labels for _, labels in part), []),
             "position_ids": [position for ids, _ in part for position in range(len(ids))]} for part in parts]


def in_steps(sequences, options):
    return [sequences[i * options.batch : (i + 1) * options.batch] for i in range(options.steps)]


def stream_steps(examples, options, by_document):
    """The sequences of each step when examples are joined and cut every `length` tokens."""
    rows, row, room = [], [], options.length
    for ids, labels in examples:
        while ids:
            row.append((ids[:room], labels[:room]))
            taken = len(row[-1][0])
            ids, labels, room = ids[taken:], labels[taken:], room - taken
            if room == 0:
                rows.append(row)
                row, room = [], options.length
    if not by_document:
        rows = [[(sum((i for i, _ in row), []), sum((l for _, l in row), []))] for row in rows]
    return [sum(rows[i * options.batch : (i + 1) * options.batch], []) for i in range(options.steps)]


def rounded_products(net):
    """autocast to bf16, but for routers."""
    for module in net.modules():
        if type(module).__name__.endswith("Router"):
            inner = module.forward

            def in_f32(hidden, inner=inner):
                with torch.autocast("cpu", enabled=False):
                    return inner(hidden.float())

            module.forward = in_f32
    return torch.autocast("cpu", dtype=torch.bfloat16)


def reference(model, steps, options, bf16=False):
    """(loss, gradient norm before clipping) of each step, by transformers; a step is a list of sequences (ids, labels)."""
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr, betas=BETAS, eps=options.eps, weight_decay=0.0)
    products = rounded_products(net) if bf16 else contextlib.nullcontext()
    results = []
    for sequences in steps:
        width = max(len(ids) for ids, _ in sequences)
        pad = lambda values, filler: torch.tensor([list(v) + [filler] * (width - len(v)) for v in values])
        ids = pad([ids for ids, _ in sequences], 0)
        labels = pad([labels for _, labels in sequences], -100)
        mask = pad([[1] * len(ids) for ids, _ in sequences], 0)
        with products:
            logits = net(ids, attention_mask=mask).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1), ignore_index=-100
        )
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        results.append((loss.item(), norm.item()))
    return type(net).__name__, results


def ours(model, rows, run, options, changed):
    flags = {"--steps": options.steps, "--seq-len": options.length, "--micro-batch": options.batch, "--global-batch": options.batch,
             "--lr": options.lr, "--eps": options.eps, "--clip": CLIP}
    return kin_folders.train_moe(model, rows, run, flags | changed)


def compare(name, expected, found, tolerance):
    gaps = [[abs(a - b) / abs(a) for a, b in zip(theirs, mine)] for theirs, mine in zip(expected, found, strict=True)]
    is_close = all(gap <= limit for pair in gaps for gap, limit in zip(pair, tolerance))
    tally.check(f"{name}: {len(found)} steps, loss {found[0][0]:.4f} -> {found[-1][0]:.4f}", is_close,
                "loss {:.1e}, norm {:.1e} apart".format(*map(max, zip(*gaps))))


def upcycled(dense, child):
    moe("upcycle", dense, "-o", child, "--layers", "even", "--experts", 8, "--router", "top2:cf=inf,st=off")
    return child


def kin_runs(folder, options):
    """Runs as main() has them, of random folders of other shapes."""
    off, doc, bf16 = {"--lb-coef": 0}, {"--pack": "stream", "--pack-mask": "doc"}, {"--precision": "bf16"}
    names = ["qwen3"] + (["llama3"] if kin_folders.LLAMA3.is_file() and not SHORT else [])
    runs = []
    for name in names:
        dense = folder / name
        kin_folders.make_folder(name, dense)
        child = upcycled(dense, folder / f"{name}-child")
        rows = options.steps * options.batch
        ids = story_ids(dense, 2 * rows * options.length)
        whole = examples_of(ids, [options.length] * rows)
        plain = in_steps(whole, options)
        if name == "llama3":
            runs += [("Llama 3's shape", dense, 1e-3, 1e-8, whole, plain, {}),
                     ("Llama 3's shape, top-2 dropless", child, 1e-3, 1e-6, whole, plain, off)]
            continue
        ragged = examples_of(ids, [17 + 37 * n % (options.length - 17) for n in range(4 * rows)])
        steps = stream_steps(ragged, options, True)
        runs += [("Qwen3's shape, packed, document mask", dense, 1e-3, 1e-8, ragged, steps, doc),
                 ("Qwen3's shape, top-2 dropless", child, 1e-3, 1e-6, whole, plain, off),
                 ("Qwen3's shape, bf16", dense, 1e-4, 1e-8, whole, plain, bf16)]
    return runs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5 if SHORT else 20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--only", default="", help="the runs whose name has this in it")
    options = parser.parse_args()
    dense = TRAINED
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        child = upcycled(dense, folder / "child")
        rows = options.steps * options.batch
        ids = story_ids(dense, 2 * rows * options.length)
        whole = examples_of(ids, [options.length] * rows)
        ragged = examples_of(ids, [17 + 37 * n % (options.length - 17) for n in range(4 * rows)])
        plain, off = in_steps(whole, options), {"--lb-coef": 0}
        stream = {"--pack": "stream"}
        runs = [
            ("dense", dense, 1e-3, 1e-8, whole, plain, {}),
            ("top-2 dropless", child, 1e-3, 1e-6, whole, plain, off),
            ("top-2 dropless", child, 1e-5, 1e-8, whole, plain, off),
            ("dense, 4 micro-batches", dense, 1e-3, 1e-8, whole, plain, {"--micro-batch": 1}),
            ("top-2 dropless, 4 micro-batches", child, 1e-5, 1e-8, whole, plain, off | {"--micro-batch": 1}),
            ("dense, rows of unequal length", dense, 1e-3, 1e-8, ragged, in_steps(ragged, options), {}),
            ("dense, padded rows of unequal length", dense, 1e-3, 1e-8, ragged, in_steps(ragged, options), {}),
            ("dense, rows of documents", dense, 1e-3, 1e-8, ragged, in_steps(ragged, options), {}),
            ("dense, packed", dense, 1e-3, 1e-8, ragged, stream_steps(ragged, options, False), stream),
            ("dense, packed, document mask", dense, 1e-3, 1e-8, ragged, stream_steps(ragged, options, True),
             stream | {"--pack-mask": "doc"}),
            ("top-2 dropless, packed, document mask", child, 1e-3, 1e-6, ragged, stream_steps(ragged, options, True),
             off | stream | {"--pack-mask": "doc"}),
        ]
        bf16 = {"--precision": "bf16"}
        runs += [
            ("dense, bf16", dense, 1e-4, 1e-8, whole, plain, bf16),  # at 1e-3 the loss rises, and roundings with it
            ("top-2 dropless, bf16, layers computed again", child, 1e-5, 1e-8, whole, plain,
             off | bf16 | {"--recompute": "layer"}),
        ]
        first = len(runs)
        few = argparse.Namespace(**vars(options) | {"steps": min(5, options.steps)})
        runs += kin_runs(folder, few)
        kept = [options.only in run[0] and not (SHORT and run[0] in LEFT_OUT) for run in runs]
        for number, (name, model, options.lr, options.eps, examples, steps, changed) in enumerate(runs):
            if not kept[number]:
                continue
            options.steps = few.steps if number >= first else options.steps
            data = folder / f"rows-{number}.jsonl"
            write_jsonl(data, rows_of(examples, name))
            rounds = "--precision" in changed
            kind, expected = reference(model, steps, options, rounds)
            label = f"{name} ({kind}), lr {options.lr:g}, eps {options.eps:g}"
            found = ours(model, data, folder / f"run-{number}", options, changed)
            compare(label, expected, found, BF16_TOLERANCE if rounds else TOLERANCE)


tally = Tally()
tally.run(main)
