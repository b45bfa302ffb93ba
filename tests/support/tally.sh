# shellcheck shell=bash
# Sourced by the scripts that run tests. Each of them ends in one line, `N passed, N failed, N skipped`, so that the scripts
# add up: run_script counts a script by that line, or, where it has none, once by its exit code (0 passed, 77 skipped).
# Failures are repeated above that line, at the end of a long log.

passed=0 failed=0 skipped=0 failures=()
count() {  # PASSED FAILED SKIPPED
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

check() {  # WORDS COMMAND...: counts a check; if it fails, shows the ends of $work/err*
  local words=$1
  shift
  if "$@"; then echo "ok     $words"; count 1 0 0; return; fi
  echo "FAILED $words"
  count 0 1 0
  tail -n 5 "${work:-/nonexistent}"/err* 2>/dev/null | sed 's/^/       /' || true
}

skip() { echo "skipped: $*"; count 0 0 1; }

same_metrics() {  # RUN RUN: compares metrics.jsonl without times, rates and memory
  python3 -I - "$1/metrics.jsonl" "$2/metrics.jsonl" <<'PYTHON'
import json, sys
free = {"seconds", "tokens_per_second", "peak_memory_bytes", "data_wait_seconds", "evaluation_seconds"}
one, two = ([{k: v for k, v in json.loads(line).items() if k not in free} for line in open(name)] for name in sys.argv[1:])
if one != two:
    sys.exit(f"metrics differ: {len(one)} and {len(two)} lines, first at {next((a['step'] for a, b in zip(one, two) if a != b), 'the end')}")
PYTHON
}

run_script() {  # COMMAND...
  local log status=0 tally p f s
  log=$(mktemp)
  "$@" </dev/null 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  tally=$(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p')
  if [ -z "$tally" ]; then
    case $status in 0) tally="1 0 0" ;; 77) tally="0 0 1" ;; *) tally="0 1 0" ;; esac
  fi
  read -r p f s <<<"$tally"
  if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ "$f" -eq 0 ]; then f=1; fi  # it broke off
  count "$p" "$f" "$s"
  if [ "$f" -gt 0 ]; then failures+=("$*: $(tail -n 30 "$log")"); fi
  rm -f "$log"
}

# Sums Catch2's counts over ctest's log. A file that failed without a failed case (a crash, a leak, a time-out) is one
# failure. Catch2 2 has no skipped cases and counts them as passed: tests/support/catch.h prints a line for each.
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
  ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" --timeout 900 --no-tests=error "$@" </dev/null || status=$?
  read -r p f s <<<"$(tally_ctest "build/$preset/Testing/Temporary/LastTest.log")"
  if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  count "$p" "$f" "$s"
  if [ "$f" -gt 0 ]; then failures+=("$preset: $(failed_tests "build/$preset/Testing/Temporary")"); fi
}

# Prints the failed assertions of each failed test file and its last lines.
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

finish() {
  if [ ${#failures[@]} -gt 0 ]; then printf '\n-- failed: %s\n' "${failures[@]}"; fi
  echo "$passed passed, $failed failed, $skipped skipped"
  if [ "$failed" -gt 0 ]; then exit 1; fi
  exit 0
}
