#!/usr/bin/env bash
# Upcycles a dense folder of 4 GB in 4 shards and holds two promises (core/upcycle/README.md): memory does not grow with the
# model (anonymous memory less than 64 MiB above what the process has at its start), and the disk is the limit (at
# least 0.7 of the rate at which cp and sync write as many bytes, beside it in time, in alternating order).
#
#   tests/slow/upcycle_4gb.sh [MOE] [FOLDER]     MOE: the binary (./moe); FOLDER: where 11 GB are free (TMPDIR)
#
# 37 layers x (4 x 2048^2 + 3 x 2048 x 5504) + 2 x 32000 x 2048 = 2.00e9 parameters = 4.0 GB in bf16; two experts in the
# 19 even layers add 19 x 3 x 2048 x 5504 x 2 bytes = 1.3 GB. At most 4.0 + 5.3 GB lie on the disk at a time.
set -euo pipefail
moe=$(realpath "${1:-./moe}")
root=${2:-${TMPDIR:-/tmp}}
repeats=3
least_ratio=0.7
most_anonymous_kib=$((64 * 1024))

free_kib=$(df --output=avail -k "$root" | tail -1)
if ((free_kib < 12 * 1000 * 1000)); then
  echo "skipped: $root has less than 12 GB free"
  exit 77
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
shards=$(find "$work/dense" -name '*.safetensors' | wc -l)
if ((shards != 4)); then
  echo "FAILED: $shards shards, not 4"
  exit 1
fi

now() { date +%s.%N; }
bytes_of() { du -sb "$1" | cut -f1; }
anonymous_kib() { awk '/^RssAnon:/ {print $2}' "/proc/$1/status" 2>/dev/null || true; }

# What the process has at its start: the most that the same binary holds when it does nothing but load.
start_kib=0
for _ in 1 2 3; do
  "$moe" inspect "$work/dense" >/dev/null &
  while kib=$(anonymous_kib $!) && [[ -n $kib ]]; do
    ((kib > start_kib)) && start_kib=$kib
  done
  wait $!
done

peak_kib=0
upcycle() { # prints bytes per second
  rm -rf "$work/out"
  sync
  local start end
  start=$(now)
  "$moe" upcycle "$work/dense" -o "$work/out" --experts 2 --layers even --router top1 --quiet >/dev/null &
  local pid=$! kib
  while kib=$(anonymous_kib $pid) && [[ -n $kib ]]; do
    ((kib > peak_kib)) && peak_kib=$kib
    sleep 0.02
  done
  wait $pid
  sync
  end=$(now)
  rate=$(awk -v b="$(bytes_of "$work/out")" -v s="$start" -v e="$end" 'BEGIN {printf "%.0f", b / (e - s)}')
  rm -rf "$work/out"
}

copy() { # the dense folder and one shard again: 5.1 GB beside 5.3
  rm -rf "$work/copy"
  sync
  local start end
  start=$(now)
  cp -r "$work/dense" "$work/copy"
  cp "$work/dense/model-00001-of-00004.safetensors" "$work/copy/once-more.safetensors"
  sync
  end=$(now)
  rate=$(awk -v b="$(bytes_of "$work/copy")" -v s="$start" -v e="$end" 'BEGIN {printf "%.0f", b / (e - s)}')
  rm -rf "$work/copy"
}

ratios=()
for ((i = 0; i < repeats; ++i)); do
  if ((i % 2 == 0)); then
    upcycle && ours=$rate && copy && theirs=$rate
  else
    copy && theirs=$rate && upcycle && ours=$rate
  fi
  ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN {printf "%.3f", a / b}')
  ratios+=("$ratio")
  awk -v i="$i" -v a="$ours" -v b="$theirs" -v r="$ratio" \
    'BEGIN {printf "run %d: upcycle %.0f MB/s, cp and sync %.0f MB/s, ratio %s\n", i + 1, a / 1e6, b / 1e6, r}'
done
median=$(printf '%s\n' "${ratios[@]}" | sort -n | sed -n "$(((repeats + 1) / 2))p")
grown_kib=$((peak_kib - start_kib))
echo "ratio to cp: median $median of ${ratios[*]} (at least $least_ratio)"
echo "anonymous memory: $((peak_kib / 1024)) MiB at the peak, $((start_kib / 1024)) at the start, grown $grown_kib KiB (less than $most_anonymous_kib)"
if awk -v m="$median" -v l="$least_ratio" 'BEGIN {exit !(m < l)}'; then
  echo "FAILED: slower than $least_ratio of cp"
  exit 1
fi
if ((grown_kib >= most_anonymous_kib)); then
  echo "FAILED: anonymous memory grew by $grown_kib KiB"
  exit 1
fi
