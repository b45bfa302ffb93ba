"""The papers' tables in recipes/README.md: beside each published number what the study found, from results/.

A table stands between the lines `<!-- study: NAME -->` and `<!-- end -->`, and is written anew there. Published numbers are read where the
recipes keep them: rows.txt of each paper, and the rows of rectify_router/at_test.sh.
"""
import re
import statistics

from intervals import t_interval


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


def cell(values, digits):
    """Mean and interval over seeds; a dash where the study has no such row."""
    if not values:
        return "-"
    mean, half = t_interval(values)
    return f"{mean:.{digits}f}" + ("" if half is None else f" +- {half:.{digits}f}")


def mean_cell(results, key, scale, digits):
    found = [scale * result[key] for result in results if key in result]
    return f"{statistics.fmean(found):.{digits}f}" if found else "-"


def markdown(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows])


TRAINED = {"top1+fr-st-off": ("6", "top1+fr, st off"), "top2-st-off": ("6", "top2, st off"), "top1-lb-off": ("7", "top1, lb off"),
           "top1-32-experts": ("figure 3", "top1, 32 experts"), "top2-32-experts": ("figure 3", None)}


def rectify_trained(recipes, results):
    for name, published in published_rows(recipes, "rectify_router").items():
        table, row = TRAINED.get(name, ("1", name))
        found = list(results.get(row, {}).values())
        yield [f"`{name}`", table, published[-1] if published[-1] != "numbers" else "a picture",
               cell([result["accuracy"] for result in found], 1), mean_cell(found, "dropped", 100, 1)]


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
        yield [table, f"`{router}`", f"{factor:g}", str(ranks), average, cell([score["accuracy"] for score in scores if score], 1)]


def top_p(recipes, results):
    rows = {"374M-dense": "dense", "374M-top1": "top1", "374M-top2": "top2", "374M-dynamic": "top-p"}
    for name, published in published_rows(recipes, "top_p").items():
        found = list(results.get(rows.get(name), {}).values())
        yield [f"`{name}`", published[-1], cell([result["held_out"] for result in found], 3), mean_cell(found, "experts", 1, 2)]


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
        yield [f"`{name}`", published[-1], cell([result["held_out"] for result in found], 3), mean_cell(found, "sparsity", 1, 3)]


TABLES = {"table 1 of Rectify-Router": ("rectify_router", rectify_trained,
                                        ["row", "table", "published average", "study: questions right, %", "requests dropped there, %"]),
          "tests of Rectify-Router": ("rectify_router", rectify_at_test,
                                      ["table", "router at test", "CF", "ranks", "published average", "study: questions right, %"]),
          "top-p": ("top_p", top_p, ["row", "published average, table 1", "study: held-out loss", "experts a token there"]),
          "ReMoE": ("remoe", remoe, ["row", "published validation loss", "study: held-out loss", "sparsity there"])}


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
