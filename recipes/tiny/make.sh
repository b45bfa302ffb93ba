#!/usr/bin/env bash
# Creates the tiny models from seeds: texts, tokenizers, random weights, training. Takes about a quarter of an hour.
#
#   recipes/tiny/make.sh [THREADS]     default 1
#
# Writes instruct.jsonl, quiz.jsonl, model/ and facts/model/ (parent of the quickstart; facts.py generates its texts) to recipes/tiny.
# Texts and tokenizers are equal byte for byte on every machine; weights only for equal builds of moe, processors and numbers of threads.
set -euo pipefail
unset CDPATH

tiny=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$tiny/../.." && pwd)
threads=${1:-1}

"$root/recipes/setup.sh" --python "$root/tests/interop/requirements.txt"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd -- "$work"  # file names below are stored in the tokenizer, so they are relative

put_in_place() {  # FROM TO: replaces the model of TO by that of FROM
  local name
  for name in config.json model.safetensors tokenizer.model tokenizer_config.json; do cp -- "$1/$name" "$2/$name"; done
}
run() { printf '\n$ %s\n' "$*"; "$@"; }
run "$root/.venv/bin/python" -I "$tiny/generate.py" .
run "$root/.venv/bin/python" -I "$tiny/tokenizer.py" 1024 corpus.jsonl instruct.jsonl
run "$root/moe" init "$tiny/config.json" -o random --tokenizer tokenizer --seed 1
run "$root/moe" train random -o pretrained --data corpus.jsonl --config "$tiny/pretrain.toml" --threads "$threads"

cp instruct.jsonl quiz.jsonl "$tiny/"
put_in_place pretrained/final "$tiny/model"
run "$root/moe" inspect "$tiny/model"
run "$root/moe" generate "$tiny/model" --prompt "I see cup, dog, red, cake. The last word is" --max-tokens 12
run "$root/moe" eval "$tiny/model" --tasks "$tiny/quiz.jsonl" --bos on

mkdir facts && cd facts
run "$root/.venv/bin/python" -I "$tiny/facts.py" .
run "$root/.venv/bin/python" -I "$tiny/tokenizer.py" 512 known.jsonl instruct.jsonl
run "$root/moe" init "$tiny/facts/config.json" -o random --tokenizer tokenizer --seed 1
run "$root/moe" train random -o parent --data known.jsonl --config "$tiny/facts/parent.toml" --threads "$threads"

put_in_place parent/final "$tiny/facts/model"
run "$root/moe" inspect "$tiny/facts/model"
run "$root/moe" eval "$tiny/facts/model" --tasks quiz.jsonl --bos on
