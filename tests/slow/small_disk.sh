#!/usr/bin/env bash
# A run of training whose disk fills up ends with a sentence, and goes on to the same end when there is room again. Wants root, for
# a small disk of its own. The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/small_disk.sh       environment: MOE (the binary)
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
work=$(mktemp -d)
mounted=
cleanup() {
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf -- "$work"
}
trap cleanup EXIT
export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache

check() {  # WORDS COMMAND...
  local words=$1
  shift
  if "$@"; then echo "ok     $words"; count 1 0 0; else echo "FAILED $words"; count 0 1 0; fi
}
start() {  # RUN: becomes the training itself, so that a signal meets no shell; call it in a subshell
  exec "$moe" train "$work/model" -o "$1" --data recipes/tiny/instruct.jsonl --config recipes/tiny/tune.toml --steps 60 \
    --save-every 10 --quiet
}
train() { (start "$1"); }
same_metrics() {  # RUN RUN: all but times, rates and memory; says the first difference
  python3 -I - "$1/metrics.jsonl" "$2/metrics.jsonl" <<'PYTHON'
import json, sys
whole, other = ([json.loads(line) for line in open(name)] for name in sys.argv[1:])
if len(whole) != len(other):
    sys.exit(f"{len(other)} lines of metrics for {len(whole)}")
for one, two in zip(whole, other):
    for key in one.keys() | two.keys():
        if key not in ("seconds", "tokens_per_second", "peak_memory_bytes", "data_wait_seconds") and one.get(key) != two.get(key):
            sys.exit(f"step {one['step']}: {key} is {two.get(key)} for {one.get(key)}")
PYTHON
}
same_end() { cmp "$work/whole/final/model.safetensors" "$1/final/model.safetensors" && same_metrics "$work/whole" "$1"; }

"$moe" upcycle recipes/tiny/model -o "$work/model" --experts 8 --layers even --router top1+ir+fr --quiet >/dev/null
train "$work/whole" >/dev/null

if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=140M tmpfs "$work/disk" 2>/dev/null; then
  mounted=$work/disk
  # Space is checked before the run; what others write meanwhile is not known then.
  (start "$work/disk/run") >/dev/null 2>"$work/full" &
  pid=$!
  while ! [ -e "$work/disk/run/checkpoints/step-10" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
  dd if=/dev/zero of="$work/disk/other" bs=1M count=200 status=none 2>/dev/null || true
  wait $pid && status=0 || status=$?
  check "a disk that fills up ends the run with a sentence" test $status -eq 2
  check "which speaks of space" grep -q 'full\|space' "$work/full"
  rm -f "$work/disk/other"
  check "with room again the run goes on" train "$work/disk/run"
  check "to the same end" same_end "$work/disk/run"
else
  echo "skipped: no small disk without root"
  count 0 0 1
fi
finish
