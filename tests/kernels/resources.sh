#!/usr/bin/env bash
# Compares registers, shared memory, stack and occupancy of each CUDA kernel with tests/kernels/resources.txt. Fails if a row
# differs, and if a kernel spills registers or has an array in local memory, both of which are in device memory. Needs nvcc,
# no GPU.
#
#   tests/kernels/resources.sh [kernels/cuda/FILE.cu...]      all of kernels/cuda/*.cu by default, for sm_80 and sm_90a
#   tests/kernels/resources.sh --renew                        rewrites the table
#
# MOE_NVCC names another nvcc, MOE_RESOURCES another table. If the version of nvcc is not that of the table, only spills are
# checked. The last line is `N passed, N failed, N skipped`, a unit is one kernel for one GPU.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"

table=${MOE_RESOURCES:-tests/kernels/resources.txt}
nvcc=${MOE_NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if [ ! -x "$nvcc" ]; then
  echo "skipped: no nvcc on this machine"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
renew=no
if [ "${1:-}" = --renew ]; then renew=yes; shift; fi
files=("$@")
[ ${#files[@]} -gt 0 ] || files=(kernels/cuda/*.cu)
if [ "$renew" = yes ] && [ $# -gt 0 ]; then echo "--renew takes no files: the table is whole" >&2; exit 2; fi
version=$("$nvcc" --version | sed -nE 's/.*release [0-9.]+, V([0-9.]+).*/\1/p')

for file in "${files[@]}"; do
  for architecture in 80 90a; do
    # The flags of cmake/cuda.cmake that matter to code.
    "$nvcc" -c -O3 -std=c++17 -I. --expt-relaxed-constexpr -Xptxas -v -gencode "arch=compute_$architecture,code=sm_$architecture" \
      --keep --keep-dir "$work" -o "$work/object" "$file" 2>"$work/log" ||
      { cat "$work/log"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    sed "s|^|$file sm_$architecture |" "$work"/*.ptx "$work/log" >>"$work/report"
    rm -f "$work"/*.ptx
  done
done

# PTX has `.entry NAME(...) .maxntid N` for kernels with launch bounds; the others have 256 threads. ptxas prints the lines
# Compiling entry function 'NAME' ...; N bytes stack frame, N bytes spill stores, N bytes spill loads; Used N
# registers, ... N bytes smem. A multiprocessor of both GPUs has 2048 threads, 65536 registers in four parts, 32 blocks at most,
# and 164 or 228 KiB of shared memory, of which a block uses 1 KiB in addition to its own.
awk '
  function number_before(words,    at) {
    at = match($0, "[0-9]+ " words)
    return at ? substr($0, RSTART) + 0 : 0
  }
  function least(a, b) { return a < b ? a : b }
  function occupancy(registers, shared, threads, memory,    of_warp, blocks) {
    of_warp = int((registers * 32 + 255) / 256) * 256
    blocks = least(int(int(16384 / of_warp) * 4 / (threads / 32)), least(32, int(2048 / threads)))
    return least(blocks, int(memory / (int((shared + 127) / 128) * 128 + 1024))) * threads / 2048
  }
  / \.visible \.entry |\.entry / { match($0, /\.entry [A-Za-z0-9_$]+/); entry = substr($0, RSTART + 7, RLENGTH - 7) }
  / \.maxntid / { match($0, /\.maxntid [0-9]+/); most[$1 $2 entry] = substr($0, RSTART + 9, RLENGTH - 9) + 0 }
  /Compiling entry function/ { match($0, /\047[^\047]*\047/); name = substr($0, RSTART + 1, RLENGTH - 2) }
  /bytes stack frame/ {
    stack = number_before("bytes stack frame"); spills = number_before("bytes spill stores") + number_before("bytes spill loads")
  }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5) + 0
    shared = number_before("bytes smem")
    threads = (($1 $2 name) in most) ? most[$1 $2 name] : 256
    printf "%s %s %d threads %d registers %d shared %d stack %d spilled %d %% %s\n", $1, $2, threads, registers, shared, stack,
           spills, 100 * occupancy(registers, shared, threads, ($2 == "sm_80" ? 164 : 228) * 1024), name
  }
' "$work/report" | { command -v c++filt >/dev/null && c++filt || cat; } |
  sed 's/moe::kernels:://g; s/(anonymous namespace):://g; s/ % void / % /; s/\( % [^(]*\)(.*/\1/' |
  LC_ALL=C sort -k1,1 -k2,2 -k15 >"$work/found"

if [ "$renew" = yes ]; then
  {
    echo "# Written by tests/kernels/resources.sh --renew, which tests/kernels/resources.sh compares with. The last but one"
    echo "# column is the occupancy: the share of a multiprocessor's threads that can be there at once."
    echo "# nvcc $version"
    cat "$work/found"
  } >"$table"
  echo "wrote $table"
fi

# The key of a row is its file, GPU and kernel; the other columns are compared.
awk -v version="$version" -v table="$table" '
  function key_of(    key, at) { at = index($0, " % "); return $1 " " $2 " " substr($0, at + 3) }
  NR == FNR && /^# nvcc / { kept_version = $3 }
  NR == FNR { if (!/^#/) kept[key_of()] = $0; next }
  {
    files[$1] = 1
    seen[key_of()] = 1
    wrong = ($9 + $11 > 0) ? "spills" : ""
    expected = (key_of() in kept) ? kept[key_of()] : "nothing"
    if (kept_version == version && expected != $0) wrong = wrong (wrong == "" ? "" : "; ") "the table has: " expected
    print (wrong == "" ? "    " : "BAD ") $0 (wrong == "" ? "" : "  (" wrong ")")
    failed += wrong != ""; passed += wrong == ""
  }
  END {
    for (key in kept) {
      split(key, part, " ")
      if (kept_version == version && !(key in seen) && (part[1] in files)) {
        print "BAD  the table has a kernel that is not there: " kept[key]
        failed++
      }
    }
    if (kept_version != version) {
      printf "skipped: %s is of nvcc %s, this is %s: registers are not compared\n", table, kept_version, version
      skipped = 1
    }
    if (failed) printf "Where a row is meant to change: `tests/kernels/resources.sh --renew` writes %s, and the commit shows what changed.\n", table
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0 || passed == 0
  }
' "$table" "$work/found"
