"""The papers' tables in recipes/README.md: the published numbers, and of which rows the study has runs, from results/.

A table stands between the lines `<!-- study: NAME -->` and `<!-- end -->`, and is written anew there. Published numbers are read where the
recipes keep them: rows.txt of each paper, and the rows of rectify_router/at_test.sh.
"""
import re


def published_rows(recipes, paper):
    """{row: its published numbers, words} of a paper's rows.txt."""
    lines = (recipes / paper / "rows.txt").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line and not line.startswith("#")]
    return {row[0]: row[2].split() for row in cells}


def at_test_rows(recipes):
    """(table, router, capacity factor, ranks, published average) of tables 2, 5, 8 and 9, each test once."""
    found = {}
    for line in (recipes / "rectify_router" / "at_test.sh").read_text().splitlines():
        cells = line.split()
        if re.match(r"[2589] +[12] +top", line):
            table, k, router, factor, ranks, *_, average = cells
            found.setdefault((int(k), router, float(factor), 8 if ranks == "-" else int(ranks)), (table, average))
    return [(*place, *words) for place, words in sorted(found.items(), key=lambda item: (item[0][0], item[1][0]))]


def seeds_cell(results):
    """How many seeds of a row the study has; a dash where it has none. Its numbers are not put beside published ones: they are those of
    other models on other questions."""
    return str(len(results)) if results else "-"


def markdown(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows])


TRAINED = {"top1+fr-st-off": ("6", "top1+fr, st off"), "top2-st-off": ("6", "top2, st off"), "top1-lb-off": ("7", "top1, lb off"),
           "top1-32-experts": ("figure 3", "top1, 32 experts"), "top2-32-experts": ("figure 3", None)}


def rectify_trained(recipes, results):
    for name, published in published_rows(recipes, "rectify_router").items():
        table, row = TRAINED.get(name, ("1", name))
        found = list(results.get(row, {}).values())
        yield [f"`{name}`", table, published[-1] if published[-1] != "numbers" else "a picture",
               seeds_cell(found)]


def test_name(k, router, factor, ranks):
    """The study's name of a test of a top-k checkpoint; none where it is the checkpoint's own routing."""
    if factor != k:
        return f"{router}, capacity {factor / k:g}"
    if ranks != 8:
        return f"{router}, {ranks} ranks"
    return "" if router == f"top{k}" else router


def rectify_at_test(recipes, results):
    for k, router, factor, ranks, table, average in at_test_rows(recipes):
        name, found = test_name(k, router, factor, ranks), results.get(f"top{k}", {}).values()
        scores = [result["at_test"].get(name) if name else result for result in found]
        yield [table, f"`{router}`", f"{factor:g}", str(ranks), average, seeds_cell([score for score in scores if score])]


def top_p(recipes, results):
    rows = {"374M-dense": "dense", "374M-top1": "top1", "374M-top2": "top2", "374M-dynamic": "top-p"}
    for name, published in published_rows(recipes, "top_p").items():
        found = list(results.get(rows.get(name), {}).values())
        yield [f"`{name}`", published[-1], seeds_cell(found)]


def remoe_row(name):
    """The study's row of one of the recipe's: its model is that of the twin of 182M."""
    size, kind, *more = name.split("-")
    if size != "182M" or kind == "dense":
        return "dense" if name == "182M-dense" else None
    if more and more[0].startswith("g"):
        return f"{kind}, granularity {more[0][1:]}"
    return f"{kind}, {more[0][1:] if more else 8} experts"


def remoe(recipes, results):
    for name, published in published_rows(recipes, "remoe").items():
        found = list(results.get(remoe_row(name), {}).values())
        yield [f"`{name}`", published[-1], seeds_cell(found)]


STUDY_HEAD = "seeds of its twin in the study"
TABLES = {"table 1 of Rectify-Router": ("rectify_router", rectify_trained,
                                        ["row", "table", "published average", STUDY_HEAD]),
          "tests of Rectify-Router": ("rectify_router", rectify_at_test,
                                      ["table", "router at test", "CF", "ranks", "published average", STUDY_HEAD]),
          "top-p": ("top_p", top_p, ["row", "published average, table 1", STUDY_HEAD]),
          "ReMoE": ("remoe", remoe, ["row", "published validation loss", STUDY_HEAD])}


def write_paper_tables(recipes, results):
    """Writes each table of TABLES into recipes/README.md; an error where one has no place there."""
    file = recipes / "README.md"
    text = file.read_text()
    for name, (block, rows, head) in TABLES.items():
        table = markdown(head, rows(recipes, results[block]))
        place = rf"(<!-- study: {re.escape(name)} -->\n)[^<]*(<!-- end -->)"
        text, places = re.subn(place, lambda found: f"{found[1]}{table}\n{found[2]}", text)
        if places != 1:
            raise RuntimeError(f"{file}: {places} places for the table '{name}', expected 1")
    file.write_text(text)
