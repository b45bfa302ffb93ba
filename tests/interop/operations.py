#!/usr/bin/env python3
"""The operations moe::* called from Python, as torch.ops.load_library gives them: permute, unpermute and the grouped SwiGLU, with
their gradients, equal plain torch.

environment: MOE (the binary; libmoe_ops.so is beside it)
"""
import os
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from tally import Tally  # noqa: E402

torch.ops.load_library(str(pathlib.Path(os.environ.get("MOE", "./moe")).resolve().parent / "libmoe_ops.so"))
moe, tally = torch.ops.moe, Tally()
TOKENS, WIDTH, EXPERTS, CHOICES, INNER = 33, 16, 4, 2, 24


def grouped_swiglu(rows, gate_up, down, counts):
    """The feed-forward of each expert over its rows, one after the other."""
    results = []
    for part, up, back in zip(rows.split(counts), gate_up, down):
        gate, value = (part @ up.T).chunk(2, dim=1)
        results.append((torch.nn.functional.silu(gate) * value) @ back.T)
    return torch.cat(results)


def close(what, actual, expected, bound):
    """`bound` is relative to the largest expected number."""
    distance = ((actual.double() - expected.double()).abs().max() / expected.double().abs().max()).item()
    tally.check(what, actual.dtype == expected.dtype and distance <= bound, f"distance {distance:.1e} (at most {bound:.0e})")


def gradients(result, upstream, inputs):
    return torch.autograd.grad(result, inputs, upstream)


def main():
    torch.manual_seed(1)
    chosen = torch.rand(TOKENS, EXPERTS).topk(CHOICES).indices
    expert, order = chosen.flatten().sort(stable=True)
    token, counts = order // CHOICES, torch.bincount(expert, minlength=EXPERTS).tolist()
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-12)):  # sums of at most 33 terms, relative to their largest
        def leaf(*shape, scale=1.0):
            return (torch.randn(*shape, dtype=dtype) * scale).requires_grad_()
        x, weight, residual = leaf(TOKENS, WIDTH), leaf(len(token)), leaf(TOKENS, WIDTH)
        gate_up, down = leaf(EXPERTS, 2 * INNER, WIDTH, scale=0.2), leaf(EXPERTS, WIDTH, INNER, scale=0.2)
        inputs, upstream = (x, weight, residual, gate_up, down), torch.randn(TOKENS, WIDTH, dtype=dtype)

        rows = moe.permute(x, token, CHOICES)
        tally.check(f"permute, {dtype}", torch.equal(rows, x[token]))
        out = moe.grouped_swiglu(rows, gate_up, down, counts)
        close(f"grouped_swiglu, {dtype}", out, grouped_swiglu(x[token], gate_up, down, counts), bound)
        y = moe.unpermute(out, token, TOKENS, CHOICES, weight, residual)
        expected = residual.index_add(0, token, grouped_swiglu(x[token], gate_up, down, counts) * weight[:, None])
        close(f"a layer: unpermute with weights and a residual, {dtype}", y, expected, bound)
        names = ("x", "weight", "residual", "gate_up", "down")
        for name, ours, plain in zip(names, gradients(y, upstream, inputs), gradients(expected, upstream, inputs)):
            close(f"gradient of {name}, {dtype}", ours, plain, bound)
        with torch.inference_mode():
            close(f"inference mode, {dtype}", moe.unpermute(out.detach(), token, TOKENS, CHOICES, weight.detach(), residual.detach()),
                  expected.detach(), bound)
    for what, call in (("rows of another number", lambda: moe.unpermute(torch.zeros(3, 2), token, TOKENS, CHOICES)),
                       ("tokens that are no int64", lambda: moe.permute(torch.zeros(3, 2), torch.zeros(2), 1)),
                       ("rows of f16", lambda: moe.permute(torch.zeros(TOKENS, 2).half(), token, CHOICES))):
        try:
            call()
            tally.check(f"{what} are refused", False)
        except RuntimeError as error:
            tally.check(f"{what} are refused", True, str(error).splitlines()[0])


tally.run(main)
