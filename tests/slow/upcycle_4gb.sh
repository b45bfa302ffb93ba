#!/usr/bin/env bash
# Upcycles a dense folder of 4 GB in 4 shards by `moe bench upcycle` and checks two claims of core/upcycle/README.md: the process
# needs less than 64 MiB of anonymous memory in addition to that at its start, and it writes and syncs at least 0.7 times as fast as
# plain writes of the same size, which run in turns with it. The last line is `N passed, N failed, N skipped`.
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

"$moe" bench upcycle "$work/dense" -o "$work/out" --experts 2 --layers even --repeats 3 --json >"$work/report"
number() { sed -nE "s/^ *\"$1\": ([0-9.e+]+),?$/\1/p" "$work/report"; }  # KEY of the report
rate=$(number disk_share) anonymous=$(number anonymous_bytes)
check "the rate is $rate times that of plain writes (at least $least_ratio)" awk -v r="$rate" -v l=$least_ratio 'BEGIN {exit !(r >= l)}'
check "anonymous memory grows by $anonymous bytes (less than $most_anonymous_mib MiB)" \
  awk -v a="$anonymous" -v m=$most_anonymous_mib 'BEGIN {exit !(a < m * 1048576)}'
finish
