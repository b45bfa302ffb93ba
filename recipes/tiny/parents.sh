#!/usr/bin/env bash
# Three parents of one base, each tuned on another kind of question, mixed into one model that nobody trains: does it answer all three?
# Prints the share of questions right by kind for the base, the parents and the mixtures, whose routers start from prompts, from
# clusters or at random.
#
#   recipes/tiny/parents.sh [RUN] [LAYERS] [SEED]    default RUN: runs/parents; LAYERS: 1, the last one alone, or all; SEED of the
#                                                    parents' training: 1
#
# Tokens  3 parents x 400 steps x 32 rows x 128 = 4.9 M, about 25 epochs of a kind's 3,600 questions
# Work    6 x 0.035 M x 4.9 M = 1.0 TFLOP: under two minutes of a laptop core, evaluations included
#
# Only the feed-forwards of LAYERS are tuned (--train), so that all else is the base's in every parent and fits every expert.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
run=$(realpath -m -- "${1:-$root/runs/parents}")
if [ -e "$run" ]; then
  echo "parents: $run is there already; remove it or give another folder" >&2
  exit 2
fi
layers=${2:-1}
case $layers in
  all) tuned=dense ;;
  1) tuned='model.layers.1.mlp.*' ;;
  *) echo "parents: LAYERS is all or 1, not '$layers'" >&2; exit 2 ;;
esac
seed=${3:-1}
cd -- "$root"
tiny=recipes/tiny
base=$tiny/facts/model
moe=${MOE:-./moe}
threads=${OMP_NUM_THREADS:-$(nproc)}

evaluate() {  # MODEL NAME
  "$moe" eval "$1" --tasks "$run/quiz.jsonl" --bos on -o "$run/scores/$2" --threads "$threads" --quiet >/dev/null
}
mix() {  # NAME FLAGS...
  local name=$1
  shift
  "$moe" upcycle "$base" -o "$run/$name" --expert "$run/town" --expert "$run/food" --expert "$run/job" --layers "$layers" --router top1:cf=inf \
    --seed 1 --quiet "$@" >"$run/$name.txt"
  grep '^router start' "$run/$name.txt" || true  # a random router is not measured
  evaluate "$run/$name" "$name"
}

mkdir -p -- "$run/scores"
python3 -I "$tiny/facts.py" "$run/texts"
python3 -I "$tiny/parents.py" texts "$run"
evaluate "$base" base
for kind in town food job; do
  "$moe" train "$base" -o "$run/train-$kind" --data "$run/$kind.jsonl" --config "$tiny/facts/tune.toml" --steps 400 --train "$tuned" \
    --seed "$seed" --threads "$threads" --quiet >/dev/null
  cp -r -- "$run/train-$kind/final" "$run/$kind"
  evaluate "$run/$kind" "parent-$kind"
done
mix mixture-prompts --router-init "prompts:$run/prompts.json"
mix mixture-cluster --router-init "cluster:$run/texts/known.jsonl"
mix mixture-random
python3 -I "$tiny/parents.py" table "$run"
