#!/usr/bin/env bash
# What the compiler gives each CUDA kernel: registers, shared memory, stack. Fails where a kernel spills registers or
# keeps an array in local memory, both of which are device memory in disguise. Needs nvcc, no GPU.
#
#   tests/kernels/resources.sh [kernels/cuda/FILE.cu...]      all of kernels/cuda/*.cu by default, for sm_80 and sm_90a
#
# MOE_NVCC names another nvcc. The last line is `N passed, N failed, N skipped`, a unit is one kernel for one GPU.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"

nvcc=${MOE_NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if [ ! -x "$nvcc" ]; then
  echo "skipped: no nvcc on this machine"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
files=("$@")
[ ${#files[@]} -gt 0 ] || files=(kernels/cuda/*.cu)

for file in "${files[@]}"; do
  for architecture in 80 90a; do
    # The flags of cmake/cuda.cmake that matter to code.
    "$nvcc" -c -O3 -std=c++17 -I. --expt-relaxed-constexpr -Xptxas -v -gencode "arch=compute_$architecture,code=sm_$architecture" \
      -o "$work/object" "$file" 2>"$work/log" || { cat "$work/log"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    sed "s|^|$file sm_$architecture |" "$work/log" >>"$work/report"
  done
done

# ptxas says, line after line: Compiling entry function 'NAME' ...; N bytes stack frame, N bytes spill stores, N bytes
# spill loads; Used N registers, ... N bytes smem.
awk '
  function number_before(words,    at) {
    at = match($0, "[0-9]+ " words)
    return at ? substr($0, RSTART) + 0 : 0
  }
  /Compiling entry function/ { match($0, /\047[^\047]*\047/); name = substr($0, RSTART + 1, RLENGTH - 2) }
  /bytes stack frame/ {
    stack = number_before("bytes stack frame"); spills = number_before("bytes spill stores") + number_before("bytes spill loads")
  }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5) + 0
    bad = stack + spills > 0
    printf "%-4s %-34s %-7s %3d registers %6d shared %4d stack %4d spilled  %s\n", bad ? "BAD" : "", $1, $2, registers,
           number_before("bytes smem"), stack, spills, name
    failed += bad; passed += !bad
  }
  END { printf "%d passed, %d failed, 0 skipped\n", passed, failed; exit failed > 0 || passed == 0 }
' "$work/report" | { command -v c++filt >/dev/null && c++filt || cat; } | sed 's/moe::kernels::(anonymous namespace):://; s/(anonymous namespace):://g'
