#!/usr/bin/env bash
# The main job on the embedded tiny model: upcycle a dense LLaMA, tune it on instructions, evaluate before and after. After
# the build it takes under three minutes on 2 cores, and every command it runs is printed, so that you can run it yourself.
#
#   recipes/quickstart.sh [RUN] [--short]    RUN = the folder for everything it makes, runs/quickstart by default. The files
#                                            of an earlier quickstart are replaced (RUN/.moe-quickstart lists them), no others.
#
# --short: a third of the steps, a quarter of the questions, and no dense model is tuned beside the mixture.
#
# Where MOE names the binary, as `moe quickstart` does, nothing is set up or built. PYTHON is a Python 3 (python3).
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
run_folder=$root/runs/quickstart short=no
for word in "$@"; do
  case "$word" in
    --short) short=yes ;;
    -*) echo "quickstart: unknown option '$word'; usage: recipes/quickstart.sh [RUN] [--short]" >&2; exit 2 ;;
    *) run_folder=$(realpath -m -- "$word") ;;
  esac
done
# The files that this script and its Python write. What moe writes is replaced by moe with --force, which checks its own lists.
own=(texts/{known,instruct,quiz}.jsonl inspect/{dense,moe-tuned,dense-tuned,dense-longer}.json stats.json page.json quickstart.html)
list=$run_folder/.moe-quickstart
stop() { echo "quickstart: $*" >&2; exit 2; }
if [ -e "$run_folder" ]; then
  [ -d "$run_folder" ] || stop "$run_folder is no folder; give another one"
  [ -f "$list" ] || [ -z "$(ls -A -- "$run_folder")" ] || stop "$run_folder holds something else; give another folder"
  for name in .moe-quickstart texts inspect scores moe moe-tuned dense-tuned dense-longer; do
    [ ! -L "$run_folder/$name" ] || stop "$run_folder/$name is a link, and nothing is written through it; give another folder"
  done
  for name in "${own[@]}"; do
    file=$run_folder/$name
    if [ -e "$file" ] || [ -L "$file" ]; then
      { [ -f "$file" ] && [ ! -L "$file" ] && grep -qxF -- "$name" "$list"; } ||
        stop "$file is not in the list of what a quickstart made there (${list##*/}); move it, or give another folder"
    fi
  done
fi
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "quickstart: no $python here, which writes the texts and the table; install Python 3, or name one: PYTHON=/path/to/python3" >&2
  exit 2
fi

# What comes, with seconds on 2 cores.
if [ -z "${MOE:-}" ] && [ ! -x "$root/moe" ]; then
  echo "First LibTorch is fetched (about a minute) and moe is built (4 minutes on 2 cores); then:"
fi
tuning="3  tune it on 14,400 instructions, 1,200 steps (45 s)
  4  tune the dense parent alike (25 s), and again for as long as the mixture took (45 s)"
[ "$short" = no ] || tuning="3  tune it on 14,400 instructions, 400 steps (15 s)"
cat <<PLAN
  1  ask a dense LLaMA of 35 K parameters a quiz (1 s)
  2  upcycle it into a mixture of 8 experts (1 s)
  $tuning
  then a table of what each model answers, and a page with curves and the experts' load
PLAN

if [ -z "${MOE:-}" ]; then
  "$root/recipes/setup.sh"
  cd -- "$root"
  MOE=./moe
fi

threads=$(nproc)
[ "$threads" -le 8 ] || threads=8  # the model is too small for more
mkdir -p -- "$run_folder"/{scores,inspect}
printf '%s\n' "${own[@]}" >"$list"
seen_from_here() { realpath --relative-base="$PWD" -- "$1"; }
run=$(seen_from_here "$run_folder")
tiny=$(seen_from_here "$root/recipes/tiny")
settings=(--config "$tiny/facts/tune.toml" --threads "$threads" --eval-tasks "$run/texts/quiz.jsonl" --eval-limit 400)
asked=(--tasks "$run/texts/quiz.jsonl" --bos on --threads "$threads")
if [ "$short" = yes ]; then
  settings+=(--steps 400)
  asked+=(--limit 1200)
fi

step() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}
force_if() {  # PATH...: --force where one of them is there
  local path
  for path in "$@"; do
    if [ -e "$path" ]; then echo --force; return; fi
  done
}
tune() {  # MODEL OUT FLAGS...
  local model=$1 out=$2
  shift 2
  # shellcheck disable=SC2046  # one word or none
  step "$MOE" train "$model" -o "$run/$out" --data "$run/texts/instruct.jsonl" "${settings[@]}" "$@" $(force_if "$run/$out")
}
names=()  # of the models of the table
evaluate() {  # MODEL NAME FLAGS...
  local model=$1 name=$2 made=("$run/scores/$2")
  shift 2
  names+=("$name")
  [ "$name" != moe-tuned ] || made+=("$run/stats.json")
  # shellcheck disable=SC2046  # one word or none
  step "$MOE" eval "$model" -o "$run/scores/$name" "${asked[@]}" "$@" $(force_if "${made[@]}")
  "$MOE" inspect "$model" --json >"$run/inspect/$name.json"
}

step "$MOE" inspect "$tiny/facts/model"
step "$python" -I "$tiny/facts.py" "$run/texts"
evaluate "$tiny/facts/model" dense
# shellcheck disable=SC2046  # one word or none
step "$MOE" upcycle "$tiny/facts/model" -o "$run/moe" --experts 8 --layers all --router top2 --verify $(force_if "$run/moe")
tune "$run/moe" moe-tuned
evaluate "$run/moe-tuned/final" moe-tuned --stats "$run/stats.json" --stats-by source
if [ "$short" = no ]; then
  tune "$tiny/facts/model" dense-tuned
  evaluate "$run/dense-tuned/final" dense-tuned
  tune "$tiny/facts/model" dense-longer --steps "$("$python" -I "$tiny/table.py" steps "$run")"
  evaluate "$run/dense-longer/final" dense-longer
fi
subject=$(sed -n '/"Where does [A-Z][a-z]* live/{s/.*"Where does \([A-Z][a-z]*\) live.*/\1/p;q}' "$run/texts/instruct.jsonl")
step "$MOE" generate "$run/moe-tuned/final" --prompt "Where does $subject live?"$'\n' --max-tokens 8

"$python" -I "$tiny/table.py" "$run" "$run/texts/quiz.jsonl" "${names[@]}"
# shellcheck disable=SC2046  # one word or none
step "$MOE" report "$run/page.json" -o "$run/quickstart.html" $(force_if "$run/quickstart.html")
