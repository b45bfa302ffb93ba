#!/usr/bin/env bash
# A data set larger than memory: a file of pre-tokenised rows whose text and whose tokens are each several times what the process
# may hold. It is tokenised and trained on, then trained on from the cache, both times to the same end; the largest anonymous
# memory (RssAnon, every 20 ms) stays under the limit, which the kernel also enforces (RLIMIT_DATA). Where the tokens cannot be
# cached because the disk is full, one sentence says so. The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/large_data.sh [MEGABYTES]        environment: MOE (the binary), MOE_SHARED_DATA
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
megabytes=${1:-1200}
limit_mib=200 limit_data_kib=$((400 * 1024))
model=${MOE_SHARED_DATA:-$root/../shared/data}/stories260K-hf
if [ ! -d "$model" ]; then model=recipes/tiny/model; fi
work=$(mktemp -d -p "${TMPDIR:-/var/tmp}") # not in a /tmp that is memory
mounted=
cleanup() {
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf -- "$work"
}
trap cleanup EXIT
export OMP_NUM_THREADS=1

check() {  # WORDS COMMAND...
  local words=$1
  shift
  if "$@"; then echo "ok     $words"; count 1 0 0; else echo "FAILED $words"; count 0 1 0; fi
}
start() {  # RUN CACHE: becomes the training itself; call it in a subshell
  ulimit -d "$limit_data_kib"
  exec "$moe" train "$model" -o "$1" --data "$work/rows.jsonl" --cache "$2" --steps 30 --micro-batch 2 --seq-len 256
}
peak() {  # PID: its largest RssAnon in KiB, until it ends
  local most=0 now
  while now=$(awk '/^RssAnon/ { print $2 }' "/proc/$1/status" 2>/dev/null) && [ -n "$now" ]; do
    if ((now > most)); then most=$now; fi
    sleep 0.02
  done
  echo "$most"
}
measured() {  # NAME: trains into RUN of that name; leaves status and most
  local began=$SECONDS
  (start "$work/$1" "$work/cache") >/dev/null 2>"$work/$1.log" &
  local pid=$!
  most=$(peak $pid)
  wait $pid && status=0 || status=$?
  echo "$1: $((SECONDS - began)) s, at most $((most / 1024)) MiB of anonymous memory"
  [ $status -eq 0 ] || tail -n 3 "$work/$1.log"
}

# Labels that are no copies of their tokens, so that both are kept: 6 bytes a token.
python3 -I - "$work/rows.jsonl" "$megabytes" <<'PYTHON'
import json, sys
rows = []
for row in range(4000):
    ids = [1 + (row * 7 + place * 13) % 400 for place in range(200)]
    rows.append(json.dumps({"input_ids": ids, "labels": [-100] * 20 + [1 + (label * 3) % 400 for label in ids[20:]]}) + "\n")
block = "".join(rows).encode()
with open(sys.argv[1], "wb") as out:
    for _ in range(-(-int(sys.argv[2]) * 1000000 // len(block))):
        out.write(block)
PYTHON
bytes_of() { stat -c %s -- "$1"; }

measured first
check "a data set of $(($(bytes_of "$work/rows.jsonl") >> 20)) MiB is tokenised and trained on" test $status -eq 0
check "in less than $limit_mib MiB" test "$most" -lt $((limit_mib * 1024))
tokens=$(bytes_of "$work"/cache/*.tokens)
check "its tokens are $((tokens >> 20)) MiB, more than twice as much" test "$tokens" -gt $((2 * limit_mib << 20))

measured second
check "from the cache" grep -q "tokens from the cache" "$work/second.log"
check "in less than $limit_mib MiB" test "$most" -lt $((limit_mib * 1024))
# RUN: a step in the middle waits for its data less than 1 % of its time. A loader that is too slow makes every step wait; on a
# busy machine the kernel now and then gives the processor away just there.
waited() {
  python3 -I - "$1/metrics.jsonl" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1])][1:]
median = statistics.median(step["data_wait_seconds"] / step["seconds"] for step in steps)
whole = sum(step["data_wait_seconds"] for step in steps) / sum(step["seconds"] for step in steps)
print(f"waiting for data: {100 * median:.4f} % of the step in the middle of {len(steps)}, {100 * whole:.3f} % of all")
sys.exit(median >= 0.01)
PYTHON
}
check "no step waits for its data" waited "$work/second"
check "to the same end" cmp "$work/first/final/model.safetensors" "$work/second/final/model.safetensors"

if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=20M tmpfs "$work/disk" 2>/dev/null; then
  mounted=$work/disk
  (start "$work/full" "$work/disk") >/dev/null 2>"$work/full.log" && status=0 || status=$?
  check "a disk too small for the tokens ends with code 2" test $status -eq 2
  check "and a sentence" grep -q "disk full: $work/disk/" "$work/full.log"
  check "which leaves nothing behind" test -z "$(ls -A "$work/disk")"
else
  echo "skipped: no small disk without root"
  count 0 0 1
fi
finish
