#!/usr/bin/env bash
# Runs the small twin of a row of a paper's table: creates the model, trains and evaluates it. Prints every command, so that you
# can run it yourself. The twins measured so far take 14 to 44 s on one core; ReLU with 64 or 128 experts takes longer.
#
#   recipes/small.sh recipes/rectify_router/small/top1+ir [RUN]    default RUN: runs/small/rectify_router/top1+ir
#
# Rows with [upcycle]: the parent is the tiny model, fine-tuned on recipes/tiny/instruct.jsonl, evaluated on recipes/tiny/quiz.jsonl.
# Rows with [init]: random weights for the config in the row's name (374M-top1: 374M.json). They read the corpus of
# recipes/tiny/generate.py once, so that the loss of every step is measured on unseen text.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
row=${1:-}
row=${row%.toml}
case "$row" in
  */small/*) row=$(realpath -m --relative-to "$root" -- "$row") ;;
  *) echo "usage: recipes/small.sh recipes/PAPER/small/ROW [RUN]; recipes/row.sh recipes/PAPER names the rows" >&2; exit 2 ;;
esac
run=${2:+$(realpath -m -- "$2")}
cd -- "$root"
recipe=$(recipes/row.sh "$row")
name=$(basename -- "$row")
folder=$(dirname -- "$row")
paper=$(basename -- "$(dirname -- "$folder")")
run=${run:-$root/runs/small/$paper/$name}
if [ -e "$run" ]; then
  echo "small: $run exists already; remove it or give another folder" >&2
  exit 2
fi
tiny=recipes/tiny
moe=${MOE:-./moe}
for tool in python3 "$moe"; do
  command -v "$tool" >/dev/null || { echo "small: $tool not found; install Python 3, build moe by recipes/setup.sh, or name it by MOE" >&2; exit 2; }
done

step() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}
has() { grep -q "^\[$1\]" "$recipe"; }
flags() { recipes/row.sh "$row" "$1"; }  # words without blanks, to be split by the shell

mkdir -p -- "$run"
model=$tiny/model
data=$tiny/instruct.jsonl
if has upcycle; then
  model=$run/model
  step "$moe" upcycle "$tiny/model" -o "$model" $(flags upcycle)
elif has init; then
  model=$run/model
  data=$run/texts/corpus.jsonl
  step python3 -I "$tiny/generate.py" "$run/texts"
  step "$moe" init "$folder/${name%%-*}.json" -o "$model" --tokenizer "$tiny/model" $(flags init)
fi
step "$moe" train "$model" -o "$run/train" --data "$data" $(flags train)
if has eval; then
  step "$moe" eval "$run/train/final" -o "$run/scores" $(flags eval)
fi

# Prints means over the last 20 steps.
python3 -I - "$run/train/metrics.jsonl" <<'PYTHON'
import json
import sys

steps = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")][-20:]
mean = {key: sum(step[key] for step in steps) / len(steps) for key, value in steps[0].items() if type(value) in (int, float)}
said = [f"loss {mean['loss']:.3f}"]
for key, words in (("dropped_share", "share of requests dropped"), ("experts_per_token", "experts a token"), ("sparsity", "sparsity")):
    if key in mean:
        said.append(f"{words} {mean[key]:.3f}")
print("\nlast 20 steps: " + ", ".join(said))
PYTHON
