#!/usr/bin/env bash
# Eight routers from one parent, on one data set, alike but for --router: 200 steps on the tiny model, then the quiz. Prints a table
# of loss, quiz accuracy, drops, experts per token and seconds per step. About a quarter of an hour on 2 laptop cores.
#
#   recipes/tiny/routers.sh [RUN]        default RUN: runs/routers
#
# Top-p and ReLU do not keep the parent's function; --gate-scale auto gives them its mean size to start from.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
run=$(realpath -m -- "${1:-$root/runs/routers}")
if [ -e "$run" ]; then
  echo "routers: $run is there already; remove it or give another folder" >&2
  exit 2
fi
cd -- "$root"
tiny=recipes/tiny
moe=${MOE:-./moe}
threads=${OMP_NUM_THREADS:-$(nproc)}

one() {  # NAME ROUTER FLAGS...
  local name=$1 router=$2 scale=1
  shift 2
  case $router in topp* | relu*) scale=auto ;; esac
  "$moe" upcycle "$tiny/model" -o "$run/$name/model" --experts 8 --layers even --router "$router" --gate-scale "$scale" \
    --seed 1 --quiet >/dev/null
  "$moe" train "$run/$name/model" -o "$run/$name/train" --data "$tiny/instruct.jsonl" --config "$tiny/tune.toml" --steps 200 \
    --threads "$threads" --quiet "$@" >/dev/null
  "$moe" eval "$run/$name/train/final" --tasks "$tiny/quiz.jsonl" --bos on -o "$run/$name/scores" --threads "$threads" \
    --quiet >/dev/null
  python3 "$tiny/routers.py" "$run/$name" "$name"
}

mkdir -p -- "$run"
python3 "$tiny/routers.py"
for router in top1 top1+ir top1+fr top1+ir+fr top2 top2+ir+fr topp:0.4 relu:k=1; do one "$router" "$router"; done
one "topp:0.4, no entropy loss" topp:0.4 --entropy-coef 0
one "topp:0.4, 100 times the entropy loss" topp:0.4 --entropy-coef 0.01
