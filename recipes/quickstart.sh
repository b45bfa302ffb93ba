#!/usr/bin/env bash
# Upcycles the embedded tiny LLaMA, tunes it on instructions and evaluates it before and after. Takes under three minutes on 2
# cores after the build. Prints every command, so that you can run it yourself.
#
#   recipes/quickstart.sh [RUN] [--short]    RUN: output folder, default runs/quickstart. Replaces only files of an earlier
#                                            quickstart (RUN/.moe-quickstart lists them).
#
# --short: a third of the steps, a quarter of the questions, no dense baseline.
#
# If MOE names the binary, as in `moe quickstart`, nothing is set up or built. PYTHON names a Python 3 (default: python3).
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
# Files that this script and its Python write. moe replaces its own outputs with --force, which checks its lists.
own=(texts/{known,instruct,quiz}.jsonl inspect/{dense,moe-tuned,dense-tuned,dense-longer}.json stats.json page.json quickstart.html)
list=$run_folder/.moe-quickstart
stop() { echo "quickstart: $*" >&2; exit 2; }
if [ -e "$run_folder" ]; then
  [ -d "$run_folder" ] || stop "$run_folder is not a folder; give another one"
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

# The steps, with seconds on 2 cores.
if [ -z "${MOE:-}" ] && [ ! -x "$root/moe" ]; then
  echo "First installs LibTorch (about a minute) and builds moe (4 minutes on 2 cores). Then:"
fi
tuning="3  tune it on 14,400 instructions, 1,200 steps (45 s)
  4  tune the dense parent for equal steps (25 s), and again for equal time (45 s)"
[ "$short" = no ] || tuning="3  tune it on 14,400 instructions, 400 steps (15 s)"
cat <<PLAN
  1  evaluate a dense LLaMA of 35 K parameters on a quiz (1 s)
  2  upcycle it into a mixture of 8 experts (1 s)
  $tuning
  then print a table of accuracies, and write a page with curves and the experts' load
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
force_if() {  # PATH...: prints --force if one of them exists
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
