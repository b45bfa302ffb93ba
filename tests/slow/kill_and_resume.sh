#!/usr/bin/env bash
# A run of training that is killed again and again ends as the run that never was: the same weights byte for byte, the same
# metrics but for times. 60 steps of the upcycled tiny model with a checkpoint every 10, killed with SIGKILL at 20 instants, every
# other one while a checkpoint is being written; then with a file of the newest checkpoint cut short; then on a disk too small.
# The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/kill_and_resume.sh [KILLS] [SEED]        environment: MOE (the binary)
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
kills=${1:-20}
RANDOM=${2:-1}
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
  python3 - "$1/metrics.jsonl" "$2/metrics.jsonl" <<'PYTHON'
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
# Not while a write goes on, and never later than the whole run takes.
wait_some() { sleep "$(awk -v r=$RANDOM -v t="$seconds" 'BEGIN { print r / 32768 * t * 0.6 }')"; }
wait_for_write() {  # RUN PID: until a checkpoint is being written
  while kill -0 "$2" 2>/dev/null && ! compgen -G "$1/checkpoints/*.partial" >/dev/null; do sleep 0.002; done
}

"$moe" upcycle recipes/tiny/model -o "$work/model" --experts 8 --layers even --router top1+ir+fr --quiet >/dev/null
start=$(date +%s.%N)
train "$work/whole" >/dev/null
seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')
echo "the whole run took $seconds s"

run=$work/killed
rounds=1 killed=0 in_write=0
for ((i = 0; i < kills; ++i)); do
  (start "$run") >/dev/null 2>>"$work/log" &
  pid=$!
  if ((i % 2)); then wait_for_write "$run" $pid; else wait_some; fi
  if compgen -G "$run/checkpoints/*.partial" >/dev/null; then in_write=$((in_write + 1)); fi
  kill -9 $pid 2>/dev/null && killed=$((killed + 1))
  wait $pid 2>/dev/null || true
  if [ -e "$run/final" ]; then  # it came to its end between two kills: the next ones go to a run of its own
    check "round $rounds, killed $killed times so far" same_end "$run"
    rm -rf -- "$run"
    rounds=$((rounds + 1))
  fi
done
train "$run" >/dev/null 2>>"$work/log"
check "$killed kills, $in_write of them while a checkpoint was being written" same_end "$run"

rm -rf -- "$run"
(start "$run") >/dev/null &
pid=$!
while ! [ -e "$run/checkpoints/step-30" ]; do sleep 0.01; done
kill -9 $pid
wait $pid 2>/dev/null || true
newest=$(ls -d "$run"/checkpoints/step-?? | tail -n 1)
truncate -s -100 "$newest/state.safetensors"
train_aloud() { "$moe" train "$work/model" -o "$run" --data recipes/tiny/instruct.jsonl --config recipes/tiny/tune.toml \
  --steps 60 --save-every 10 >/dev/null 2>"$work/notes"; }
check "goes on with a damaged checkpoint" train_aloud
check "and says which" grep -q "$(basename "$newest"): state.safetensors is not as it was written" "$work/notes"
check "to the same end" same_end "$run"

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
