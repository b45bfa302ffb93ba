"""The blocks of the study: rows (what is trained and evaluated) and the papers' claims that are read from them.

A row differs from its block in a few flags alone. Every row of a block starts from the same parent (or the same random weights
where it is from scratch), reads the same data in the same order, and is seeded alike, so that rows are compared pair by pair.
"""
from dataclasses import dataclass, field


@dataclass
class Row:
    name: str
    make: list = field(default_factory=list)   # flags of moe upcycle or moe init; empty: the dense parent itself
    train: list = field(default_factory=list)  # flags of moe train, over the block's
    at_test: list = field(default_factory=list)  # (name, flags of moe eval): the trained row, asked in other ways
    config: str = ""  # of a row from scratch: a file beside this one; empty: the block's


@dataclass
class Claim:
    id: str        # of the list in recipes/study/README.md
    text: str
    better: str    # a row, or "row / at-test name"
    worse: str     # empty: the measure itself is above zero
    published: str
    measure: str = "accuracy"


@dataclass
class Block:
    name: str
    title: str
    kind: str      # "instruct" or "scratch"
    rows: list
    claims: list
    train: list    # flags of moe train that all rows share
    tiny: list     # the same, for a run of seconds that only shows that it works
    baseline: str  # the row that curves and tables are shown against


def _router(name, *extra, train=(), at_test=()):
    return Row(name, ["--experts", "8", "--layers", "all", "--ep-ranks", "8", "--router", *extra], list(train), list(at_test))


def _tests(k):
    """Tables 2, 5, 8 and 9 of Rectify-Router: the plain router's checkpoint, asked with other routers, capacities and ranks."""
    plain = f"top{k}"
    found = [(f"{plain}{more}", ["--router", plain + more]) for more in ("+ir", "+fr", "+ir+fr")]
    found += [(f"{plain}+ir, {ranks} ranks", ["--router", plain + "+ir", "--ep-ranks", str(ranks)]) for ranks in (4, 2)]
    for factor in (0.75, 0.5):
        found += [(f"{plain}{more}, capacity {factor}", ["--router", f"{plain}{more}", "--cf", f"{k * factor:g}"])
                  for more in ("", "+ir")]
    for factor in (1.25, 1.5):
        found += [(f"{plain}{more}, capacity {factor}", ["--router", f"{plain}{more}", "--cf", f"{k * factor:g}"])
                  for more in ("", "+fr")]
    return found


RECTIFY_ROUTER = Block(
    "rectify_router", "Rectify-Router: routers that drop, rectified", "instruct",
    rows=[Row("dense"),
          _router("top1", "top1", at_test=_tests(1)), _router("top1+ir", "top1+ir"), _router("top1+fr", "top1+fr"),
          _router("top1+ir+fr", "top1+ir+fr"),
          _router("top2", "top2", at_test=_tests(2)), _router("top2+ir", "top2+ir"), _router("top2+fr", "top2+fr"),
          _router("top2+ir+fr", "top2+ir+fr"),
          _router("top1+fr, st off", "top1+fr:st=off"), _router("top2, st off", "top2:st=off"),
          _router("top1, lb off", "top1", train=["--lb-coef", "0"]),
          _router("top1+ir+fr, lb off", "top1+ir+fr", train=["--lb-coef", "0"]),
          Row("top1, 32 experts", ["--experts", "32", "--layers", "all", "--ep-ranks", "8", "--router", "top1"]),
          Row("top2+ir+fr, 32 experts", ["--experts", "32", "--layers", "all", "--ep-ranks", "8", "--router", "top2+ir+fr"])],
    claims=[Claim("C1", "plain top-1 does not beat the dense model", "dense", "top1", "+0.41"),
            Claim("C1", "plain top-2 beats the dense model", "top2", "dense", "+0.67"),
            Claim("C2", "IR helps top-1 in training", "top1+ir", "top1", "+1.68"),
            Claim("C2", "IR helps top-1 at test", "top1 / top1+ir", "top1", "+1.23"),
            Claim("C3", "FR helps top-1 in training", "top1+fr", "top1", "+0.34"),
            Claim("C3", "at test FR does not help top-1", "top1", "top1 / top1+fr", "+0.23"),
            Claim("C3", "IR helps top-1 more than FR", "top1+ir", "top1+fr", "+1.34"),
            Claim("C4", "IR and FR are best of top-1", "top1+ir+fr", "top1", "+1.83"),
            Claim("C4", "IR and FR help top-1 at test", "top1 / top1+ir+fr", "top1", "+1.29"),
            Claim("C5", "IR helps top-2", "top2+ir", "top2", "+0.19"),
            Claim("C5", "FR helps top-2", "top2+fr", "top2", "+0.46"),
            Claim("C5", "IR and FR help top-2", "top2+ir+fr", "top2", "+0.75"),
            *[Claim("C5", f"{name} top-2 at test", f"top2 / top2{more}", "top2", p)
              for name, more, p in (("IR helps", "+ir", "+0.31"), ("FR helps", "+fr", "+0.66"), ("IR and FR help", "+ir+fr", "+0.96"))],
            Claim("C6", "top-1: rectified training beats rectified test", "top1+ir+fr", "top1 / top1+ir+fr", "+0.54"),
            Claim("C6", "top-2: rectified test beats rectified training", "top2 / top2+ir+fr", "top2+ir+fr", "+0.21"),
            *[Claim("C8", f"top-{k} loses with {share} of the capacity", f"top{k}", f"top{k} / top{k}, capacity {factor}", p)
              for k, share, factor, p in ((1, "3/4", 0.75, "+0.91"), (1, "half", 0.5, "+3.90"), (2, "3/4", 0.75, "+0.32"), (2, "half", 0.5, "+1.31"))],
            *[Claim("C9", f"with IR top-{k} does not lose with {share} of the capacity", f"top{k} / top{k}+ir, capacity {factor}",
                    f"top{k} / top{k}+ir", p)
              for k, share, factor, p in ((1, "3/4", 0.75, "+0.09"), (1, "half", 0.5, "+0.43"), (2, "3/4", 0.75, "-0.53"), (2, "half", 0.5, "-0.12"))],
            *[Claim("C9", f"top-{k} with IR at half of the capacity beats plain top-{k} at all of it", f"top{k} / top{k}+ir, capacity 0.5",
                    f"top{k}", p) for k, p in ((1, "+1.66"), (2, "+0.19"))],
            *[Claim("C10", f"half as much capacity again helps top-{k}", f"top{k} / top{k}, capacity 1.5", f"top{k}", p)
              for k, p in ((1, "+1.12"), (2, "+0.21"))],
            *[Claim("C10", f"with {factor} of the capacity FR helps top-{k}", f"top{k} / top{k}+fr, capacity {factor}",
                    f"top{k} / top{k}, capacity {factor}", p)
              for k, factor, p in ((1, 1.25, "+0.51"), (1, 1.5, "+0.47"), (2, 1.25, "+0.62"), (2, 1.5, "+0.41"))],
            Claim("C12", "straight-through helps top-1+fr", "top1+fr", "top1+fr, st off", "+0.45"),
            Claim("C12", "straight-through helps top-2", "top2", "top2, st off", "+0.12"),
            Claim("C13", "without balance loss top-1 loses", "top1", "top1, lb off", "+0.53"),
            Claim("C13", "without balance loss top-1+ir+fr loses", "top1+ir+fr", "top1+ir+fr, lb off", "+0.05"),
            Claim("C14", "32 experts are not better than 8, top-1", "top1", "top1, 32 experts", "a picture"),
            Claim("C14", "32 experts are better than 8, top-2 with IR and FR", "top2+ir+fr, 32 experts", "top2+ir+fr", "a picture")],
    train=["--micro-batch", "64", "--global-batch", "64", "--steps", "400"],
    tiny=["--micro-batch", "8", "--global-batch", "8", "--steps", "3"],
    baseline="dense")

_INIT = ["--experts", "16", "--layers", "all", "--ep-ranks", "8", "--router"]
TOP_P = Block(
    "top_p", "Top-p routing: harder tokens, more experts", "scratch",
    rows=[Row("dense"),
          Row("top1", [*_INIT, "top1:cf=inf,gate=selected,st=off,lb=selected"], ["--lb-coef", "0.01"]),
          Row("top1, gate none", [*_INIT, "top1:cf=inf,gate=none,st=off,lb=selected"], ["--lb-coef", "0.01"]),
          Row("top2", [*_INIT, "top2:cf=inf,gate=selected,st=off,lb=selected"], ["--lb-coef", "0.01"]),
          Row("top-p", [*_INIT, "topp:0.4"], ["--lb-coef", "0.01", "--entropy-coef", "0.0001"],
              [(f"p {p}", ["--router", f"topp:{p}"]) for p in (0.1, 0.2, 0.3, 0.5, 0.6, 0.7)]),
          Row("top-p, no entropy loss", [*_INIT, "topp:0.4"], ["--lb-coef", "0.01", "--entropy-coef", "0"])],
    claims=[Claim("C16", "top-1 beats the dense model", "top1", "dense", "+1.9", "held_out"),
            Claim("C16", "top-2 beats the dense model", "top2", "dense", "+2.2", "held_out"),
            Claim("C16", "top-2 beats top-1", "top2", "top1", "+1.1", "held_out"),
            Claim("C17", "top-p beats top-2", "top-p", "top2", "+0.7", "held_out"),
            Claim("C17", "top-p takes fewer experts a token than top-2", "top-p", "top2", "+0.24", "experts"),
            Claim("C18", "experts a token fall during training", "top-p", "", "+0.60", "experts_fall"),
            Claim("C20", "the first layer uses more experts than the last", "top-p", "", "about +3", "experts_down"),
            Claim("C21", "pieces of words use more experts than whole words", "top-p", "", "49 against 90 of 100", "pieces_over_words"),
            *[Claim("C22", f"accuracy drops at p = {p}", "top-p", f"top-p / p {p}", "a picture") for p in (0.1, 0.2)],
            *[Claim("C22", f"accuracy is stable above, p = {p} against 0.4", f"top-p / p {p}", "top-p", "a picture")
              for p in (0.3, 0.5, 0.6, 0.7)],
            Claim("C23", "the entropy loss lowers the experts a token", "top-p", "top-p, no entropy loss", "none", "experts")],
    train=["--steps", "4000"], tiny=["--steps", "3"], baseline="dense")

_RELU = ["--layers", "all", "--ep-ranks", "1", "--router", "relu:k=1"]
_TOPK = ["--layers", "all", "--ep-ranks", "1", "--router", "top1:cf=inf,gate=none,lb=selected"]


def _remoe(name, experts, flags, *more, lb=None, relu=None, config=""):
    flags = [*flags[:-1], relu] if relu else flags
    return Row(name, ["--experts", str(experts), *flags, *more], ["--lb-coef", str(lb)] if lb else [], config=config)


_SMALL = "width32.json"  # 182M.json with half the width


REMOE = Block(
    "remoe", "ReMoE: ReLU routing", "scratch",
    rows=[Row("dense"),
          *[_remoe(f"topk, {e} experts", e, _TOPK, lb=0.01) for e in (4, 8, 16, 32)],
          *[_remoe(f"relu, {e} experts", e, _RELU) for e in (4, 8, 16, 32)],
          *[_remoe(f"topk, granularity {g}", 8, _TOPK, "--granularity", str(g), lb=0.01 / g) for g in (2, 4, 8)],
          *[_remoe(f"relu, granularity {g}", 8, _RELU, "--granularity", str(g)) for g in (2, 4, 8)],
          _remoe("relu, plain L1", 8, _RELU, relu="relu:k=1,l1=plain"),
          *[_remoe(f"relu, lambda from {start}", 8, _RELU, relu=f"relu:k=1,lambda0={start}") for start in ("1e-12", "1e-4")],
          *[_remoe(f"relu, lambda times {times}", 8, _RELU, relu=f"relu:k=1,mult={times}") for times in ("1.05", "2")],
          Row("dense, width 32", config=_SMALL),
          _remoe("topk, width 32", 8, _TOPK, lb=0.01, config=_SMALL),
          _remoe("relu, width 32", 8, _RELU, config=_SMALL)],
    claims=[Claim("C24", "top-k beats the dense model", "topk, 8 experts", "dense", "+0.106", "held_out"),
            Claim("C24", "ReMoE beats top-k", "relu, 8 experts", "topk, 8 experts", "+0.015", "held_out"),
            Claim("C24", "top-k beats the dense model at half the width", "topk, width 32", "dense, width 32", "at every size", "held_out"),
            Claim("C24", "ReMoE beats top-k at half the width", "relu, width 32", "topk, width 32", "at every size", "held_out"),
            *[Claim("C25", f"ReMoE beats top-k with {e} experts", f"relu, {e} experts", f"topk, {e} experts", p, "held_out")
              for e, p in ((4, "+0.010"), (16, "+0.024"), (32, "+0.022"))],
            *[Claim("C26", f"ReMoE beats top-k at granularity {g}", f"relu, granularity {g}", f"topk, granularity {g}", p,
                    "held_out") for g, p in ((2, "+0.010"), (4, "+0.003"), (8, "+0.013"))],
            *[Claim("C27", f"sparsity is held within 0.02 of 1 - k/E, {words}", row, "", "a picture", "sparsity_held")
              for words, row in (("as published", "relu, 8 experts"), ("lambda from 1e-12", "relu, lambda from 1e-12"),
                                 ("lambda from 1e-4", "relu, lambda from 1e-4"), ("lambda times 1.05", "relu, lambda times 1.05"),
                                 ("lambda times 2", "relu, lambda times 2"))],
            *[Claim("C27", f"lambda as published beats lambda {words}", "relu, 8 experts", f"relu, lambda {words}", "none", "held_out")
              for words in ("from 1e-12", "from 1e-4", "times 1.05", "times 2")],
            Claim("C28", "rare tokens use more experts than frequent ones", "relu, 8 experts", "", "recalled", "rare_over_frequent"),
            Claim("C28", "ReMoE's experts tell kinds of text apart more than top-k's", "relu, 8 experts", "topk, 8 experts", "a picture",
                  "source_bits"),
            Claim("C30", "refined L1 spreads the load better than plain L1", "relu, 8 experts", "relu, plain L1", "none", "load"),
            Claim("C30", "refined L1 leaves fewer experts dead", "relu, 8 experts", "relu, plain L1", "none", "dead")],
    train=["--steps", "3000"], tiny=["--steps", "3"], baseline="dense")

_START = ["--experts", "8", "--layers", "all", "--ep-ranks", "8", "--router", "top2:cf=inf"]
_STARTS = (("dropped half", ["--vary", "drop:0.5"], "copies of which half is drawn anew"),
           ("noise", ["--vary", "noise:0.01"], "copies with noise of 1 %"),
           ("granularity 4", ["--granularity", "4"], "feed-forwards cut into 4"),
           ("shared expert", ["--shared-expert"], "a shared expert"),
           ("clustered router", ["--router-init", "cluster:{known}"], "a router from clusters"),
           ("three parents", ["--expert", "{town}:3", "--expert", "{food}:3", "--expert", "{job}:2"],
            "three parents, tuned before for 400 steps on a kind each"))
STARTS = Block(
    "starts", "Ways of starting a mixture", "instruct",
    rows=[Row("dense"), Row("copies", _START), *[Row(name, [*_START, *flags]) for name, flags, _ in _STARTS]],
    claims=[Claim("-", f"{words}: {verb} equal copies", name, "copies", "-", measure)
            for name, _, words in _STARTS
            for measure, verb in (("accuracy", "more questions right than with"), ("loss", "a lower loss than with"))],
    train=RECTIFY_ROUTER.train, tiny=RECTIFY_ROUTER.tiny, baseline="copies")

_CHOICE = ["--experts", "8", "--layers", "all", "--ep-ranks", "8", "--router"]
_DENSE_GATES = ["--gate-scale", "auto"]  # of routers whose gates do not sum to one: the start is near the parent's function
ROUTERS = Block(
    "routers", "Every router on one upcycled parent", "instruct",
    rows=[Row("dense"),
          Row("top1", [*_CHOICE, "top1:cf=inf"]), Row("top2", [*_CHOICE, "top2:cf=inf"]),
          Row("top2, balance by bias", [*_CHOICE, "top2:cf=inf,bias=0.001"]),
          Row("top-p", [*_CHOICE, "topp:0.4", *_DENSE_GATES]),
          Row("relu, k 1", [*_CHOICE, "relu:k=1", *_DENSE_GATES]), Row("relu, k 2", [*_CHOICE, "relu:k=2", *_DENSE_GATES])],
    claims=[Claim("C16", "top-1 beats the dense model", "top1", "dense", "+1.9"),
            Claim("C16", "top-2 beats the dense model", "top2", "dense", "+2.2"),
            Claim("C16", "top-2 beats top-1", "top2", "top1", "+1.1"),
            Claim("C17", "top-p beats top-2", "top-p", "top2", "+0.7"),
            Claim("C17", "top-p takes fewer experts a token than top-2", "top-p", "top2", "+0.24", "experts"),
            Claim("C24", "ReMoE beats top-k, one expert a token", "relu, k 1", "top1", "-"),
            Claim("C24", "ReMoE beats top-k, two experts a token", "relu, k 2", "top2", "-"),
            Claim("-", "balance by a bias beats balance by a loss", "top2, balance by bias", "top2", "-")],
    train=RECTIFY_ROUTER.train, tiny=RECTIFY_ROUTER.tiny, baseline="top2")

BLOCKS = {block.name: block for block in (RECTIFY_ROUTER, TOP_P, REMOE, ROUTERS, STARTS)}
