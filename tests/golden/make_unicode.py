"""Writes unicode.json: the results of Python's str methods and \\w for every assigned character (Python 3.11: Unicode 14.0)."""
import json
import pathlib
import re
import sys
import unicodedata

characters = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cn", "Cs")]


def ranges(holds):
    """Returns [first, last, first, last, ...] of the characters for which `holds` is true."""
    result = []
    for c in (ord(c) for c in characters if holds(c)):
        if result and result[-1] == c - 1:
            result[-1] = c
        else:
            result += [c, c]
    return result


def changes(function):
    """Returns each character that the function changes, followed by the result."""
    return [c + function(c) for c in characters if function(c) != c]


golden = {
    "unicode": unicodedata.unidata_version,
    "assigned": ranges(lambda c: True),
    "space": ranges(str.isspace),
    "word": ranges(lambda c: re.match(r"\w", c)),
    "punctuation": ranges(lambda c: unicodedata.category(c).startswith("P")),
    "lower": changes(str.lower),
    "capitalize": changes(str.capitalize),
}
text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
pathlib.Path(__file__).with_name("unicode.json").write_text(text + "\n", encoding="utf-8")
