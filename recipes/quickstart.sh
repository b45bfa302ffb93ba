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
tiny=recipes/tiny
threads=$(nproc)
[ "$threads" -le 8 ] || threads=8  # the model is too small for more
made=(scores inspect seconds moe moe-tuned dense-tuned)  # what a quickstart makes, and nothing else is removed
if [ -d "$run_folder" ]; then (cd -- "$run_folder" && rm -rf -- "${made[@]}"); fi
mkdir -p "$run_folder"/{scores,inspect,seconds}
touch "$run_folder/$marker"
run=${run_folder#"$root/"}

step() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}
tune() {  # MODEL OUT
  local start=$SECONDS
  step ./moe train "$1" -o "$run/$2" --data "$tiny/instruct.jsonl" --config "$tiny/tune.toml" --threads "$threads"
  echo $((SECONDS - start)) >"$run/seconds/$2"
}
evaluate() {  # MODEL NAME
  step ./moe eval "$1" --tasks "$tiny/quiz.jsonl" --bos on -o "$run/scores/$2" --threads "$threads"
  ./moe inspect "$1" --json >"$run/inspect/$2.json"
}

step ./moe inspect "$tiny/model"
evaluate "$tiny/model" dense
step ./moe upcycle "$tiny/model" -o "$run/moe" --experts 8 --layers even --router top1+ir+fr --verify
tune "$run/moe" moe-tuned
evaluate "$run/moe-tuned/final" moe-tuned
tune "$tiny/model" dense-tuned
evaluate "$run/dense-tuned/final" dense-tuned
step ./moe generate "$run/moe-tuned/final" --prompt $'What is the opposite of cold?\n' --max-tokens 8

python3 "$tiny/table.py" "$run" "$tiny/quiz.jsonl"
