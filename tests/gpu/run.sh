#!/usr/bin/env bash
# The first hour with a GPU: everything that has to be measured on one, in three calls of at most eight minutes, on a machine
# that has a GPU, PyTorch of the version that was built against, and no network. tests/gpu/README.md says what each row should
# give.
#
#   tests/gpu/run.sh pack [FOLDER]   here, after `recipes/setup.sh --target all gpu`: FOLDER (build/gpu-pack) has this script and
#                                    pack.tar.gz, of less than 64 MiB together; MOE_PACK_BUILD names another build than build/gpu
#   FOLDER/run.sh 1|2|3 [--only ROW]  there: runs a call and writes callN.json and callN.log to $OUT (or the folder it is called in):
#                                    1 tests, products, a layer; 2 kernel times, compute-sanitizer; 3 training, evaluation
#   tests/gpu/run.sh rehearse        packs build/cpu and runs the calls: as they are, where there is no GPU, and once more with
#                                    every row that a CPU can do at the size of a toy
#
# MOE_PYTHON names a Python with torch (default: python3). Exit code of a call: 0 every row ran and passed, 1 a row failed, 77 a
# row did not run and none failed.
set -euo pipefail
unset CDPATH

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
most_mib=64

stop() { echo "run.sh: $*" >&2; exit 2; }

# Libraries of the system that a bare machine may not have: not the C and C++ runtimes, not LibTorch's.
system_libraries() {  # BINARY
  ldd "$1" | awk '$3 ~ /^\/(usr\/)?lib/ { print $3 }' |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libutil|libgomp|ld-linux[^/]*)\.so' || true
}

pack() {  # FOLDER
  local out=$1 root build work binary
  root=$(cd -- "$here/../.." && pwd)
  build=${MOE_PACK_BUILD:-$root/build/gpu}
  [ -x "$build/moe" ] || stop "$build/moe is not there; build it: recipes/setup.sh --target all gpu"
  mkdir -p -- "$out"
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf -- '$work'" RETURN
  mkdir "$work/bin" "$work/lib"
  local -a binaries=("$build/moe" "$build/libmoe_ops.so")
  [ ! -e "$build/libmoe_cuda.so" ] || binaries+=("$build/libmoe_cuda.so")
  for binary in "$build"/kernels_cuda_test "$build"/core_cuda_test; do
    [ ! -x "$binary" ] || binaries+=("$binary")
  done
  for binary in "${binaries[@]}"; do
    strip -o "$work/bin/${binary##*/}" "$binary"
    python3 "$here/runpath.py" "$work/bin/${binary##*/}" \
      '$ORIGIN:$ORIGIN/../torch/lib:$ORIGIN/../torch/../nvidia/cu13/lib:$ORIGIN/../lib'
    system_libraries "$binary"
  done | sort -u | while read -r binary; do cp -L -- "$binary" "$work/lib/"; done
  [ -e "$work/bin/moe" ] || stop "packing $build failed"
  cp -- "$here/measure.py" "$here/peers.py" "$work/"
  # The version of LibTorch that the build is linked to.
  ldd "$build/moe" | sed -nE 's|.* => (.*)/lib/libtorch_cpu\.so .*|\1/version.py|p' | xargs sed -nE "s/^__version__ = '([^+']*).*/\1/p" >"$work/torch_version"
  sed -E '/^#/d; s/.* % //; s/<.*//' "$root/tests/kernels/resources.txt" | sort -u >"$work/kernels"
  git -C "$root" rev-parse HEAD >"$work/commit" 2>/dev/null || echo unknown >"$work/commit"
  tar -C "$work" -czf "$out/pack.tar.gz" .
  cp -- "$here/run.sh" "$out/"
  local bytes
  bytes=$(cat "$out/pack.tar.gz" "$out/run.sh" | wc -c)
  printf '%s: %d binaries of %s, %.1f MiB (of %d)\n' "$out" "${#binaries[@]}" "$build" "$(awk "BEGIN { print $bytes / 1048576 }")" $most_mib
  [ "$bytes" -le $((most_mib * 1048576)) ] || stop "the pack is larger than $most_mib MiB: build without debug information"
}

call() {  # NUMBER ARGUMENTS...
  local work torch python=${MOE_PYTHON:-python3} out status=0
  out=${OUT:-$PWD}
  [ -e "$here/pack.tar.gz" ] || stop "$here has no pack.tar.gz: tests/gpu/run.sh pack writes a folder that has it, and this script"
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf -- '$work'" RETURN
  tar -C "$work" -xzf "$here/pack.tar.gz"
  torch=$("$python" -I -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) ||
    stop "$python has no torch; MOE_PYTHON names one that has"
  ln -s "$torch" "$work/torch"
  "$python" "$work/measure.py" "$@" --pack "$work" --out "$out" 2>&1 | tee "$out/call$1.log" || status=${PIPESTATUS[0]}
  return "$status"
}

# A call by its exit code and the states of its rows.
expect() {  # FOLDER NUMBER STATUS STATES ARGUMENTS...
  local folder=$1 number=$2 wanted=$3 states=$4 status=0 found
  shift 4
  OUT=$folder "$folder/run.sh" "$number" "$@" >"$folder/said" 2>&1 || status=$?
  found=$(python3 -I -c 'import json, sys; print(",".join(sorted({row["state"] for row in json.load(open(sys.argv[1]))["rows"]})))' \
    "$folder/call$number.json" || true)
  if [ "$status" = "$wanted" ] && [ "$found" = "$states" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    cat "$folder/said"
    echo "FAILED: call $number $* ended with $status (not $wanted), its rows are '$found' (not '$states')"
  fi
}

rehearse() {
  local folder root number
  root=$(cd -- "$here/../.." && pwd)
  passed=0 failed=0
  folder=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf -- '$folder'" RETURN
  export MOE_PYTHON=${MOE_PYTHON:-$(ls "$root/.venv/bin/python" 2>/dev/null || echo python3)}
  MOE_PACK_BUILD=${MOE_PACK_BUILD:-$root/build/cpu} pack "$folder"
  for number in 1 2 3; do
    CUDA_VISIBLE_DEVICES= expect "$folder" "$number" 77 "not run"
  done
  expect "$folder" 1 0 "passed" --rehearse
  expect "$folder" 2 77 "not run,passed" --rehearse
  if "$MOE_PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("transformers") is None)'; then
    expect "$folder" 3 0 "passed" --rehearse
  else
    expect "$folder" 3 77 "not run,passed" --rehearse
  fi
  # Every row has its place in the README.
  for number in 1 2 3; do
    python3 "$here/measure.py" "$number" --list
  done | while read -r row; do grep -qF "| $row |" "$here/README.md" || echo "$row"; done >"$folder/missing"
  if [ -s "$folder/missing" ]; then
    failed=$((failed + 1))
    sed 's/^/FAILED: tests\/gpu\/README.md has no row: /' "$folder/missing"
  else
    passed=$((passed + 1))
  fi
  echo "$passed passed, $failed failed, 0 skipped"
  [ "$failed" -eq 0 ]
}

case "${1:-}" in
  pack) pack "${2:-$here/../../build/gpu-pack}" ;;
  1 | 2 | 3) call "$@" ;;
  rehearse) rehearse ;;
  *) stop "'${1:-}': known: pack, 1, 2, 3, rehearse" ;;
esac
