#!/usr/bin/env bash
# Attacks on a run of two ranks. Under `moe --ranks` another user cannot open its descriptors (tests/cli/ranks_test.cpp checks that
# its sockets listen on the loopback interface only). With the environment of a launcher, a client connects to the store with c10d's protocol, writes
# paths of private files and broken records under our keys and sends 10,000 random messages; a second run is started on the same
# port. Each time the run ends with the weights of an undisturbed run, and no private file has changed. (A client that writes valid
# records, deletes keys or connects to Gloo can end such a run: core/distributed/threat_model.md.) The last line is
# `N passed, N failed, N skipped`.
#
#   tests/slow/stranger.sh [MESSAGES] [SEED]        environment: MOE (the binary)
set -uo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root" || exit 2
. tests/support/tally.sh
moe=${MOE:-$root/build/cpu/moe}
messages=${1:-10000}
seed=${2:-1}
port=$((20000 + ($$ * 7) % 12000))
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache

start() {  # RUN ARGUMENTS...: execs moe; call it in a subshell
  local run=$1
  shift
  exec "$moe" train "$work/model" -o "$run" --data recipes/tiny/instruct.jsonl --config recipes/tiny/tune.toml --steps 300 \
    --save-every 100 --quiet "$@"
}
same_end() { cmp "$work/whole/final/model.safetensors" "$1/final/model.safetensors"; }
baits_are_whole() { (cd "$work/baits" && sha256sum --quiet -c "$work/baits.sha256"); }
listens() {  # COUNT PID...: each listens at COUNT addresses or more
  local count=$1 pid
  shift
  for pid in "$@"; do [ "$(python3 "$work/stranger.py" listening "$pid" 2>/dev/null | wc -l)" -ge "$count" ] || return 1; done
}
wait_until_listening() {  # COUNT PID...
  local _
  for _ in $(seq 600); do
    listens "$@" && return 0
    sleep 0.1
  done
  return 1
}

cat >"$work/stranger.py" <<'PYTHON'
"""stranger.py listening PID...                  prints where these processes listen, an address a line
   stranger.py attack PORT N SEED BAITS PID...   attacks the store at a port, with N random messages"""
import json, os, random, socket, struct, sys

def inodes(pids):
    found = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found

def listening(pids):
    mine, places = inodes(pids), []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:
                address, port = fields[1].split(":")
                words = [int(address[i:i + 8], 16) for i in range(0, len(address), 8)]
                raw = b"".join(struct.pack("=I", word) for word in words)
                places.append((family, (socket.inet_ntop(family, raw), int(port, 16))))
    for line in open("/proc/net/unix").readlines()[1:]:
        fields = line.split()
        if fields[6] in mine and int(fields[3], 16) & 0x10000:
            places.append((socket.AF_UNIX, fields[7] if len(fields) > 7 else ""))
    return places

VALIDATE, SET, GET, CHECK, APPEND = 0, 1, 3, 5, 9  # of c10d's TCPStore
MAGIC = 0x3C85F7CE

def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("=Q", len(value)) + value

def connect(family, address, say_hello=True):
    stranger = socket.socket(family, socket.SOCK_STREAM)
    stranger.settimeout(2)
    stranger.connect(address)
    if say_hello:
        stranger.sendall(struct.pack("=BI", VALIDATE, MAGIC))
    return stranger

def read_exactly(stranger, count):
    data = b""
    while len(data) < count:
        part = stranger.recv(count - len(data))
        if not part:
            raise OSError("hung up")
        data += part
    return data

def get(stranger, key):
    stranger.sendall(struct.pack("=BQ", CHECK, 1) + text(key))
    if read_exactly(stranger, 1)[0] != 0:
        return None
    stranger.sendall(struct.pack("=B", GET) + text(key))
    return read_exactly(stranger, struct.unpack("=Q", read_exactly(stranger, 8))[0]).decode()

def play(family, address, baits):
    stranger = connect(family, address)
    prefix = "/moe////"  # of a run whose launcher has no name for it
    assert get(stranger, prefix + "member/0") is not None  # the keys are the right ones
    paths = [os.path.join(baits, name) for name in sorted(os.listdir(baits))]
    for key in ("memory", "all/memory", "all/split.0.0/memory", "long_operation", "member/2", "member/-1"):
        for path in paths:
            for value in (path, f"/proc/{os.getpid()}/fd/0", "0", "-1", "99999999999999999999", ""):
                stranger.sendall(struct.pack("=B", SET) + text(prefix + key) + text(value))
    for reason in (-1, 6, 99):  # no reason that a report may have
        for rank in (-1, 0, 1, 2):
            record = {"rank": rank, "reason": reason, "culprit": rank, "text": "\x1b]0;owned\x07", "sentence": "x\ny",
                      "operation": "", "number": 0, "waited_ms": 0}
            stranger.sendall(struct.pack("=B", APPEND) + text(prefix + "reports") + text(json.dumps(record) + "\n"))
    for line in ("{", "[]", '{"rank": 1e99}', "[" * 5000, "\xff" * 50, '{"rank": 0, "reason": 3}'):
        stranger.sendall(struct.pack("=B", APPEND) + text(prefix + "reports") + text(line + "\n"))
    print(f"the store at {address} was played with")

def main():
    word, rest = sys.argv[1], sys.argv[2:]
    if word == "listening":
        for family, address in listening(rest):
            print(address[0] if family != socket.AF_UNIX else f"unix {address}")
        return
    port, count, seed, baits, pids = int(rest[0]), int(rest[1]), int(rest[2]), rest[3], rest[4:]
    places = [(family, address) for family, address in listening(pids) if family != socket.AF_UNIX and address[1] == port]
    dice, refused = random.Random(seed), 0
    for family, address in places:
        play(family, address, baits)
    for number in range(count if places else 0):
        family, address = dice.choice(places)
        try:
            with connect(family, address, dice.random() < 0.8) as stranger:
                # All queries except delete (8).
                kind = dice.choice([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 20, 100, 255])
                body = dice.randbytes(dice.choice([0, 1, 7, 8, 9, 40, 300, 5000]))
                if dice.random() < 0.5:
                    body = struct.pack("=Q", dice.choice([0, 1, 8, 2**20, 2**40, 2**63, 2**64 - 1])) + body
                stranger.sendall(bytes([kind]) + body)
        except OSError:
            refused += 1
        if not all(os.path.exists(f"/proc/{pid}") for pid in pids):
            print(f"the run was over after {number} messages")
            sys.exit(1)
    print(f"{count if places else 0} messages to {len(places)} sockets, {refused} of them refused")
    sys.exit(0 if places else 1)

main()
PYTHON

mkdir "$work/baits"
printf 'a private key\n' >"$work/baits/small"
head -c 20000000 /dev/urandom >"$work/baits/large"
chmod 600 "$work"/baits/*
(cd "$work/baits" && sha256sum -- *) >"$work/baits.sha256"
"$moe" upcycle recipes/tiny/model -o "$work/model" --experts 8 --layers even --router top1+ir+fr --quiet >/dev/null
(start "$work/whole" --ranks 2) >/dev/null 2>"$work/err"
check "two ranks, left alone" test -e "$work/whole/final/model.safetensors"

# --- moe --ranks ----------------------------------------------------------------------------------------------------------
(start "$work/inherited" --ranks 2) >/dev/null 2>"$work/err" &
launcher=$!
is_nobody_able=unknown
while kill -0 $launcher 2>/dev/null; do
  mapfile -t pids < <(pgrep -P $launcher)
  if [ "$is_nobody_able" = unknown ] && [ ${#pids[@]} -eq 2 ] && listens 1 "${pids[@]}" && [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    is_nobody_able=no
    for pid in $launcher "${pids[@]}"; do
      for descriptor in "/proc/$pid/fd"/*; do
        if setpriv --reuid 65534 --regid 65534 --clear-groups head -c 1 "$descriptor" >/dev/null 2>&1; then is_nobody_able=yes; fi
      done
    done
  fi
  sleep 0.2
done
wait $launcher
check "under --ranks: exit code 0" test $? -eq 0
check "the same weights" same_end "$work/inherited"
if [ "$is_nobody_able" = unknown ]; then
  skip "another user's account: needs root and setpriv"
else
  check "another user's account opens none of its descriptors" test $is_nobody_able = no
fi

# --- a launcher that is played by its environment ------------------------------------------------------------------------
rank() {  # RANK RUN
  export RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
  start "$2"
}
(rank 0 "$work/served") >"$work/out0" 2>"$work/err0" &
first=$!
(rank 1 "$work/served") >"$work/out1" 2>"$work/err1" &
second=$!
check "two ranks of another launcher" wait_until_listening 1 $first $second
python3 "$work/stranger.py" attack "$port" "$messages" "$seed" "$work/baits" $first $second
check "the stranger played its part" test $? -eq 0
(rank 1 "$work/other") >/dev/null 2>"$work/err2"
check "a second run on the same port is refused" test $? -eq 2
check "and told why" grep -q "same MASTER_ADDR and MASTER_PORT" "$work/err2"
wait $first
check "rank 0 ends well" test $? -eq 0
wait $second
check "rank 1 ends well" test $? -eq 0
no_control() { ! grep -q $'\x1b' "$work/err0"; }
check "no control character of theirs reaches the terminal" no_control
check "the same weights" same_end "$work/served"
check "no private file has changed" baits_are_whole
finish
