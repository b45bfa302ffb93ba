#!/usr/bin/env bash
# Upcycles a dense folder of 4 GB in 4 shards and checks two claims of core/upcycle/README.md: the process needs less than 64 MiB of
# anonymous memory in addition to that at its start, and it writes at least 0.7 times as fast as cp and sync, which run in
# alternating order. `moe bench upcycle` measures time and memory. The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/upcycle_4gb.sh [MOE] [FOLDER]     MOE: the binary (./moe); FOLDER: where 16 GB are free (TMPDIR)
#
# 37 layers x (4 x 2048^2 + 3 x 2048 x 5504) + 2 x 32000 x 2048 = 2.00e9 parameters = 4.0 GB in bf16; two experts in the
# 19 even layers add 19 x 3 x 2048 x 5504 x 2 bytes = 1.3 GB. bench upcycle writes as many bytes once more.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../support/tally.sh"
moe=$(realpath "${1:-./moe}")
root=${2:-${TMPDIR:-/tmp}}
repeats=3
least_ratio=0.7
most_anonymous_mib=64

if (($(df --output=avail -k "$root" | tail -1) < 16 * 1000 * 1000)); then
  skip "$root has less than 16 GB free" && finish
fi
work=$(mktemp -d "$root/moe-4gb-XXXXXX")
trap 'rm -rf "$work"' EXIT

cat >"$work/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048,
 "intermediate_size": 5504, "num_hidden_layers": 37, "num_attention_heads": 16, "num_key_value_heads": 16,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16"}
JSON
"$moe" init "$work/config.json" -o "$work/dense" --shard-size 1.05GB --quiet
check "the dense folder has 4 shards" test "$(find "$work/dense" -name '*.safetensors' | wc -l)" -eq 4

number() { sed -nE "s/^ *\"$1\": ([0-9.e+]+),?$/\1/p" "$work/report"; }  # KEY of the report
anonymous=0
upcycle() {  # sets ours, bytes a second, and the largest `anonymous`
  "$moe" bench upcycle "$work/dense" -o "$work/out" --experts 2 --layers even --repeats 1 --json >"$work/report"
  ours=$(number bytes_per_second)
  anonymous=$(printf '%s\n' "$anonymous" "$(number anonymous_bytes)" | sort -g | tail -1)
}
copy() {  # sets theirs: the dense folder and one shard again, 5.1 GB
  sync
  local start bytes
  start=$(date +%s.%N)
  cp -r "$work/dense" "$work/copy"
  cp "$work/dense/model-00001-of-00004.safetensors" "$work/copy/once-more.safetensors"
  sync
  bytes=$(du -sb "$work/copy" | cut -f1)
  theirs=$(awk -v b="$bytes" -v s="$start" -v e="$(date +%s.%N)" 'BEGIN {printf "%.0f", b / (e - s)}')
  rm -rf "$work/copy"
}

ratios=()
for ((i = 0; i < repeats; ++i)); do
  if ((i % 2 == 0)); then upcycle; copy; else copy; upcycle; fi
  ratios+=("$(awk -v a="$ours" -v b="$theirs" 'BEGIN {printf "%.3f", a / b}')")
  awk -v i="$i" -v a="$ours" -v b="$theirs" 'BEGIN {printf "run %d: upcycle %.0f MB/s, cp and sync %.0f MB/s\n", i + 1, a / 1e6, b / 1e6}'
done
median=$(printf '%s\n' "${ratios[@]}" | sort -n | sed -n "$(((repeats + 1) / 2))p")
check "rate relative to cp: median $median of ${ratios[*]} (at least $least_ratio)" awk -v m="$median" -v l=$least_ratio 'BEGIN {exit !(m >= l)}'
check "anonymous memory grows by $anonymous bytes (less than $most_anonymous_mib MiB)" \
  awk -v a="$anonymous" -v m=$most_anonymous_mib 'BEGIN {exit !(a < m * 1048576)}'
finish
