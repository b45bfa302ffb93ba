#!/usr/bin/env python3
"""Writes the small Parquet files of the tests of core/data and core/eval; needs pyarrow (recipes/parquet.txt).

python3 tests/golden/make_parquet.py        (deterministic; the files are in the tree)
"""
import pathlib

import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).resolve().parent


def write(name, columns, **options):
    pyarrow.parquet.write_table(pyarrow.table(columns), HERE / name, store_schema=False, **options)


# OpenOrca's own columns, in two row groups.
write("orca.parquet", {"id": ["a.1", "a.2", "a.3"], "system_prompt": ["", "S", None], "question": ["Q?", "\u00e9", "x"],
                       "response": ["R", "r", "y"]}, row_group_size=2, compression="zstd")
messages = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]]
write("chat.parquet", {"messages": messages, "score": [0.5], "good": [True]})
write("rows.parquet", {"input_ids": [[1, 75, 76]], "labels": [[-100, -100, 76]]})
# BoolQ's columns on the Hub.
write("boolq.parquet", {"question": ["is it", "why  \u00e9"], "passage": ["P.", "Q."], "idx": [0, 1], "label": [1, 0]})
