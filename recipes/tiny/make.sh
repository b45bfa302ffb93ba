#!/usr/bin/env bash
# Makes the tiny models again, all of it: texts, tokenizers, random weights, training. About a quarter of an hour.
#
#   recipes/tiny/make.sh [THREADS]     default 1
#
# Leaves instruct.jsonl, quiz.jsonl and model/ in recipes/tiny, and facts/model/, the
# parent of the quickstart, whose texts are made anew where they are needed (facts.py). Texts and tokenizers come out byte for byte the same everywhere; the weights do so for one build of moe on one kind of processor with one
# number of threads.
set -euo pipefail
unset CDPATH

tiny=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$tiny/../.." && pwd)
threads=${1:-1}

"$root/recipes/setup.sh" --python "$root/tests/interop/requirements.txt"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd -- "$work"  # file names below are stored in the tokenizer, so they are relative

put_in_place() {  # FROM TO: FROM's model in place of TO's
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
