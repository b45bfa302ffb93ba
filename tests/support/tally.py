"""Checks of a script, one line each, the last line that tests/support/tally.sh counts, and helpers that run moe."""
import json
import os
import pathlib
import subprocess
import sys

SHORT = os.environ.get("MOE_INTEROP_SHORT") == "1"  # of tests/interop: one case per form (tests/interop/run.sh)
MOE = os.environ.get("MOE", "./moe")
DATA = pathlib.Path(os.environ.get("MOE_SHARED_DATA", "../shared/data"))
TINY = pathlib.Path(__file__).resolve().parents[2] / "recipes/tiny"
# A small trained model: the published one, or the repository's if the shared data are absent.
TRAINED = DATA / "stories260K-hf" if (DATA / "stories260K-hf").is_dir() else TINY / "model"


def run_moe(*words, **options):
    return subprocess.run([MOE, *map(str, words)], capture_output=True, text=True, **options)


def moe(*words):
    """Returns the standard output of moe. Ends the script if moe fails."""
    done = run_moe(*words)
    if done.returncode != 0:
        sys.exit(f"FAILED moe {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def differences(new, old, where="", tolerance=0.0):
    """Yields the places where two JSON values differ; numbers may differ by tolerance * (1 + |old|)."""
    if isinstance(new, dict) and isinstance(old, dict) and new.keys() == old.keys():
        for key in old:
            yield from differences(new[key], old[key], f"{where}/{key}", tolerance)
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for index, pair in enumerate(zip(new, old)):
            yield from differences(*pair, f"{where}/{index}", tolerance)
    elif isinstance(new, dict) and isinstance(old, dict):
        yield f"{where}: keys {sorted(new.keys() ^ old.keys())} on one side only"
    elif isinstance(new, list) and isinstance(old, list):
        yield f"{where}: {len(new)} items instead of {len(old)}"
    elif float in (type(new), type(old)) and tolerance and None not in (new, old):
        if abs(new - old) > tolerance * (1 + abs(old)):
            yield f"{where}: {new} instead of {old}"
    elif type(new) is not type(old) or new != old:
        yield f"{where}: {new!r} instead of {old!r}"


def byte_characters():
    """Returns GPT-2's printable character of each byte: visible ones stay, the others become U+0100 and above."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def skip_without(*paths):
    """Ends the script as skipped if a path is absent."""
    for path in paths:
        if not path.exists():
            print(f"skipped: no {path}; set MOE_SHARED_DATA")
            sys.exit(77)


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, good, detail=""):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        print(f"{'ok    ' if good else 'FAILED'} {what}{': ' if detail != '' else ''}{detail}", flush=True)

    def run(self, main):
        """Runs main(), which returns 77 if the script is skipped, and ends the script."""
        if main() == 77:
            sys.exit(77)
        self.finish()

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, 0 skipped")
        sys.exit(1 if self.failed else 0)
