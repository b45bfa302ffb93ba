#!/usr/bin/env bash
# Every test that fits: sets up, builds, runs; the last line is `N passed, N failed, N skipped`, summed over all of it.
#
#   tests/run.sh          unit and command tests; readers, routing, data and kernels again under the sanitizers; 20 s of
#                         fuzzing; interop with stock transformers
#   tests/run.sh --all    also what takes long: tests/slow/*.sh, tests tagged [slow], 10 minutes of fuzzing
#
# A unit is a test case (Catch2), one fuzz target, or one interop or slow script's own count.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"

all=no
case "${1:-}" in
  '') ;;
  --all) all=yes ;;
  *) echo "tests/run.sh: unknown option '$1'; known: --all" >&2; exit 2 ;;
esac

passed=0 failed=0 skipped=0
say() { printf '\n== %s\n' "$*"; }
count() {  # PASSED FAILED SKIPPED
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# A script reports as this one does: its last line is "N passed, N failed, N skipped". Without such a line it counts once,
# by its exit code: 0 passed, 77 skipped, anything else failed.
run_script() {
  local log status=0 tally
  log=$(mktemp)
  "$@" </dev/null 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  tally=$(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p')
  rm -f "$log"
  if [ -n "$tally" ]; then
    # shellcheck disable=SC2086  # three numbers
    count $tally
    [ "$status" -eq 0 ] || [ "${tally#* 0 }" = "$tally" ] || count 0 1 0  # it failed and counted no failure
  elif [ "$status" -eq 0 ]; then count 1 0 0
  elif [ "$status" -eq 77 ]; then count 0 0 1
  else count 0 1 0
  fi
}

# Reads ctest's log: Catch2's own counts of each test file. A file that ended without a summary crashed: one failure.
tally_ctest() {
  awk '
    function close_file() {
      if (open && !summed) { if (outcome ~ /Skipped|Passed/) { if (!none) s++ } else f++ }
      else if (open && outcome !~ /Passed|Skipped/ && bad == 0) f++
      p += good; f += bad; s += skip
      open = good = bad = skip = summed = none = 0; outcome = ""
    }
    /^[0-9]+\/[0-9]+ Testing: / { close_file(); open = 1 }
    /^skipped: / { if (open) skip2++ }
    /^No tests ran/ { none = 1 }
    /^All tests passed/ { match($0, /in [0-9]+ test case/); good = substr($0, RSTART + 3) + 0; summed = 1 }
    /^test cases:/ {
      summed = 1
      if (match($0, /[0-9]+ passed/)) good = substr($0, RSTART) + 0
      if (match($0, /[0-9]+ failed/)) bad = substr($0, RSTART) + 0
      if (match($0, /[0-9]+ skipped/)) skip = substr($0, RSTART) + 0
    }
    /^Test (Passed|Failed|Skipped|Timeout)/ || /^Test (time)/ { if ($2 != "time") outcome = $2 }
    /^<end of output>/ { if (skip2 > 0) { skip += skip2; good -= skip2; skip2 = 0 } }
    END { close_file(); print p + 0, f + 0, s + 0 }
  ' "$1"
}

run_ctest() {  # PRESET ARGUMENTS...
  local preset=$1 status=0 tally
  shift
  ctest --preset "$preset" --timeout 900 "$@" </dev/null || status=$?
  tally=$(tally_ctest "build/$preset/Testing/Temporary/LastTest.log")
  # shellcheck disable=SC2086
  count $tally
  if [ "$status" -ne 0 ] && [ "$(cut -d' ' -f2 <<<"$tally")" = 0 ]; then count 0 1 0; fi
}

say "cpu: build everything"
recipes/setup.sh --checks --target all cpu

say "cpu: tests"
run_ctest cpu

# What reads hostile bytes or indexes by hand, under address and undefined-behaviour sanitizers.
sanitized=()
while read -r file; do
  target=${file#tests/}
  target=${target%.cpp}
  sanitized+=("${target//\//_}")
done < <(find tests/core/base tests/core/io tests/core/data tests/core/route tests/kernels -name '*_test.cpp' | sort)
say "asan: ${#sanitized[@]} test files"
asan_targets=()
for target in "${sanitized[@]}"; do asan_targets+=(--target "$target"); done
recipes/setup.sh "${asan_targets[@]}" asan
run_ctest asan -R "^($(IFS='|'; echo "${sanitized[*]}"))$"

seconds=20
[ "$all" = no ] || seconds=600
say "fuzzing, $seconds s"
run_script bash tests/fuzz/run.sh "$seconds"

say "interop: stock transformers"
run_script bash tests/interop/run.sh

run_slow_cases() {
  local binary
  for binary in build/cpu/*_test; do
    "$binary" --list-tests '[slow]' 2>/dev/null | grep -Eq '^[1-9][0-9]* (matching )?test case' || continue
    say "$binary [slow]"
    if "$binary" '[slow]' </dev/null; then count 1 0 0; else count 0 1 0; fi
  done
}
if [ "$all" = yes ]; then
  run_slow_cases
  for script in tests/slow/*.sh; do
    [ -e "$script" ] || continue
    say "$script"
    run_script bash "$script"
  done
fi

say "all of it"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
