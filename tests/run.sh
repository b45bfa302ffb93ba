#!/usr/bin/env bash
# Sets up, builds and runs the tests. The last line is the total: `N passed, N failed, N skipped`.
#
#   tests/run.sh          builds all targets; formatting; packages of other releases; unit and command tests; interop with stock
#                         transformers, one case per format; rehearsal of tests/gpu
#   tests/run.sh --ci     also readers, routing, data and kernels under the sanitizers; 5 s of fuzzing per target
#   tests/run.sh --all    also the long tests: every case of interop; a minute of fuzzing (tests/fuzz/run.sh 600 before a release);
#                         the wheel; the arm64 build and its CPU kernels under qemu; cases tagged [slow]; tests/slow/*.sh and
#                         hostile.py
#
# A unit is a test case (Catch2), the formatting, a fuzz target, or a unit that an interop, wheel, arm64 or slow script counts.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"

extent=
case "${1:-}" in
  '') ;;
  --ci | --all) extent=${1#--} ;;
  *) echo "tests/run.sh: unknown option '$1'; known: --ci, --all" >&2; exit 2 ;;
esac

. tests/support/tally.sh

sed -n '4,/^#$/s/^# \{0,1\}//p' tests/run.sh # prints the usage above

parts=() part="" part_began=0
end_part() {
  if [ -n "$part" ]; then parts+=("$(printf '%5d s  %s' $((SECONDS - part_began)) "$part")"); fi
}
say() {  # WORDS...: starts a part
  end_part
  part="$*" part_began=$SECONDS
  printf '\n== %s (%d s so far)\n' "$part" "$SECONDS"
}

build() {  # a failed build is one failure and ends the script
  recipes/setup.sh "$@" || { count 0 1 0; failures+=("building: $*"); finish; }
}

say "cpu: build everything"
build --checks --target all cpu

say "formatting of all tracked C++ and CUDA files"
if git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 .venv/bin/clang-format --dry-run -Werror; then
  count 1 0 0
else
  count 0 1 0
  failures+=("formatting")
fi

say "packages of other releases"
run_script python3 tests/releases.py

say "cpu: tests"
run_ctest cpu

say "interop: stock transformers"
if [ "$extent" = all ]; then run_script bash tests/interop/run.sh --all; else run_script bash tests/interop/run.sh; fi

say "rehearsal of tests/gpu"
run_script bash tests/gpu/run.sh rehearse

# Runs the tests of code that parses files or indexes memory under the address and undefined-behaviour sanitizers.
run_sanitizers() {
  local binary
  local -a targets=()
  say "asan: tests of base, tokenizer, io, data, route and kernels"
  for binary in core_{base,tokenizer,io,data,route}_test kernels{,_cuda}_test; do targets+=(--target "$binary"); done
  build "${targets[@]}" asan
  run_ctest asan -R '^(core_(base|tokenizer|io|data|route)|kernels)_'
}

run_fuzzing() {  # SECONDS
  say "fuzzing, $1 s"
  run_script bash tests/fuzz/run.sh "$1"
}

if [ -n "$extent" ]; then
  run_sanitizers
  if [ "$extent" = all ]; then run_fuzzing 60; else run_fuzzing 5; fi
fi
if [ "$extent" = all ]; then
  say "wheel: build, install, run"
  run_script bash tests/wheel/run.sh
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then run_script bash tests/wheel/run.sh --cuda; fi
  say "arm64: cross-compiled, under qemu"
  run_script bash tests/arm64.sh --all
  say "cpu: cases tagged [slow]"
  run_ctest cpu --verbose -C slow -L slow
  for script in tests/slow/*.sh; do
    [ -e "$script" ] || continue
    say "$script"
    run_script bash "$script"
  done
  say "tests/slow/hostile.py"
  run_script python3 -I tests/slow/hostile.py
fi

say "total"
printf '%s\n' "${parts[@]}"
finish
