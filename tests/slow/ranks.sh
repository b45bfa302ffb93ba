#!/usr/bin/env bash
# Ranks that die, hang or are stopped, under moe's own launcher, torchrun and mpirun, on one host and on several. Hosts are
# network namespaces joined by veth, each with its own name and process numbers. Each time the other ranks must end within the
# limit with exit code 1, name the rank and its position, and leave neither a process nor shared memory. tests/slow/kills.sh
# resumes training that lost ranks. srun is tested by its environment only (tests/core/distributed/environment_test.cpp).
# The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/ranks.sh [KILLS] [SEED]        environment: MOE (the binary), PYTHON (one with torch, for torchrun)
set -uo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root" || exit 2
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
python=${PYTHON:-$root/.venv/bin/python}
kills=${1:-20}
RANDOM=${2:-1}
limit=6  # --comm-timeout of every run here
work=$(mktemp -d)
hosts=()
cleanup() {
  local host
  for host in ${hosts[@]+"${hosts[@]}"}; do ip netns del "$host"; done
  rm -rf -- "$work"
}
trap cleanup EXIT
export OMP_NUM_THREADS=1
shared_memory() { find /dev/shm -mindepth 1 \( -iname '*moe*' -o -iname '*torch*' -o -iname '*gloo*' \) 2>/dev/null | sort; }
shared_before=$(shared_memory)

body() { echo "bench comm --bytes ${1:-256KiB} --repeats ${2:-20000} --comm-timeout $limit"; } # still running when a rank is killed
ranks_of() { pgrep -P "$1" | sort -n; }
seconds_since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'; }
is_gone() {  # PID...: none runs (zombies do not count)
  local pid state
  for _ in $(seq 40); do
    local alive=0
    for pid in "$@"; do
      state=$(awk '{ print $3 }' "/proc/$pid/stat" 2>/dev/null) || true
      case "$state" in '' | Z | X) ;; *) alive=1 ;; esac
    done
    [ $alive -eq 1 ] || return 0
    sleep 0.05
  done
  return 1
}

# --- moe's own launcher ---------------------------------------------------------------------------------------------------
# SIGNAL RANK DELAY: sets status, took, launcher, pids
strike() {
  # shellcheck disable=SC2046
  "$moe" $(body) --ranks 3 >"$work/out" 2>"$work/err" &
  launcher=$!
  sleep "$3"
  mapfile -t pids < <(ranks_of $launcher)
  for _ in $(seq 200); do
    [ ${#pids[@]} -lt 3 ] || break
    sleep 0.02
    mapfile -t pids < <(ranks_of $launcher)
  done
  local begin
  begin=$(date +%s.%N)
  kill "-$1" "${pids[$2]}"
  wait $launcher
  status=$?
  took=$(seconds_since "$begin")
}
fell() {  # RANK WORDS: one message that names it, in time; no process is left
  [ "$status" -eq 1 ] && [ "$(grep -c '^moe: ' "$work/err")" -eq 1 ] &&
    grep -q "^moe: .*rank $1\b.*$2" "$work/err" && awk -v t="$took" -v l=$limit 'BEGIN { exit !(t < l + 1) }' &&
    is_gone "${pids[@]}"
}
for ((i = 0; i < kills; ++i)); do
  rank=$((RANDOM % 3))
  delay=$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 2 }')
  strike KILL $rank "$delay"
  check "SIGKILL of rank $rank after $delay s: ended in $took s" fell $rank "has exited (signal 9, Killed): "
done
for rank in 0 2; do
  strike STOP $rank 2
  check "SIGSTOP of rank $rank: ended in $took s" fell $rank "does not answer: "
done
strike SEGV 1 2
check "SIGSEGV of rank 1" fell 1 "has exited (signal 11, Segmentation fault): "

signal_launcher() {  # SIGNAL; SIGHUP is not ignored, also under nohup
  # shellcheck disable=SC2046
  (set -m; exec env --default-signal=HUP "$moe" $(body) --ranks 3 >"$work/out" 2>"$work/err") &
  launcher=$!
  for _ in {1..150}; do  # until all ranks run: a busy machine starts them slowly
    mapfile -t pids < <(ranks_of $launcher)
    [ ${#pids[@]} -lt 3 ] || break
    sleep 0.2
  done
  sleep 1
  kill "-$1" $launcher
  wait $launcher 2>/dev/null
  status=$?
}
left() { [ "$status" -eq "$1" ] && [ ${#pids[@]} -eq 3 ] && is_gone "${pids[@]}"; }
signal_launcher TERM; check "SIGTERM to the launcher ends all" left 130
signal_launcher HUP;  check "SIGHUP to the launcher ends all" left 130
signal_launcher KILL; check "SIGKILL to the launcher ends all" left 137

nothing_shared_left() { [ "$(shared_memory)" = "$shared_before" ]; }
check "no shared memory outlives its ranks" nothing_shared_left

# --- several hosts --------------------------------------------------------------------------------------------------------
make_hosts() {
  local host
  for host in 1 2; do
    ip netns add "moe-$$-$host" 2>/dev/null || return 1
    hosts+=("moe-$$-$host")
  done
  ip link add link1 netns "${hosts[0]}" type veth peer name link2 netns "${hosts[1]}" || return 1
  for host in 1 2; do
    ip -n "${hosts[host - 1]}" addr add "10.77.0.$host/24" dev "link$host"
    ip -n "${hosts[host - 1]}" link set "link$host" up
    ip -n "${hosts[host - 1]}" link set lo up
  done
  unshare --uts --pid --fork --kill-child true 2>/dev/null
}
on_host() {  # HOST COMMAND...: with the host's name and process numbers; at most a minute
  local host=$1
  shift
  exec timeout -s KILL 60 ip netns exec "${hosts[host - 1]}" unshare --uts --pid --fork --kill-child --mount-proc \
    sh -c "hostname host$host; exec \"\$@\"" sh "$@"
}
# RANK HOST ARGUMENTS...: one of four, two a host
start_rank() {
  local rank=$1 host=$2
  shift 2
  (on_host "$host" env RANK="$rank" WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) MASTER_ADDR=10.77.0.1 MASTER_PORT=29611 \
    "$moe" "$@") >"$work/out$rank" 2>"$work/err$rank" &
  outer[rank]=$!
}
innermost() {  # PID of unshare: prints the PID of moe
  local pid=$1 next
  while next=$(pgrep -P "$pid" | head -n 1) && [ -n "$next" ]; do pid=$next; done
  echo "$pid"
}
start_all() {
  local rank
  outer=()
  # shellcheck disable=SC2046
  for rank in 0 1 2 3; do start_rank $rank $((rank / 2 + 1)) $(body "$@"); done
}
wait_all() {
  local rank
  codes=()
  for rank in 0 1 2 3; do wait "${outer[rank]}"; codes+=($?); done
  cat "$work"/err[0-3] >"$work/err"
}
all_well() { [ "${codes[*]}" = "0 0 0 0" ] && grep -Eq "^ranks +4$" "$work/out0" && grep -Eq "^hosts +2$" "$work/out0" && grep -q "^between hosts " "$work/out0"; }
others_fell() {  # RANK PATTERN: the others end with 1 and name it, in time
  local rank
  for rank in 0 1 2 3; do
    [ "$rank" -eq "$1" ] || [ "${codes[rank]}" -eq 1 ] || return 1
  done
  grep -qE "^moe: .*rank $1 \(host host$(($1 / 2 + 1)), pid 1\) $2" "$work/err" &&
    awk -v t="$took" -v l=$limit 'BEGIN { exit !(t < l + 4) }'
}
if [ "$(id -u)" -eq 0 ] && make_hosts; then
  start_all 256KiB 3
  wait_all
  check "two hosts of two ranks" all_well
  for rank in 0 1 3; do
    start_all
    sleep 3
    begin=$(date +%s.%N)
    kill -9 "$(innermost "${outer[rank]}")"
    wait_all
    took=$(seconds_since "$begin")
    check "SIGKILL of rank $rank of two hosts: ended in $took s" others_fell $rank "(has exited|does not answer)"
  done
  start_all
  sleep 3
  begin=$(date +%s.%N)
  frozen=$(innermost "${outer[2]}")
  kill -STOP "$frozen"
  wait "${outer[0]}" "${outer[1]}" "${outer[3]}"
  took=$(seconds_since "$begin")
  kill -9 "$frozen"
  wait_all
  check "a rank that hangs on the other host: ended in $took s" others_fell 2 "(is not in the collective|does not answer)"
  start_all
  sleep 3
  begin=$(date +%s.%N)
  ip -n "${hosts[1]}" link set link2 down
  wait_all
  took=$(seconds_since "$begin")
  both_sides_end() { [ "${codes[*]}" = "1 1 1 1" ] && awk -v t="$took" -v l=$limit 'BEGIN { exit !(t < 2 * l + 4) }'; }
  check "a network that breaks: ended in $took s" both_sides_end
else
  skip "no network namespaces here (needs root and ip netns)"
fi

# --- torchrun and mpirun --------------------------------------------------------------------------------------------------
works() { [ "$status" -eq 0 ] && grep -Eq "^ranks +3$" "$work/out" && grep -Eq "^hosts +1$" "$work/out"; }
dies() {  # RANK: the launcher fails, all end
  [ "$status" -ne 0 ] && is_gone "${pids[@]}" && awk -v t="$took" -v l=$limit 'BEGIN { exit !(t < l + 10) }'
}
under() {  # NAME COMMAND...
  local name=$1
  shift
  # shellcheck disable=SC2046
  "$@" "$moe" $(body 64KiB 3) >"$work/out" 2>"$work/err" </dev/null
  status=$?
  check "under $name" works
  # shellcheck disable=SC2046
  "$@" "$moe" $(body) >"$work/out" 2>"$work/err" </dev/null &
  local outer=$!
  for _ in $(seq 100); do
    mapfile -t pids < <(pgrep -f "^$moe bench comm")
    [ ${#pids[@]} -lt 3 ] || break
    sleep 0.1
  done
  sleep 2
  local begin
  begin=$(date +%s.%N)
  kill -9 "${pids[1]}"
  wait $outer
  status=$?
  took=$(seconds_since "$begin")
  check "SIGKILL of a rank under $name: ended in $took s" dies
  "$@" "$moe" bench comm --ranks 2 >"$work/out" 2>"$work/err" </dev/null
  status=$?
  refused() { [ "$status" -ne 0 ] && grep -q -- "--ranks 2, but $name has started 3 processes; leave out --ranks" "$work/err"; }
  check "--ranks that contradict $name" refused
}
if "$python" -I -c 'import torch.distributed.run' 2>/dev/null; then
  under torchrun "$python" -m torch.distributed.run --no-python --nproc-per-node 3 --master-port 29631
else
  skip "torchrun: $python cannot import torch.distributed.run"
fi
if command -v mpirun >/dev/null; then
  as_root=()
  if [ "$(id -u)" -eq 0 ] && mpirun --version 2>/dev/null | grep -q "Open MPI"; then as_root=(--allow-run-as-root --oversubscribe); fi
  under mpirun mpirun "${as_root[@]}" -n 3
else
  skip "mpirun is not installed (openmpi-bin)"
fi
finish
