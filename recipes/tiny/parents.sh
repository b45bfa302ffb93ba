#!/usr/bin/env bash
# Fine-tunes one base on three kinds of questions and mixes these parents into one model without training it.
# Prints the accuracy per kind of the base, the parents and three mixtures, whose routers are initialized from prompts, from clusters
# or at random.
#
#   recipes/tiny/parents.sh [RUN] [LAYERS] [SEED]    RUN: default runs/parents; LAYERS: 1 (the last layer, default) or all;
#                                                    SEED of the parents' training: default 1
#
# Tokens  3 parents x 400 steps x 32 rows x 128 = 4.9 M, about 25 epochs of a kind's 3,600 questions
# Work    6 x 0.035 M x 4.9 M = 1.0 TFLOP: under two minutes on a laptop core, including the evaluations
#
# Only the feed-forwards of LAYERS are trained (--train): all other weights of the parents equal those of the base.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
run=$(realpath -m -- "${1:-$root/runs/parents}")
if [ -e "$run" ]; then
  echo "parents: $run exists already; remove it or give another folder" >&2
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
  grep '^router init' "$run/$name.txt" || true  # not printed for a random router
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
