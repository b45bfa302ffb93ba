#!/usr/bin/env python3
"""The pages of a run (report.html) and of a sweep (sweep.html) in headless Chromium, at phone and desktop width, light and dark.
All panels are drawn within the page, without console messages or requests, and text has enough contrast; a selected step is shown in all
panels; losses have a log scale and a warm-up toggle; text of a run is not executed; the page shows the numbers without its script.

usage: report_page.py [FOLDER]        screenshots go to FOLDER      environment: MOE (the binary)
"""
import json
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from browser import Browser, find_chromium  # noqa: E402
from tally import SHORT, TINY, Tally, moe, write_jsonl  # noqa: E402

HOSTILE = "</script><script>window.broken = 1</script><img src=http://example.invalid/x onerror='window.broken = 2'>"
ROUTING = ["Experts per token", "Dropped", "Filled", "Rectified", "Load", "Router entropy"]
DENSE = ["Loss", "Learning rate", "Gradient norm", "Speed"]

# Returns the lowest WCAG contrast of a text and its background, and the text.
CONTRAST = """(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const luminance = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].filter(n => n.nodeType === 3 && n.data.trim()).map(n => n.data).join("");
    if (!text || !e.getClientRects().length || ["SCRIPT", "NOSCRIPT"].includes(e.tagName)) continue;
    const style = getComputedStyle(e), front = parse(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [luminance(front), luminance(behind(e))].sort((x, y) => y - x);
    worst = (a + 0.05) / (b + 0.05) < worst[0] ? [(a + 0.05) / (b + 0.05), text.slice(0, 40)] : worst;
  }
  return worst;
})()"""
PANELS = """[...document.querySelectorAll("figure.panel")].map(f => ({
  title: f.querySelector("b").textContent,
  drawn: f.querySelector("canvas") ? (c => new Set(c.getContext("2d").getImageData(0, 0, c.width, c.height).data).size > 3)(
    f.querySelector("canvas")) : ([...f.querySelectorAll("path")].some(p => /^M[-\\d.]+ [-\\d.]+/.test(p.getAttribute("d"))) ||
    [...f.querySelectorAll("g rect")].some(r => r.getAttribute("height") > 1)) &&
    !/NaN|undefined|Infinity/.test(f.innerHTML),
  inside: f.getBoundingClientRect().right <= innerWidth && [...f.querySelectorAll("figcaption *, svg")].every(
    e => e.getBoundingClientRect().right <= f.getBoundingClientRect().right),
  readout: f.querySelector(".readout").textContent}))"""
POINT = """(() => { const svg = document.querySelector("svg"), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 50, bubbles: true})); })()"""


# Presses a button of the first panel; returns its caption, the labels of its axes, and whether all numbers are finite.
PRESS = """(text => { const panel = document.querySelector("figure");
  [...panel.querySelectorAll("button")].find(button => button.textContent === text).click();
  return {caption: panel.querySelector(".unit").textContent, labels: [...panel.querySelectorAll("svg text")].map(e => e.textContent),
    pressed: [...panel.querySelectorAll("button")].map(button => button.getAttribute("aria-pressed")),
    drawn: !/NaN|undefined|Infinity/.test(panel.innerHTML)}; })"""


def mixture_run(folder):
    moe("upcycle", TINY / "model", "-o", folder / "model", "--experts", 8, "--router", "top1+ir+fr", "--quiet")
    moe("train", folder / "model", "-o", folder / "mixture", "--data", TINY / "instruct.jsonl", "--config", TINY / "tune.toml", "--steps",
        40, "--warmup", 8, "--eval-data", TINY / "instruct.jsonl", "--eval-rows", 8, "--eval-tasks", TINY / "quiz.jsonl", "--eval-limit", 20, "--threads", 1,
        "--quiet")


def sweep(folder):
    moe("eval", folder / "model", "--tasks", TINY / "quiz.jsonl", "--limit", 20, "--threads", 1, "--sweep", "cf=0.25,1,inf", "--sweep",
        "router=top1,top1+ir", "-o", folder / "sweep")
    moe("eval", folder / "model", "--tasks", TINY / "quiz.jsonl", "--limit", 20, "--threads", 1, "--sweep", "router=top1,top2+ir,topp:0.4",
        "-o", folder / "routers")


def dense_run(folder):
    moe("train", TINY / "model", "-o", folder / "dense", "--data", TINY / "instruct.jsonl", "--config", TINY / "tune.toml", "--steps", 1,
        "--threads", 1, "--quiet")


def hostile_run(folder):
    run = folder / ("hostile" + "-very-long-name" * 8)
    run.mkdir()
    (run / "settings.toml").write_text(f'[train]\nsteps = 2\nmodel = "{HOSTILE}"\n')
    (run / "samples.jsonl").write_text(json.dumps({"step": 0, "prompt": HOSTILE, "text": "\u202e" + "long" * 400}) + "\n")
    (run / "starts.jsonl").write_text(json.dumps({"step": 0, "machine": HOSTILE, "notes": [HOSTILE]}) + "\n")
    lines = [{"step": 1, "loss": None, "lr": 0, "grad_norm": None, "tokens_per_second": 1e300, "skipped_steps": 1},
             {"step": 2, "loss": 1e-9, "lr": 0, "grad_norm": 1e9, "tokens_per_second": 1, "tasks": {HOSTILE: {"acc": 0.5}}}]
    write_jsonl(run / "metrics.jsonl", lines)
    moe("report", run)
    return run


def long_run(folder, steps=20_000 if SHORT else 200_000):
    run = folder / "long"
    run.mkdir()
    with open(run / "metrics.jsonl", "w") as out:
        for step in range(1, steps + 1):
            line = {"step": step, "loss": 2 + 8 / step ** 0.3 + 0.2 * math.sin(step * 1.7), "grad_norm": 50 if step == 777 else 1,
                    "lr": 1e-5 * (1 - step / steps / 2), "tokens_per_second": 5000 + 99 * math.sin(step), "total_tokens": 1024 * step,
                    "seconds": 0.2, "experts_per_token": 1.5, "load_max_over_mean": 1 + step / steps,
                    "layers": [{"layer": layer, "load": [100 + (e * step) % 31 for e in range(8)]} for layer in (0, 2)]}
            out.write(json.dumps(line) + "\n")
    moe("report", run)


class Check(Tally):
    def __init__(self, browser, shots):
        super().__init__()
        self.browser, self.shots = browser, shots

    def count(self, name, wrong):
        self.check(name, not wrong, "; ".join(wrong))

    def page(self, run, titles, most_bytes=2_000_000, name="report.html", place="step", first=("step 0", "step 1", "step 2")):
        page = run / name
        for width in (390, 1440):
            for dark in (width == 1440,) if SHORT else (False, True):
                self.browser.open(page, width, dark=dark)
                wrong = self.look(titles) + self.point(place, first)
                wrong += [] if page.stat().st_size < most_bytes else [f"{page.stat().st_size} bytes"]
                what = f"{run.name[:20]}-{width}-{'dark' if dark else 'light'}"
                if self.shots:
                    self.browser.screenshot(self.shots / f"{what}.png")
                self.count(what, wrong)

    def look(self, titles):
        browser = self.browser
        panels = browser.evaluate(PANELS)
        wrong = browser.complaints() + browser.requests()
        wrong += [f"no panel {title}" for title in titles if title not in [panel["title"] for panel in panels]]
        wrong += [f"{panel['title']} is not drawn" for panel in panels if not panel["drawn"]]
        wrong += [f"{panel['title']} sticks out" for panel in panels if not panel["inside"]]
        sideways = browser.evaluate("document.documentElement.scrollWidth - innerWidth")
        wrong += [f"scrolls sideways by {sideways}"] if sideways > 0 else []
        contrast, text = browser.evaluate(CONTRAST)
        wrong += [f"contrast {contrast:.2f} of '{text}'"] if contrast < 4.5 else []
        wrong += ["a script of the run ran"] if browser.evaluate("window.broken") else []
        return wrong

    # Points at the first curve and presses a key; every panel must show the same place.
    def point(self, place, start):
        self.browser.evaluate(POINT)
        panels = self.browser.evaluate(PANELS)
        wrong = [f"{panel['title']} shows no {place}" for panel in panels if place not in panel["readout"]]
        self.browser.evaluate('document.querySelector("figure").dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}))')
        first = self.browser.evaluate(PANELS)[0]["readout"]
        wrong += [] if first.startswith(start) else [f"Home shows {first}"]
        self.browser.evaluate('document.querySelector("figure").dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}))')
        return wrong

    # Checks the loss panel of a run with 8 warm-up steps of 40.
    def toggles(self, run):
        self.browser.open(run / "report.html", 1440)
        press = lambda text: self.browser.evaluate(f"{PRESS}({json.dumps(text)})")
        log, both, linear = press("log"), press("warm-up"), press("log")
        wrong = [] if "from step 8 on, log scale" in log["caption"] else [f"log says {log['caption']}"]
        wrong += [] if "from step" not in both["caption"] and "log scale" in both["caption"] else [f"both say {both['caption']}"]
        wrong += [] if linear["caption"] == "nats per target token" else [f"linear says {linear['caption']}"]
        wrong += [] if both["pressed"] == ["true", "true"] and linear["pressed"] == ["false", "true"] else ["buttons stay as they are"]
        wrong += [] if {"1", "2", "5", "10"} <= set(both["labels"]) and "0" in both["labels"] else [f"labels {both['labels']}"]
        wrong += [] if log["drawn"] and both["drawn"] and linear["drawn"] else ["not drawn"]
        self.count("log scale and warm-up", wrong)

    def without_script(self, run):
        self.browser.open(run / "report.html", 390, script=False)
        if self.shots:
            self.browser.screenshot(self.shots / "no-script.png")
        self.browser.call("Emulation.setScriptExecutionDisabled", value=False)
        text = self.browser.evaluate("document.body.innerText")
        self.count("without script", [f"no '{part}'" for part in ("switched off", "Loss, training", "Settings") if part not in text])


def main():
    if find_chromium() is None:
        print("skipped: no chromium (apt install chromium)")
        return 77
    shots = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as name:
        folder, browser = pathlib.Path(name), Browser()
        check = Check(browser, shots)
        mixture_run(folder)
        sweep(folder)
        dense_run(folder)
        long_run(folder)
        check.page(folder / "mixture", [*DENSE, *ROUTING, "Accuracy", "Load-balance loss", "Auxiliary losses", "Layer 0", "Layer 2"])
        check.page(folder / "dense", DENSE)
        check.page(folder / "long", [*DENSE, "Experts per token", "Load", "Layer 0", "Layer 2"])
        check.page(hostile_run(folder), DENSE)
        check.page(folder / "sweep", ["quiz, acc", "requests dropped, %", "IR tokens, %", "rows per token"], name="sweep.html", place="cf",
                   first="cf 0.25")
        check.page(folder / "routers", ["quiz, acc", "requests dropped, %", "rows per token"], name="sweep.html", place="router",
                   first="router top1")
        check.toggles(folder / "mixture")
        check.without_script(folder / "mixture")
        browser.close()
    check.finish()


if __name__ == "__main__":
    sys.exit(main())
