#!/usr/bin/env python3
"""moe route against the numpy oracle on random cases: T to 256, E to 32, W to 32.

The oracle (../oracle next to MOE_SHARED_DATA, plain Python loops in float64) draws each case and computes the expected plan; `moe route`
routes its logits. Decisions must be equal, weights within 1e-5 relative (tests/core/route/oracle_test.cpp compares losses and
gradients). Cases whose contested scores are closer than 1e-5, which fp32 cannot decide, are drawn again.

usage: route_oracle.py [CASES] [SEED]          environment: MOE (the binary), MOE_SHARED_DATA
"""
import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from tally import DATA, SHORT, Tally, differences, run_moe, skip_without  # noqa: E402

ORACLE = DATA / ".." / "oracle"
TOLERANCE = 1e-5
CASES = int(sys.argv[1]) if len(sys.argv) > 1 else 15 if SHORT else 60
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1

skip_without(ORACLE / "make_cases.py")
sys.path.insert(0, str(ORACLE))
import make_cases as oracle  # noqa: E402

oracle.torch = None  # gradients in closed form only: autograd over the loops takes minutes here


def draw(rng, index):
    """Returns a case. Throws AssertionError if its scores are too close for fp32."""
    experts = int(rng.choice([1, 2, 4, 8, 16, 32]))
    ranks = int(rng.choice([w for w in (1, 2, 4, 8, 16, 32) if experts % w == 0]))
    # Many tokens of few experts would almost always have scores that are too close.
    tokens = int(rng.integers(1, 257 if experts >= 8 else 65))
    logits = oracle.logits_of(int(rng.integers(1 << 30)), tokens, experts, float(rng.choice([0.5, 1.0, 3.0])),
                              float(rng.choice([0.0, 0.1, 0.5])))
    valid = None if rng.random() < 0.5 else [bool(v) for v in rng.random(tokens) < 0.9]
    name, family = f"x{index}", rng.choice(["topk", "topk", "topk", "topp", "relu"])
    if family == "topk":
        home = None if rng.random() < 0.5 else [int(r) for r in rng.integers(0, ranks, tokens)]
        return oracle.topk_case(
            name, "", logits, int(rng.integers(1, min(experts, 4) + 1)),
            [0.25, 0.5, 1.0, 1.25, 2.0, 4.0, None][rng.integers(7)], home=home, ranks=ranks, fr=bool(rng.random() < 0.5),
            ir=bool(rng.random() < 0.5), gate_norm=str(rng.choice(["selected", "selected", "none"])), valid=valid, seed=index,
            slot_order=str(rng.choice(["choice", "choice", "score"])))
    if family == "topp":
        cap = None if rng.random() < 0.5 else int(rng.integers(1, experts + 1))
        return oracle.topp_case(name, "", logits, float(rng.choice([0.0, 0.2, 0.4, 0.7, 0.95])), cap, ranks, valid, index)
    return oracle.relu_case(name, "", logits, int(rng.integers(1, experts + 1)), ranks, valid, index,
                            refined=bool(rng.random() < 0.7))


def router_of(case):
    """The case's router as --router takes it."""
    given = case["input"]
    if case["kind"] == "topp":
        return f"topp:{given['p']}" + (f",max={given['max_experts']}" if given.get("max_experts") else "")
    if case["kind"] == "relu":
        return f"relu:k={given['k']},l1={given.get('l1', 'refined')}"
    cf = given["capacity_factor"]
    return (f"top{given['k']}" + "+ir" * bool(given["ir"]) + "+fr" * bool(given["fr"]) + f":cf={'inf' if cf is None else cf},"
            f"gate={given['gate_norm']},order={given.get('slot_order', 'choice')}")


def main():
    rng, cases, redrawn = np.random.default_rng(SEED), [], 0
    while len(cases) < CASES:
        try:
            cases.append(oracle.clean(draw(rng, len(cases))))
        except AssertionError:
            redrawn += 1
    tally = Tally()
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "logits.json"
            file.write_text(json.dumps(case["input"]))
            run = run_moe("route", file, "--router", router_of(case), "--json")
        if run.returncode != 0:
            wrong = [f"moe route ended with {run.returncode}: {run.stderr.strip()}"]
        else:
            wrong = list(differences(json.loads(run.stdout)["expect"], case["expect"], "expect", TOLERANCE))
        given = {k: v for k, v in case["input"].items() if k not in ("logits", "upstream", "home", "valid")}
        tally.check(f"{case['kind']} {given}", not wrong, "".join(wrong[:1]))
    largest = max(case["input"]["num_tokens"] for case in cases)
    print(f"{len(cases)} cases (T to {largest}, {redrawn} draws too close for fp32)")
    tally.finish()


main()
