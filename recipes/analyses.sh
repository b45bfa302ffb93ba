#!/usr/bin/env bash
# Runs an analysis of the papers on a trained mixture. Prints every command of moe, so that you can run it yourself, and a table
# of the quantities that the paper reports.
#
#   analyses.sh ANALYSIS MODEL [FLAGS of moe eval...]
#
#   Rectify-Router, at test only; FLAGS have --tasks and --data, and -o OUT for the plots
#     table2   plain, +ir, +fr, +ir+fr at capacity factor k        table8   plain and +ir at k, 3/4 k, 1/2 k (also table 3)
#     table5   +ir with 1, 2, 4 experts per logical rank           table9   plain and +fr at k, 5/4 k, 3/2 k (also table 4)
#   Dynamic MoE; with --stats-text FILE,.. in FLAGS these read text, at most --limit N texts per file
#     topp-table2  experts per token by source (the paper: 1000 texts each)       topp-fig2  accuracy over p = 0.1 .. 0.7, with --tasks
#     topp-table3  by task, question and correct answer as one text, with --tasks  topp-fig4  by layer
#     topp-table4  vocabulary entries with the most and the fewest experts, of those seen MIN times (MIN=10000)
#     topp-fig3    during training: MODEL is a run, whose checkpoints are read
#   ReMoE
#     remoe-sparsity  MODEL is a run: sparsity, lambda and L1 loss every EVERY steps (EVERY=10)
#     remoe-tokens    experts per token by frequency of the vocabulary entry; remoe-domains: by source (as topp-table2)
#
# recipes/rectify_router/at_test.sh runs the tables of Rectify-Router row by row and prints the published numbers.
set -euo pipefail
unset CDPATH

moe=${MOE:-$(dirname -- "${BASH_SOURCE[0]}")/../moe}
for tool in python3 "$moe"; do
  command -v "$tool" >/dev/null || { echo "analyses: $tool not found; install Python 3, build moe by recipes/setup.sh, or name it by MOE" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

step() {
  printf '$' >&2
  printf ' %q' "$@" >&2
  printf '\n' >&2
  "$@" </dev/null
}
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }

# Prints k of the top-k router of MODEL, or its number of experts.
inspected() {
  "$moe" inspect "$model" --json >"$work/model.json" || exit
  python3 -I -c '
import json, re, sys
moe = json.load(open(sys.argv[2], encoding="utf-8")).get("moe") or sys.exit("analyses: the model is dense, it routes nothing")
if sys.argv[1] == "experts":
    print(moe["experts"])
else:
    k = re.match(r"top(\d+)", moe["router"]) or sys.exit("analyses: this analysis is of a top-k router, the model has " + moe["router"])
    print(k[1])' "$1" "$work/model.json"
}
times() { python3 -I -c 'import sys; print(",".join(f"{int(sys.argv[1]) * float(f):g}" for f in sys.argv[2:]))' "$@"; }
sweep() { step "$moe" eval "$model" "$@"; }

stats() {  # BY FLAGS... -> $work/stats.json
  step "$moe" eval "$model" --stats "$work/stats.json" --stats-by "$@" --force >"$work/out"
}
show() {  # EXPRESSION: a Python expression for the lines to print, in terms of the statistics s
  python3 -I - "$work/stats.json" "$1" <<'PYTHON'
import json
import os
import sys

s = json.load(open(sys.argv[1], encoding="utf-8"))


def table(head, rows):
    """rows: name, experts a token, further cells."""
    most = max((row[1] for row in rows), default=1) or 1
    width = max([len(head)] + [len(str(row[0])) for row in rows])
    print(f"{head:{width}}  experts/token")
    for name, experts, *cells in rows:
        print(f"{str(name):{width}}  {experts:13.3f}  {'=' * round(30 * experts / most)}", *cells, sep="  ")


def by_source():
    total = sum(x["total"]["tokens"] for x in s["source"])
    table("source", [(x["source"], x["total"]["experts_per_token"], f"{x['total']['tokens'] / total:.1%} of the tokens")
                     for x in s["source"]] + [("all", s["total"]["experts_per_token"])])


def by_task():
    rows = [(x["task"], x["gold"]["total"]["experts_per_token"]) for x in s["task"]]
    table("task", rows + [("average", sum(r[1] for r in rows) / len(rows))])


def by_layer():
    table("layer", [(x["layer"], x["experts_per_token"]) for x in s["layers"]])


def by_piece():
    seen = [t for t in s["token"] if t["count"] > int(os.environ.get("MIN", "10000"))]
    if not seen:
        sys.exit("analyses: no vocabulary entry was seen more than MIN times; give more text or a smaller MIN")
    seen.sort(key=lambda t: (-t["experts_per_token"], t["id"]))
    for name, some in (("most", seen[:100]), ("least", seen[::-1][:100])):
        complete = sum(t["complete_word_share"] > 0.5 for t in some)
        print(f"{name} experts: {complete} of {len(some)} are complete words; "
              + " ".join(f"{t['piece']} {t['experts_per_token']:.2f}" for t in some[:12]))


def by_frequency():
    tokens, groups, seen = sorted(s["token"], key=lambda t: -t["count"]), [], 0
    total = sum(t["count"] for t in tokens)
    for t in tokens:  # ten groups with about equal numbers of tokens, most frequent entries first
        if not groups or seen * 10 >= total * len(groups):
            groups.append([])
        groups[-1].append(t)
        seen += t["count"]
    table("times seen", [(f"{g[-1]['count']} to {g[0]['count']}", sum(t["count"] * t["experts_per_token"] for t in g)
                          / sum(t["count"] for t in g), f"{len(g)} entries") for g in groups])


eval(sys.argv[2] + "()")
PYTHON
}

along_training() {
  local checkpoint
  printf '%-14s experts/token\n' checkpoint
  for checkpoint in $(ls -d -- "$model"/checkpoints/step-* | sort -V) "$model"/final; do
    [ -e "$checkpoint/config.json" ] || continue
    step "$moe" eval "$checkpoint" "$@" --json --quiet >"$work/stats.json"
    python3 -I -c 'import json, sys
total = json.load(open(sys.argv[1], encoding="utf-8"))["total"]
print("{:14} {:.3f}".format(sys.argv[2], total["experts_per_token"]))' \
      "$work/stats.json" "$(basename -- "$checkpoint")"
  done
}

sparsity() {
  python3 -I - "$model/metrics.jsonl" "${EVERY:-10}" <<'PYTHON'
import json
import sys

steps = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
if "lambda" not in steps[0]:
    sys.exit("analyses: this run has no ReLU router, its metrics.jsonl has no lambda")
print("   step  sparsity      lambda     L1 loss")
for s in steps:
    if s["step"] % int(sys.argv[2]) == 0 or s is steps[0] or s is steps[-1]:
        print(f"{s['step']:7}  {s['sparsity']:8.4f}  {s['lambda']:10.3e}  {s.get('l1_loss', 0):10.3e}  {'=' * round(30 * s['sparsity'])}")
PYTHON
}

[ $# -ge 2 ] || usage
analysis=$1 model=$2
shift 2
case $analysis in
  table2) k=$(inspected k); sweep --cf "$k" --sweep "router=top$k,top$k+ir,top$k+fr,top$k+ir+fr" "$@" ;;
  table5) k=$(inspected k); e=$(inspected experts); sweep --router "top$k+ir" --cf "$k" --sweep "ep-ranks=$(times "$e" 1 0.5 0.25)" "$@" ;;
  table8) k=$(inspected k); sweep --sweep "router=top$k,top$k+ir" --sweep "cf=$(times "$k" 1 0.75 0.5)" "$@" ;;
  table9) k=$(inspected k); sweep --sweep "router=top$k,top$k+fr" --sweep "cf=$(times "$k" 1 1.25 1.5)" "$@" ;;
  topp-fig2) sweep --sweep p=0.1,0.2,0.3,0.4,0.5,0.6,0.7 "$@" ;;
  topp-table2 | remoe-domains) stats source "$@"; show by_source ;;
  topp-table3) stats task "$@"; show by_task ;;
  topp-fig4) stats layer "$@"; show by_layer ;;
  topp-table4) stats token "$@"; show by_piece ;;
  remoe-tokens) stats token "$@"; show by_frequency ;;
  topp-fig3) along_training "$@" ;;
  remoe-sparsity) sparsity ;;
  *) usage ;;
esac
