#!/usr/bin/env bash
# Kills commands at random instants and checks that nothing is lost. Rounds of a few kills each, of several kinds in turn:
#
#   train     one process: training, saving (every other kill falls into the writing of a checkpoint), a cold token cache
#   ranks     the same with --ranks 2: all processes of the run at once, or only a rank, or only the launcher
#   upcycle   a new or replaced (--force) output folder: after every kill it is absent, the old one or the new one
#   eval      moe eval with a response cache; ranks-eval: the same on 2 ranks
#   stop-N    SIGINT, SIGTERM, SIGHUP or SIGKILL to all processes, the launcher or one rank of training on N = 1, 2 or 4 processes;
#             launched-N: the same with the environment of a launcher. SIGINT, SIGTERM and SIGHUP save a checkpoint
#
# A round ends with the same command, not killed: weights, metrics (without times), samples and scores equal those of a run that
# was never killed. Files of others with names like ours, next to the outputs, in the token cache and in the run folder, must not
# change.
#
#   tests/slow/kills.sh [N [SEED [KIND...]]]     environment: MOE (the binary), KILLS_FILE (build/kills.txt)
#
# KIND... are the kinds of the rounds, in turn; default: all. Without N: 50 kills. With N: until KILLS_FILE, which has a line for each
# round of this SEED, counts N kills over several runs. A round depends on SEED, its number and the timing of the machine.
# The last line is `N passed, N failed, N skipped`.
set -uo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root" || exit 2
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
wanted=${1:-50}
seed=${2:-1}
kills_a_round=5
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
if [ $# -gt 0 ]; then ledger=${KILLS_FILE:-build/kills.txt}; else ledger=$work/kills.txt; fi
mkdir -p "$(dirname -- "$ledger")"
touch "$ledger"
export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache

# Execs moe in a process group of its own, so that signals reach it; call it in the background. env restores SIGINT, which a shell
# ignores in background commands.
start_train() {  # PLACE RANKS; where WORLD_SIZE is set, as one of the ranks
  local rows=4 ranks=()
  [ "$2" -lt 4 ] || rows=2  # each of two replicas needs a micro-batch
  [ "$2" -eq 1 ] || ranks=(--comm-timeout 8)
  [ "$2" -eq 1 ] || [ -n "${WORLD_SIZE:-}" ] || ranks+=(--ranks "$2")
  exec env --default-signal setsid "$moe" train "$work/model" -o "$1/run" --data "$work/instruct.jsonl" --eval-data "$work/held.jsonl" --eval-rows 2 \
    --eval-every 6 --steps 12 --seq-len 64 --micro-batch $rows --global-batch 4 --lr 1e-3 --save-every 3 --keep 1 \
    --cache "$1/cache" --quiet "${ranks[@]}"
}
start_upcycle() {  # PLACE EXPERTS
  exec setsid "$moe" upcycle recipes/tiny/model -o "$1/out" --experts "$2" --force --quiet
}
start_eval() {  # PLACE RANKS
  local ranks=()
  [ "$2" -eq 1 ] || ranks=(--ranks "$2" --comm-timeout 8)
  exec setsid "$moe" eval "$work/model" --tasks "$work/quiz.jsonl" --batch-tokens 256 -o "$1/scores" --force \
    --cache-responses "$1/responses.cache" --quiet "${ranks[@]}"
}

milliseconds() { date +%s%3N; }
sleep_ms() { sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"; }
is_running() { kill -0 "$1" 2>/dev/null; }
await_group() {  # PID: until every process of its group is gone; says nothing of one that will not go
  local i
  wait "$1" 2>/dev/null
  for ((i = 0; i < 1500; ++i)); do
    pgrep -g "$1" >/dev/null || return 0
    sleep 0.02
  done
  echo "FAILED a process of group $1 is still there after 30 s"
  kill -9 -- "-$1"
  return 1
}
kill_at_random() {  # PID LONGEST_MS: sets killed_now
  sleep_ms $((RANDOM * $2 / 32768))
  kill_one_of "$1"
}
kill_one_of() {  # PID: its whole group, or of several processes perhaps one
  local members victim=
  mapfile -t members < <(pgrep -g "$1")
  if [ ${#members[@]} -gt 1 ] && ((RANDOM % 2)); then victim=${members[$((RANDOM % ${#members[@]}))]}; fi
  if kill -9 -- "${victim:--$1}" 2>/dev/null; then killed=$((killed + 1)); fi
}
kill_in_write() {  # PID FOLDER: while a checkpoint is being written, or never
  while is_running "$1" && ! compgen -G "$2/checkpoints/*.partial" >/dev/null; do sleep 0.002; done
  sleep_ms $((RANDOM % 12))
  kill_one_of "$1"
}

same_tree() { diff -r "$1" "$2" >/dev/null; }
same_lines() {  # RUN RUN: metrics, samples; one whole event file
  cmp "$1/samples.jsonl" "$2/samples.jsonl" && same_metrics "$1" "$2" &&
    [ "$(find "$2" -maxdepth 1 -name 'events.out.tfevents.*.moe' -size +1k | wc -l)" -eq 1 ]
}
same_run() { same_tree "$work/whole$2/run/final" "$1/run/final" && same_lines "$work/whole$2/run" "$1/run"; }

# Writes files of others with names like ours.
bait() {  # FOLDER
  local name
  mkdir -p "$1"/{thesis.partial,thesis.replaced,checkpoints/step-9,step-4.partial,final}
  for name in x.partial-abc thesis.partial-draft note.tokens.partial-XXXXXX events.out.tfevents.1.host.2.0 moe-abc123 notes.tokens \
    report.html.new thesis.partial/chapter.txt thesis.replaced/chapter.txt checkpoints/step-9/state.json step-4.partial/a final/b \
    .nfs0001; do
    echo "of another: $name" >"$1/$name"
  done
}
bait_in_run() {  # RUN: writes files of others into a run folder
  echo mine >"$1/notes.txt"
  echo mine >"$1/thesis.partial-draft"
  echo mine >"$1/events.out.tfevents.1.host.2.0"
}
fingerprint() {  # FOLDER: of the files of bait() and bait_in_run()
  find "$1" \( -name '*thesis*' -o -name '*-abc' -o -name 'note*' -o -name '*host*' -o -name moe-abc123 -o -name report.html.new -o \
    -name .nfs0001 -o -path '*thesis.*/*' -o -path "$1/checkpoints/*" -o -path "$1/cache/checkpoints/*" -o -path "$1/step-4.partial/*" -o \
    -path "$1/cache/step-4.partial/*" -o -path "$1/final/*" -o -path "$1/cache/final/*" \) -type f \
    -printf '%p %m %s %T@ %i ' -exec sha256sum {} \; | sort
}

fail() { echo "FAILED round $round ($kind, seed $seed): $*"; is_good=no; }
check_bait() {
  fingerprint "$work/place" >"$work/bait_after"
  cmp -s "$work/bait" "$work/bait_after" || fail "files of others were touched: $(diff "$work/bait" "$work/bait_after" | head -n 5)"
}
round_of_train() {  # RANKS
  local place=$work/place i pid
  for ((i = 0; i < kills_a_round; ++i)); do
    (start_train "$place" "$1") >/dev/null 2>>"$work/log" &
    pid=$!
    if ((i % 2)); then kill_in_write $pid "$place/run"; else kill_at_random $pid "${whole_ms[train$1]}"; fi
    await_group $pid || is_good=no
    if [ -d "$place/run" ] && [ -e "$place/run/settings.toml" ] && ! [ -e "$place/run/notes.txt" ]; then
      check_bait
      bait_in_run "$place/run"
      fingerprint "$place" >"$work/bait"
    fi
    if [ -e "$place/run/final" ]; then  # it finished between two kills
      same_run "$place" "$1" || fail "another end after $((i + 1)) kills"
      break
    fi
  done
  (start_train "$place" "$1") >/dev/null 2>"$work/err" || fail "does not go on: $(cat "$work/err")"
  same_run "$place" "$1" || fail "another end"
  compgen -G "$place/run/*.partial" >/dev/null && fail "$(echo "$place"/run/*.partial) is left"
  compgen -G "$place/run/checkpoints/*.partial" >/dev/null && fail "$(echo "$place"/run/checkpoints/*.partial) is left"
}
# Starts training on PROCESSES processes, by --ranks or by the environment of a launcher, and sets `pids`: those started here.
start_processes() {  # PLACE PROCESSES HOW
  local rank port=$((20000 + RANDOM % 20000))
  pids=()
  if [ "$3" = stop ]; then
    (start_train "$1" "$2") >/dev/null 2>"$work/err0" &
    pids=($!)
    return
  fi
  for ((rank = 0; rank < $2; ++rank)); do
    (
      export RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$2 LOCAL_WORLD_SIZE=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
      start_train "$1" "$2"
    ) >/dev/null 2>"$work/err$rank" &
    pids+=($!)
  done
}
# Sends SIGNAL to all processes of the run, to the launcher, or to one rank.
stop_processes() {  # SIGNAL HOW
  local pid group members=() target=$((RANDOM % 3))
  for pid in "${pids[@]}"; do
    mapfile -t group < <(pgrep -g "$pid")
    members+=(${group[@]+"${group[@]}"})
  done
  [ ${#members[@]} -gt 0 ] || return 0
  if [ $target -eq 1 ] && [ "$2" = stop ]; then members=("${pids[0]}"); fi
  if [ $target -eq 2 ]; then members=("${members[$((RANDOM % ${#members[@]}))]}"); fi
  if kill -s "$1" "${members[@]}" 2>/dev/null; then killed=$((killed + 1)); fi
}
last_step() { tail -n 1 "$1/run/metrics.jsonl" 2>/dev/null | sed -nE 's/^\{"step": ?([0-9]+).*/\1/p'; }
round_of_stops() {  # PROCESSES HOW
  local place=$work/place i pid signal code codes step before
  for ((i = 0; i < kills_a_round; ++i)); do
    signal=(INT TERM HUP KILL TERM)
    signal=${signal[$((RANDOM % 5))]}
    before=$(last_step "$place")
    start_processes "$place" "$1" "$2"
    sleep_ms $((RANDOM * whole_ms[train$1] / 32768))
    stop_processes $signal "$2"
    codes=
    for pid in "${pids[@]}"; do
      wait "$pid"
      codes+=" $?"
      await_group "$pid" || is_good=no
    done
    step=$(last_step "$place")
    if [ -e "$place/run/final" ]; then break; fi  # it finished
    # Before the first step the signal may end the process without a checkpoint.
    if [ $signal != KILL ] && [ "$step" != "$before" ] && [ "$step" != 0 ]; then
      for code in $codes; do
        case $code in 0 | 130) ;; *) fail "exit codes$codes after SIG$signal: $(cat "$work"/err?)" ;; esac
      done
      [ -e "$place/run/checkpoints/step-$step" ] || fail "SIG$signal saved nothing after step $step: $(ls "$place/run/checkpoints" 2>&1)"
    fi
  done
  rm -f "$work"/err?
  start_processes "$place" "$1" "$2"
  for pid in "${pids[@]}"; do wait "$pid" || fail "does not resume: $(cat "$work"/err?)"; done
  same_run "$place" "$1" || fail "another end"
  compgen -G "$place/run/checkpoints/*.partial" >/dev/null && fail "$(echo "$place"/run/checkpoints/*.partial) is left"
}
round_of_upcycle() {
  local place=$work/place i pid
  if ((RANDOM % 2)); then cp -r "$work/out2" "$place/out"; fi
  local was_there=no
  [ ! -e "$place/out" ] || was_there=yes
  for ((i = 0; i < kills_a_round; ++i)); do
    (start_upcycle "$place" $((i % 2 ? 2 : 4))) >/dev/null 2>>"$work/log" &
    pid=$!
    kill_at_random $pid "${whole_ms[upcycle]}"
    await_group $pid || is_good=no
    if [ -e "$place/out" ]; then
      was_there=yes
      same_tree "$place/out" "$work/out2" || same_tree "$place/out" "$work/out4" || fail "OUT is neither old nor new"
    elif [ $was_there = yes ]; then
      fail "OUT is gone"
    fi
  done
  (start_upcycle "$place" 4) >/dev/null 2>"$work/err" || fail "does not end: $(cat "$work/err")"
  same_tree "$place/out" "$work/out4" || fail "another OUT"
  [ ! -e "$place/out.partial" ] || fail "out.partial is left"
}
round_of_eval() {  # RANKS
  local place=$work/place i pid
  for ((i = 0; i < kills_a_round; ++i)); do
    (start_eval "$place" "$1") >/dev/null 2>>"$work/log" &
    pid=$!
    kill_at_random $pid "${whole_ms[eval$1]}"
    await_group $pid || is_good=no
  done
  (start_eval "$place" "$1") >/dev/null 2>"$work/err" || fail "does not go on: $(cat "$work/err")"
  cmp "$work/whole$1/scores/"samples_*.jsonl "$place/scores/"samples_*.jsonl || fail "other samples"
  grep -aqE '^[0-9a-f]{16} ' "$place/responses.cache" || fail "no response was kept"
}

# The runs to compare with, and their durations.
head -n 200 recipes/tiny/instruct.jsonl >"$work/instruct.jsonl"
tail -n 20 recipes/tiny/instruct.jsonl >"$work/held.jsonl"
head -n 120 recipes/tiny/quiz.jsonl >"$work/quiz.jsonl"
"$moe" upcycle recipes/tiny/model -o "$work/model" --experts 4 --router top1+ir+fr --ep-ranks 2 --quiet >/dev/null || exit 1
declare -A whole_ms
timed() {  # KIND COMMAND...
  local name=$1 from
  shift
  from=$(milliseconds)
  ("$@") >/dev/null 2>"$work/err" || { cat "$work/err"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
  whole_ms[$name]=$(($(milliseconds) - from))
}
for ranks in 1 2 4; do
  timed train$ranks start_train "$work/whole$ranks" $ranks
  [ $ranks -eq 4 ] || timed eval$ranks start_eval "$work/whole$ranks" $ranks
done
for experts in 2 4; do
  timed upcycle start_upcycle "$work/upcycled" $experts
  mv "$work/upcycled/out" "$work/out$experts"
done
echo "never killed: training ${whole_ms[train1]} ms, on 2 and 4 ranks ${whole_ms[train2]} and ${whole_ms[train4]} ms; upcycling ${whole_ms[upcycle]} ms;" \
  "evaluation ${whole_ms[eval1]} ms, on 2 ranks ${whole_ms[eval2]} ms"

kinds=(train ranks stop-1 upcycle stop-2 eval launched-2 train stop-4 ranks-eval launched-4)
[ $# -le 2 ] || kinds=("${@:3}")
total_of() { awk -v seed="$seed" '$2 == seed { sum += $8 } END { print sum + 0 }' "$ledger"; }
round=$(awk -v seed="$seed" '$2 == seed && $4 >= last { last = $4 + 1 } END { print last + 0 }' "$ledger")
while [ "$(total_of)" -lt "$wanted" ]; do
  kind=${kinds[$((round % ${#kinds[@]}))]}
  RANDOM=$((seed * 1000003 + round))
  killed=0 is_good=yes
  rm -rf -- "$work/place"
  bait "$work/place"
  bait "$work/place/cache"
  fingerprint "$work/place" >"$work/bait"
  case $kind in
    train) round_of_train 1 ;;
    ranks) round_of_train 2 ;;
    upcycle) round_of_upcycle ;;
    eval) round_of_eval 1 ;;
    ranks-eval) round_of_eval 2 ;;
    stop-* | launched-*) round_of_stops "${kind#*-}" "${kind%-*}" ;;
  esac
  check_bait
  if [ $is_good = yes ]; then count 1 0 0; else count 0 1 0; fi
  printf 'seed %s round %s kind %s kills %s %s\n' "$seed" "$round" "$kind" "$killed" "$([ $is_good = yes ] && echo ok || echo FAILED)" \
    >>"$ledger"
  round=$((round + 1))
done
echo "$(total_of) kills of seed $seed: $(awk -v seed="$seed" '$2 == seed { sum[$6] += $8 } END { for (kind in sum) printf "%s %d  ", kind, sum[kind] }' "$ledger")"
finish
