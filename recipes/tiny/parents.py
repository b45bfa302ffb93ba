#!/usr/bin/env python3
"""Three parents, one base, each tuned on another kind of question: their texts, the prompts of their experts, and the table.

  parents.py texts RUN     of RUN/texts (facts.py): RUN/KIND.jsonl, what a parent is tuned on; RUN/quiz.jsonl, the questions of these
                           kinds; RUN/prompts.json, for `moe upcycle --router-init prompts:FILE`
  parents.py table RUN     the share of questions right by kind, and whether the claim holds

The prompts of an expert are questions that its parent was tuned on, as they are asked: they end where the answer begins.
The table ends with the kinds, if any, of which the mixture with prompts is not better than the base and within 10 points of the
kind's parent.
"""
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))  # python3 -I does not
from facts import KINDS  # noqa: E402

PARENTS = ["town", "food", "job"]
PROMPTS = 24  # of each parent
MARGIN = 10


def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def kind_of(question):
    """The kind whose wording `question` has."""
    for kind, (_, wordings) in KINDS.items():
        for before, after in (wording.split("{n}") for wording in wordings):
            if question.startswith(before) and question.endswith(after):
                return kind
    raise SystemExit(f"parents: no kind asks '{question}'")


def write_texts(run):
    instructions = {kind: [] for kind in KINDS}
    for record in lines(run / "texts" / "instruct.jsonl"):
        instructions[kind_of(record["instruction"])].append(record)
    for kind in PARENTS:
        write_lines(run / f"{kind}.jsonl", instructions[kind])
    write_lines(run / "quiz.jsonl", [item for item in lines(run / "texts" / "quiz.jsonl") if item["source"] in PARENTS])
    prompts = {kind: [record["instruction"] + "\n" for record in instructions[kind][:PROMPTS]] for kind in PARENTS}
    (run / "prompts.json").write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")


def accuracies(run, name, quiz):
    """{kind: per cent}"""
    right = {kind: [] for kind in PARENTS}
    for sample in lines(run / "scores" / name / "samples_quiz.jsonl"):
        right[quiz[sample["doc_id"]]["source"]].append(sample["acc"])
    return {kind: 100 * sum(values) / len(values) for kind, values in right.items()}


def write_table(run):
    quiz = lines(run / "quiz.jsonl")
    names = sorted(path.name for path in (run / "scores").iterdir())
    scores = {name: accuracies(run, name, quiz) for name in names}
    print(f"\n{'questions right, %':<22}" + "".join(f"{kind:>10}" for kind in PARENTS) + f"{'mean':>10}")
    for name in names:
        cells = [scores[name][kind] for kind in PARENTS]
        print(f"{name:<22}" + "".join(f"{cell:>10.1f}" for cell in [*cells, sum(cells) / len(cells)]))
    error = 100 * math.sqrt(0.25 * len(PARENTS) / len(quiz))
    print(f"\n{len(quiz)} questions of four choices: chance is 25, one standard error of a kind at most {error:.1f} points")
    wrong = [kind for kind in PARENTS if not (scores["mixture-prompts"][kind] > scores["base"][kind]
                                              and scores["mixture-prompts"][kind] >= scores[f"parent-{kind}"][kind] - MARGIN)]
    if wrong:
        print(f"with prompts the mixture is not both above the base and within {MARGIN} points of the parent for {', '.join(wrong)}")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("texts", "table"):
        sys.exit(__doc__)
    (write_texts if sys.argv[1] == "texts" else write_table)(pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
