#!/usr/bin/env bash
# Every test that fits: sets up, builds, runs; the last line is `N passed, N failed, N skipped`, summed over all of it.
#
#   tests/run.sh          builds all; formatting; packages of other releases; unit and command tests; interop with stock
#                         transformers; tests/gpu rehearsed
#   tests/run.sh --ci     also readers, routing, data and kernels under the sanitizers; 5 s of fuzzing a target
#   tests/run.sh --all    also what takes long: a minute of fuzzing (tests/fuzz/run.sh 600 before a release); the wheel; moe and
#                         the CPU kernels' tests for arm64, under qemu; tests tagged [slow]; tests/slow/*.sh and hostile.py
#
# A unit is a test case (Catch2), the formatting, one fuzz target, or one interop, wheel, arm64 or slow script's own count.
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

sed -n '4,/^#$/s/^# \{0,1\}//p' tests/run.sh # what will be done

parts=() part="" part_began=0
end_part() {
  if [ -n "$part" ]; then parts+=("$(printf '%5d s  %s' $((SECONDS - part_began)) "$part")"); fi
}
say() {  # WORDS...: a part begins
  end_part
  part="$*" part_began=$SECONDS
  printf '\n== %s (%d s so far)\n' "$part" "$SECONDS"
}

# Sums Catch2's own counts over ctest's log. A file that failed without a failed case (a crash, a leak, a time-out) is one
# failure. Catch2 2 knows no skipped cases: tests/support/catch.h prints a line for each and they count as passed there.
tally_ctest() {
  awk '
    /^[0-9]+\/[0-9]+ Testing: / { good = bad = skip = said = 0 }
    /^skipped: / { said++ }
    /^All tests passed/ { match($0, /in [0-9]+ test case/); good = substr($0, RSTART + 3) + 0 }
    /^test cases:/ {
      if (match($0, /[0-9]+ passed/)) good = substr($0, RSTART) + 0
      if (match($0, /[0-9]+ failed/)) bad = substr($0, RSTART) + 0
      if (match($0, /[0-9]+ skipped/)) skip = substr($0, RSTART) + 0
    }
    /^Test (Passed|Failed)\.$/ {
      if ($2 == "Failed." && bad == 0) bad = 1
      if (skip == 0 && said <= good) { skip = said; good -= said }
      p += good; f += bad; s += skip
    }
    END { print p + 0, f + 0, s + 0 }
  ' "$1"
}

run_ctest() {  # PRESET ARGUMENTS...
  local preset=$1 status=0 p f s
  shift
  ctest --preset "$preset" --parallel "$(nproc)" --timeout 900 "$@" </dev/null || status=$?
  read -r p f s <<<"$(tally_ctest "build/$preset/Testing/Temporary/LastTest.log")"
  if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  count "$p" "$f" "$s"
  if [ "$f" -gt 0 ]; then failures+=("$preset: $(failed_tests "build/$preset/Testing/Temporary")"); fi
}

# What each failed test file said of the assertions that failed, and its last lines (all there is of a crash or a time-out).
failed_tests() {  # FOLDER
  tr '\n' ' ' <"$1/LastTestsFailed.log"
  awk '
    /^[0-9]+\/[0-9]+ Testing: / { name = $3; lines = 0; shown = 0; kept = "" }
    /FAILED:$/ && shown < 5 { shown++; left = 7 }
    left > 0 { kept = kept $0 "\n"; left-- }
    { last[lines++ % 15] = $0 }
    /^Test Failed\.$/ {
      printf "\n%s\n%s...\n", name, kept
      for (i = lines > 15 ? lines - 15 : 0; i < lines; i++) print last[i % 15]
    }
  ' "$1/LastTest.log"
}

build() {  # what does not build is one failure, and the end
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
run_script bash tests/interop/run.sh

say "the day of a GPU: rehearsed"
run_script bash tests/gpu/run.sh rehearse

# What reads hostile bytes or indexes by hand, under address and undefined-behaviour sanitizers.
run_sanitizers() {
  local file target
  local -a sanitized=() targets=()
  while read -r file; do
    target=${file#tests/}
    target=${target%.cpp}
    sanitized+=("${target//\//_}")
  done < <(find tests/core/base tests/core/tokenizer tests/core/io tests/core/data tests/core/route tests/kernels -name '*_test.cpp' | sort)
  say "asan: ${#sanitized[@]} test files"
  for target in "${sanitized[@]}"; do targets+=(--target "$target"); done
  build "${targets[@]}" asan
  run_ctest asan -R "^($(IFS='|'; echo "${sanitized[*]}"))$"
}

run_fuzzing() {  # SECONDS
  say "fuzzing, $1 s"
  run_script bash tests/fuzz/run.sh "$1"
}

run_slow_cases() {
  local binary
  for binary in build/cpu/*_test; do
    # Catch2 2 ends --list-tests with the number of tests as its exit code.
    { "$binary" --list-tests '[slow]' 2>/dev/null || true; } | grep -E '^[1-9][0-9]* (matching )?test case' >/dev/null || continue
    say "$binary [slow]"
    run_script "$binary" '[slow]'
  done
}
if [ -n "$extent" ]; then
  run_sanitizers
  if [ "$extent" = all ]; then run_fuzzing 60; else run_fuzzing 5; fi
fi
if [ "$extent" = all ]; then
  say "wheel: built, installed, used"
  run_script bash tests/wheel/run.sh
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then run_script bash tests/wheel/run.sh --cuda; fi
  say "arm64: cross-compiled, under qemu"
  run_script bash tests/arm64.sh --all
  run_slow_cases
  for script in tests/slow/*.sh; do
    [ -e "$script" ] || continue
    say "$script"
    run_script bash "$script"
  done
  say "tests/slow/hostile.py"
  run_script python3 -I tests/slow/hostile.py
fi

say "all of it"
printf '%s\n' "${parts[@]}"
finish
