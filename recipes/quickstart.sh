#!/usr/bin/env bash
# The main job on the embedded tiny model: upcycle a dense LLaMA, tune it on instructions, evaluate before and after. After
# the build it takes under three minutes on 2 cores, and every command it runs is printed, so that you can run it yourself.
#
#   recipes/quickstart.sh [RUN]      RUN = the folder for everything it makes; what an earlier one made there is replaced;
#                                    default runs/quickstart
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in
  -*) echo "quickstart: unknown option '$1'; usage: recipes/quickstart.sh [RUN]" >&2; exit 2 ;;
  '') run_folder=$root/runs/quickstart ;;
  *) run_folder=$(realpath -m -- "$1") ;;
esac
marker=.moe-quickstart  # only what an earlier quickstart made is ever removed
if [ -e "$run_folder" ] && [ ! -e "$run_folder/$marker" ] && [ -n "$(ls -A -- "$run_folder")" ]; then
  echo "quickstart: $run_folder holds something else; give another folder" >&2
  exit 2
fi

"$root/recipes/setup.sh"

cd -- "$root"
tiny=recipes/tiny/facts
threads=$(nproc)
[ "$threads" -le 8 ] || threads=8  # the model is too small for more
made=(scores inspect texts stats.json page.json quickstart.html moe moe-tuned dense-tuned dense-longer)  # what a quickstart makes;
# nothing else is removed
if [ -d "$run_folder" ]; then (cd -- "$run_folder" && rm -rf -- "${made[@]}"); fi
mkdir -p "$run_folder"/{scores,inspect}
touch "$run_folder/$marker"
run=${run_folder#"$root/"}

step() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}
tune() {  # MODEL OUT FLAGS...
  local model=$1 out=$2
  shift 2
  step ./moe train "$model" -o "$run/$out" --data "$run/texts/instruct.jsonl" --config "$tiny/tune.toml" --threads "$threads" \
    --eval-tasks "$run/texts/quiz.jsonl" --eval-limit 400 "$@"
}
evaluate() {  # MODEL NAME FLAGS...
  local model=$1 name=$2
  shift 2
  step ./moe eval "$model" --tasks "$run/texts/quiz.jsonl" --bos on -o "$run/scores/$name" --threads "$threads" "$@"
  ./moe inspect "$model" --json >"$run/inspect/$name.json"
}

step ./moe inspect "$tiny/model"
step python3 recipes/tiny/facts.py "$run/texts"
evaluate "$tiny/model" dense
step ./moe upcycle "$tiny/model" -o "$run/moe" --experts 8 --layers all --router top2 --verify
tune "$run/moe" moe-tuned
evaluate "$run/moe-tuned/final" moe-tuned --stats "$run/stats.json" --stats-by source
tune "$tiny/model" dense-tuned
evaluate "$run/dense-tuned/final" dense-tuned
tune "$tiny/model" dense-longer --steps "$(python3 recipes/tiny/table.py steps "$run")"
evaluate "$run/dense-longer/final" dense-longer
subject=$(sed -n '/"Where does [A-Z][a-z]* live/{s/.*"Where does \([A-Z][a-z]*\) live.*/\1/p;q}' "$run/texts/instruct.jsonl")
step ./moe generate "$run/moe-tuned/final" --prompt "Where does $subject live?"$'\n' --max-tokens 8

python3 recipes/tiny/table.py "$run" "$run/texts/quiz.jsonl"
step ./moe report "$run/page.json" -o "$run/quickstart.html"
