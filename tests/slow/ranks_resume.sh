#!/usr/bin/env bash
# Training on several processes that loses one of them again and again ends as the run that never did: SIGKILL to a rank at
# random moments; each time the others end within the limit with exit code 1 and a sentence that names it, none stays, and
# the run goes on to the same weights, byte for byte. Then SIGTERM to the launcher: checkpoint, exit code 130, and on again.
# The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/ranks_resume.sh [KILLS] [SEED]        environment: MOE (the binary)
set -uo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root" || exit 2
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
kills=${1:-20}
RANDOM=${2:-1}
ranks=2 limit=8
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache

check() {  # WORDS COMMAND...
  local words=$1
  shift
  if "$@"; then echo "ok     $words"; count 1 0 0; else echo "FAILED $words"; count 0 1 0; cat "$work/err"; fi
}
start() {  # RUN: becomes the launcher itself; call it in a subshell
  exec "$moe" train "$work/model" -o "$1" --data recipes/tiny/instruct.jsonl --config recipes/tiny/tune.toml --steps 60 \
    --save-every 10 --quiet --ranks $ranks --comm-timeout $limit
}
seconds_since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'; }
same_end() { cmp "$work/whole/final/model.safetensors" "$1/final/model.safetensors"; }
is_gone() {
  local pid
  sleep 0.2
  for pid in "$@"; do
    case "$(awk '{ print $3 }' "/proc/$pid/stat" 2>/dev/null)" in '' | Z | X) ;; *) return 1 ;; esac
  done
}
begin() {  # RUN DELAY: sets launcher, pids
  (start "$1") >/dev/null 2>"$work/err" &
  launcher=$!
  sleep "$2"
  mapfile -t pids < <(pgrep -P $launcher | sort -n)
}
named() {  # RANK
  [ "$status" -eq 1 ] && grep -qE "^moe: rank $1 (\(host .*, pid ${pids[$1]}\) )?is gone \(signal 9, Killed\): " "$work/err" &&
    awk -v t="$took" -v l=$limit 'BEGIN { exit !(t < l + 1) }' && is_gone "${pids[@]}"
}

"$moe" upcycle recipes/tiny/model -o "$work/model" --experts 8 --layers even --router top1+ir+fr --quiet >/dev/null
from=$(date +%s.%N)
(start "$work/whole") >/dev/null 2>"$work/err"
seconds=$(seconds_since "$from")
echo "the whole run took $seconds s"

run=$work/killed
for ((i = 0; i < kills; ++i)); do
  begin "$run" "$(awk -v r=$RANDOM -v t="$seconds" 'BEGIN { print 0.3 + r / 32768 * t * 0.6 }')"
  rank=$((RANDOM % ranks))
  from=$(date +%s.%N)
  if [ ${#pids[@]} -eq $ranks ] && kill -9 "${pids[$rank]}" 2>/dev/null; then
    wait $launcher 2>/dev/null
    status=$?
    took=$(seconds_since "$from")
    if [ $status -eq 0 ]; then
      check "SIGKILL of rank $rank: it had done its part" test -e "$run/final"
    else
      check "SIGKILL of rank $rank: ended in $took s: $(grep -o 'Killed).*' "$work/err")" named $rank
    fi
  else
    wait $launcher 2>/dev/null
  fi
  if [ -e "$run/final" ]; then  # it came to its end between two kills: the next ones go to a run of its own
    check "the run between kills" same_end "$run"
    rm -rf -- "$run"
  fi
done
(start "$run") >/dev/null 2>"$work/err"
check "after the last kill" same_end "$run"

rm -rf -- "$run"
(start "$run") >/dev/null 2>"$work/err" &
launcher=$!
while ! [ -e "$run/checkpoints/step-10" ] && kill -0 $launcher 2>/dev/null; do sleep 0.05; done
kill -TERM $launcher
wait $launcher
status=$?
check "SIGTERM to the launcher: exit code 130" test $status -eq 130
check "one sentence" test "$(grep -c '^moe: ' "$work/err")" -eq 1
(start "$run") >/dev/null 2>"$work/err"
check "and on to the same end" same_end "$run"
finish
