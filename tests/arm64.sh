#!/usr/bin/env bash
# Linux on arm64: cross-compiled, and run under qemu-user. The last line is `N passed, N failed, N skipped`.
#
#   tests/arm64.sh           the tiles of matrix products and the vector loops of 16-bit numbers, which need no LibTorch, are compiled
#                            and run; all CPU kernels and their operators are compiled: a minute
#   tests/arm64.sh --all     also all of moe and every test of the CPU kernels, with LibTorch for arm64 (recipes/setup.sh arm64)
set -uo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root" || exit 2
. tests/support/tally.sh
all=no
case "${1:-}" in
  '') ;;
  --all) all=yes ;;
  *) echo "tests/arm64.sh: unknown option '$1'; known: --all" >&2; exit 2 ;;
esac

skip() {
  echo "skipped: $1"
  count 0 0 1
  finish
}
fail() {
  echo "FAILED $1"
  count 0 1 0
  failures+=("$1")
  finish
}

compiler=aarch64-linux-gnu-g++
[ "$(uname -m)" != aarch64 ] || skip "this machine is an arm64 one: the ordinary tests are all there is"
command -v $compiler >/dev/null || skip "no $compiler on this machine (apt-get install g++-aarch64-linux-gnu)"
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip "no qemu-aarch64 on this machine (apt-get install qemu-user)"
run=("$emulator" -L /usr/aarch64-linux-gnu)

# Catch2's counts of one test program; skips, of which Catch2 2 knows nothing, are not looked for.
run_cases() {  # PROGRAM ARGUMENTS...
  local log status=0 good bad
  log=$(mktemp)
  "${run[@]}" "$@" </dev/null 2>&1 | tee "$log" || status=$?
  good=$(sed -nE 's/^All tests passed.* in ([0-9]+) test cases?.*/\1/p; s/^test cases:.* ([0-9]+) passed.*/\1/p' "$log")
  bad=$(sed -nE 's/^test cases:.* ([0-9]+) failed.*/\1/p' "$log")
  if [ "$status" -ne 0 ] && [ -z "$bad" ]; then bad=1; fi
  count "${good:-0}" "${bad:-0}" 0
  if [ "${bad:-0}" -gt 0 ]; then failures+=("$*: $(tail -n 30 "$log")"); fi
  rm -f "$log"
}

# The inner loops of the widest tile keep all their sums in registers: of 24 multiply-adds none waits for memory of the stack.
no_loop_spills() {  # ASSEMBLY
  awk '
    /^\.L[0-9]+:/ { sums = stack = 0 }
    /\tfmla\t/ { sums++ }
    /\[sp/ { stack++ }
    /\tb[.a-z]*\t/ { if (sums >= 24) { loops++; spilled += stack } sums = stack = 0 }
    END { print loops + 0 " loops of 24 multiply-adds, " spilled + 0 " accesses to the stack in them"; exit loops == 0 || spilled > 0 }
  ' "$1"
}

# What is tested has a release's flags, the tests those under which they compile quickest.
tiles() {
  local folder=build/arm64-tiles source
  local -a cached=() flags=(-std=c++20 -DNDEBUG -I. -isystem "$folder/include" -fsigned-char -fopenmp -Wall -Wextra -Wpedantic -Werror)
  if [ ! -e /usr/include/catch2/catch.hpp ]; then
    echo "skipped: the Catch2 of this release is a library, which is not here for arm64; --all fetches it"
    count 0 0 1
    return
  fi
  if command -v ccache >/dev/null; then cached=(ccache); fi
  mkdir -p "$folder/include"
  ln -sfn /usr/include/catch2 "$folder/include/catch2"
  for source in kernels/cpu/{gemm_tile,amx_tile,bf16_words}; do
    "${cached[@]}" $compiler "${flags[@]}" -O3 -S "$source.cpp" -o "$folder/${source##*/}.s" || fail "compiling $source.cpp for arm64"
  done
  for source in tests/kernels/{gemm_tile,bf16_convert}_test tests/support/main; do
    "${cached[@]}" $compiler "${flags[@]}" -O1 -DMOE_BINARY='""' -DMOE_SOURCE_DIR='""' -c "$source.cpp" -o "$folder/${source##*/}.o" ||
      fail "compiling $source.cpp for arm64"
  done
  $compiler "$folder"/*.s "$folder"/*.o -o "$folder/tiles_test" || fail "linking the tests for arm64"
  run_cases "$folder/tiles_test"
  if no_loop_spills "$folder/gemm_tile.s"; then count 1 0 0; else fail "the widest tile of arm64 spills registers"; fi
}

# Against the headers of the LibTorch for this machine, which ask the compiler what it compiles for.
kernels() {
  local include folder
  include=$(compgen -G '.venv/lib/python3*/site-packages/torch/include') || {
    echo "skipped: the CPU kernels; .venv has no LibTorch (recipes/setup.sh puts it there)"
    count 0 0 1
    return
  }
  for folder in cpu ops; do
    printf '#include "%s"\n' kernels/$folder/*.cpp >build/arm64-tiles/kernels_$folder.cpp
    $compiler -std=c++20 -DNDEBUG -DMOE_VERSION='""' -I. -isystem "$include" -isystem "$include/torch/csrc/api/include" -fsigned-char -fopenmp \
      -Wall -Wextra -Wpedantic -Werror -fsyntax-only build/arm64-tiles/kernels_$folder.cpp || fail "compiling kernels/$folder for arm64"
  done
  count 1 0 0
}

whole() {
  local file
  recipes/setup.sh --target moe --target kernels_test arm64 || fail "building for arm64"
  for file in tests/kernels/*_test.cpp; do run_cases build/arm64/kernels_test -# "[#$(basename -- "$file" .cpp)]~[.]"; done
  if "${run[@]}" build/arm64/moe --version; then count 1 0 0; else fail "moe --version under qemu"; fi
}

tiles
kernels
[ "$all" = no ] || whole
finish
