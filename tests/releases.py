#!/usr/bin/env python3
"""Whether the releases named in recipes/setup.sh have the packages that it installs, none older than in the release that the
checks run on (Debian 12). Reads each release's package index; skips, saying so, where no network leads there. The last line is
`N passed, N failed, N skipped`.
"""
import lzma
import pathlib
import re
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))
from tally import Tally  # noqa: E402

DEBIAN = "http://deb.debian.org/debian/dists/{}/{}/binary-amd64/Packages.xz"
UBUNTU = "http://archive.ubuntu.com/ubuntu/dists/{}/{}/binary-amd64/Packages.xz"
# Name, index, code name, components; the first is the one that others are compared with.
RELEASES = [("Debian 12", DEBIAN, "bookworm", ["main"]), ("Debian 13", DEBIAN, "trixie", ["main"]),
            ("Ubuntu 24.04", UBUNTU, "noble", ["main", "universe"])]


def numbers_of(version):
    """1:0.0~git20231202.5354032-3 -> [0, 0, 20231202]: upstream's leading numbers, what a distribution appended left out."""
    upstream = re.sub(r"^\d+:", "", version).rsplit("-", 1)[0].replace("~git", ".").split("+")[0].split(".dfsg")[0]
    return [int(part) for part in re.findall(r"(?:^|\.)(\d+)(?=\.|$)", upstream)]


def index_of(url, names):
    """{package: version} of those among `names` that an index holds."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = lzma.decompress(answer.read()).decode()
    found = {}
    for entry in text.split("\n\n"):
        name = re.match(r"Package: (.*)", entry)
        if name and name[1] in names:
            found[name[1]] = re.search(r"^Version: (.*)", entry, re.M)[1]
    return found


def compare(tally):
    names = subprocess.run([ROOT / "recipes/setup.sh", "--checks", "--list"], check=True, capture_output=True, text=True).stdout.split()
    assert len(names) > 10, names
    releases = {}
    try:
        for release, url, code_name, components in RELEASES:
            releases[release] = {}
            for component in components:
                releases[release].update(index_of(url.format(code_name, component), set(names)))
    except OSError as error:
        print(f"skipped: an index cannot be read: {error}")
        return 77
    reference = releases[RELEASES[0][0]]
    for release, versions in releases.items():
        for name in names:
            have, least = versions.get(name), reference.get(name)
            enough = have is not None and least is not None and numbers_of(have) >= numbers_of(least)
            tally.check(f"{release} has {name}", enough, f"{have}, at least {least}")
    return 0


tally = Tally()
tally.run(lambda: compare(tally))
