#!/usr/bin/env bash
# A training run whose disk fills up ends with a message and, with space again, resumes to the same weights and metrics. Needs root
# to mount a small disk. The last line is `N passed, N failed, N skipped`.
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

start() {  # RUN: execs moe, so that signals reach it; call it in a subshell
  exec "$moe" train "$work/model" -o "$1" --data recipes/tiny/instruct.jsonl --config recipes/tiny/tune.toml --steps 60 \
    --save-every 10 --quiet
}
train() { (start "$1"); }
same_end() { cmp "$work/whole/final/model.safetensors" "$1/final/model.safetensors" && same_metrics "$work/whole" "$1"; }

"$moe" upcycle recipes/tiny/model -o "$work/model" --experts 8 --layers even --router top1+ir+fr --quiet >/dev/null
train "$work/whole" >/dev/null

if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=140M tmpfs "$work/disk" 2>/dev/null; then
  mounted=$work/disk
  # The run checks the free space at its start; dd fills the disk later.
  (start "$work/disk/run") >/dev/null 2>"$work/full" &
  pid=$!
  while ! [ -e "$work/disk/run/checkpoints/step-10" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
  dd if=/dev/zero of="$work/disk/other" bs=1M count=200 status=none 2>/dev/null || true
  wait $pid && status=0 || status=$?
  check "a disk that fills up ends the run with exit code 2" test $status -eq 2
  check "the message names the lack of space" grep -q 'full\|space' "$work/full"
  rm -f "$work/disk/other"
  check "with space again the run resumes" train "$work/disk/run"
  check "to the same weights and metrics" same_end "$work/disk/run"
else
  skip "no small disk without root"
fi
finish
