#!/usr/bin/env bash
# Makes the tiny model again, all of it: texts, tokenizer, random weights, training. About a quarter of an hour.
#
#   recipes/tiny/make.sh [THREADS]     default 1
#
# Leaves instruct.jsonl, quiz.jsonl and model/ in recipes/tiny. Texts and tokenizer come out byte for byte the same
# everywhere; the weights do so for one build of moe on one kind of processor with one number of threads.
set -euo pipefail

tiny=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$tiny/../.." && pwd)
threads=${1:-1}

"$root/recipes/setup.sh" --python "$root/tests/interop/requirements.txt"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd -- "$work"  # file names below are stored in the tokenizer, so they are relative

run() { printf '\n$ %s\n' "$*"; "$@"; }
run "$root/.venv/bin/python" "$tiny/generate.py" .
run "$root/.venv/bin/python" "$tiny/tokenizer.py"
run "$root/moe" init "$tiny/config.json" -o random --tokenizer tokenizer --seed 1
run "$root/moe" train random -o pretrained --data corpus.jsonl --config "$tiny/pretrain.toml" --threads "$threads"

cp instruct.jsonl quiz.jsonl "$tiny/"
rm -rf "$tiny/model"
cp -r pretrained/final "$tiny/model"
run "$root/moe" inspect "$tiny/model"
run "$root/moe" generate "$tiny/model" --prompt "I see cup, dog, red, cake. The last word is" --max-tokens 12
run "$root/moe" eval "$tiny/model" --tasks "$tiny/quiz.jsonl" --bos on
