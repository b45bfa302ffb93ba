#!/usr/bin/env bash
# The CUDA kernels' tests under compute-sanitizer: memcheck (accesses past a buffer), racecheck (shared memory without a
# barrier), initcheck (device memory read before it is written). Needs a GPU and a built gpu preset:
#
#   recipes/setup.sh --target kernels_cuda_test gpu && tests/kernels/sanitize.sh [FILE...]
#
# FILE... are names of tests/kernels/cuda/*.cpp and tests/core/route/cuda/*.cpp as in permute_test; all of them by default.
#
# Where there is no GPU the same tests run on fibers (tests/support/emulated_cuda), under the address sanitizer in the asan
# preset. The last line is `N passed, N failed, N skipped`; a unit is one test file under one tool.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh

skip() {
  echo "skipped: $1"
  count 0 0 1
  finish
}

tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
{ command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; } || skip "no GPU on this machine"
[ -x "$tool" ] || skip "no compute-sanitizer on this machine"
binary=build/gpu/kernels_cuda_test
[ -x "$binary" ] || skip "build/gpu has no kernel tests: recipes/setup.sh --target kernels_cuda_test gpu"
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  # Catch2 2 exits with the number of tags.
  mapfile -t files < <({ "$binary" -# --list-tags '[gpu]' || true; } | grep -oP '\[#\K\w+(?=\])')
  [ ${#files[@]} -gt 0 ] || { count 0 1 0; failures+=("$binary lists no case that is tagged [gpu]"); finish; }
fi

for file in "${files[@]}"; do
  for check in memcheck racecheck initcheck; do
    echo "== $check $file"
    # LibTorch's allocator hands out pieces of large blocks; without it each buffer has ends of its own.
    if PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$tool" --tool "$check" --error-exitcode 1 --print-limit 20 "$binary" -# "[#$file][gpu]"; then
      count 1 0 0
    else
      count 0 1 0
    fi
  done
done
finish
