#!/usr/bin/env bash
# Runs a mixture of 4.5 GB with a memory limit of 1.5 GB, which counts mapped pages: text and scores equal those without the limit.
# Prints the seconds of each run. The last line is `N passed, N failed, N skipped`; skipped if no control group can be made.
#
#   tests/slow/larger_than_memory.sh [MOE] [FOLDER]     MOE: the binary (./moe); FOLDER: where 5 GB are free (TMPDIR)
#
# The limit is that of a control group, which needs root and the memory controller. 8 layers x (8 experts x 3 x 2048 x 5504 +
# 2.5 x 2048^2) + 2 x 1024 x 2048 = 2.25e9 parameters = 4.5 GB in bf16.
set -euo pipefail
moe=$(realpath "${1:-./moe}")
root=${2:-${TMPDIR:-/tmp}}
here=$(dirname "$(realpath "$0")")
. "$here/../support/tally.sh"
tiny=$here/../../recipes/tiny/model
limit=1500000000
if (($(df --output=avail -k "$root" | tail -1) < 6 * 1000 * 1000)); then
  skip "$root has less than 6 GB free" && finish
fi
# A control group of version 1 or 2.
if mkdir "/sys/fs/cgroup/memory/moe-$$" 2>/dev/null; then
  group=/sys/fs/cgroup/memory/moe-$$ file=memory.limit_in_bytes
elif mkdir "/sys/fs/cgroup/moe-$$" 2>/dev/null; then
  group=/sys/fs/cgroup/moe-$$ file=memory.max
else
  skip "no control group can be made here" && finish
fi
work=$(mktemp -d "$root/moe-large-XXXXXX")
trap 'rm -rf "$work"; rmdir "$group"' EXIT
if [[ ! -e $group/$file ]] || ! echo $limit >"$group/$file" 2>/dev/null; then
  skip "the control group takes no limit of memory" && finish
fi

cat >"$work/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": 2048,
 "intermediate_size": 5504, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16", "initializer_range": 0.05}
JSON
"$moe" init "$work/config.json" --experts 8 --router top2 -o "$work/m" --tokenizer "$tiny" --quiet >/dev/null
for ((i = 0; i < 20; ++i)); do
  echo "{\"context\": \"Lily has $i dogs\", \"continuation\": \" and cats\"}"
done >"$work/requests.jsonl"

same_output() { [[ -s $work/free ]] && cmp "$work/free" "$work/limited"; }
commands=("generate $work/m --prompt Once --max-tokens 4" "eval $work/m --requests $work/requests.jsonl --quiet --limit 20")
sync "$work/m"/*
for command in "${commands[@]}"; do
  for kind in free limited; do
    start=$(date +%s.%N)
    if [[ $kind == limited ]]; then
      # Cached pages are charged to the first reader: drop them, so that the group is charged.
      echo 3 2>/dev/null >/proc/sys/vm/drop_caches || dd of="$work/m/model.safetensors" oflag=nocache conv=notrunc,fdatasync count=0 2>/dev/null
      # shellcheck disable=SC2086 # words
      (echo $BASHPID >"$group/cgroup.procs" && exec "$moe" $command) >"$work/$kind" || echo "exit code $?" >>"$work/$kind"
    else
      # shellcheck disable=SC2086
      "$moe" $command >"$work/$kind" || : >"$work/$kind"
    fi
    awk -v w="${command%% *} $kind" -v s="$start" -v e="$(date +%s.%N)" 'BEGIN {printf "%s: %.1f s\n", w, e - s}'
  done
  check "${command%% *} prints the same below the limit" same_output
done
most=$(cat "$group/memory.max_usage_in_bytes" "$group/memory.peak" 2>/dev/null | head -1 || true)
echo "in $((${most:-0} / 1000000)) MB of memory, cache included (at most $((limit / 1000000)))"
finish
