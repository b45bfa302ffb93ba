#!/usr/bin/env bash
# A data set larger than memory: the text of a file of pre-tokenized rows, and its tokens, are each several times the memory limit.
# Training with a cold and with a warm token cache gives the same weights. The peak of anonymous memory (RssAnon, every 20 ms) stays
# under the limit, which is also set as RLIMIT_DATA. A disk too full for the cache is reported. The last line is
# `N passed, N failed, N skipped`.
#
#   tests/slow/large_data.sh [MEGABYTES]        environment: MOE (the binary)
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
megabytes=${1:-1200}
limit_mib=200 limit_data_kib=$((400 * 1024))
model=recipes/tiny/model
work=$(mktemp -d -p "${TMPDIR:-/var/tmp}") # /tmp may be in memory
mounted=
cleanup() {
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf -- "$work"
}
trap cleanup EXIT
export OMP_NUM_THREADS=1

start() {  # RUN CACHE: execs moe; call it in a subshell
  ulimit -d "$limit_data_kib"
  exec "$moe" train "$model" -o "$1" --data "$work/rows.jsonl" --cache "$2" --steps 30 --micro-batch 2 --seq-len 256
}
peak() {  # PID: prints its largest RssAnon in KiB
  local most=0 now
  while now=$(awk '/^RssAnon/ { print $2 }' "/proc/$1/status" 2>/dev/null) && [ -n "$now" ]; do
    if ((now > most)); then most=$now; fi
    sleep 0.02
  done
  echo "$most"
}
measured() {  # NAME: trains into this run folder; sets status and most
  local began=$SECONDS
  (start "$work/$1" "$work/cache") >/dev/null 2>"$work/$1.log" &
  local pid=$!
  most=$(peak $pid)
  wait $pid && status=0 || status=$?
  echo "$1: $((SECONDS - began)) s, at most $((most / 1024)) MiB of anonymous memory"
  [ $status -eq 0 ] || tail -n 3 "$work/$1.log"
}

# Labels differ from the tokens, so that both are stored: 6 bytes a token.
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
waited() {  # RUN: the median step waits for its data less than 1 % of its time
  python3 -I - "$1/metrics.jsonl" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1])][1:]
median = statistics.median(step["data_wait_seconds"] / step["seconds"] for step in steps)
whole = sum(step["data_wait_seconds"] for step in steps) / sum(step["seconds"] for step in steps)
print(f"waiting for data: {100 * median:.4f} % of the median step of {len(steps)}, {100 * whole:.3f} % of all")
sys.exit(median >= 0.01)
PYTHON
}
check "no step waits for its data" waited "$work/second"
check "to the same end" cmp "$work/first/final/model.safetensors" "$work/second/final/model.safetensors"

if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=20M tmpfs "$work/disk" 2>/dev/null; then
  mounted=$work/disk
  (start "$work/full" "$work/disk") >/dev/null 2>"$work/full.log" && status=0 || status=$?
  check "a disk too small for the tokens ends with code 2" test $status -eq 2
  check "and the message names the disk" grep -q "disk full: $work/disk/" "$work/full.log"
  check "no file remains on it" test -z "$(ls -A "$work/disk")"
else
  skip "no small disk without root"
fi
finish
