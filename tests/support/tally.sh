# shellcheck shell=bash
# Sourced by the scripts that run tests. Each of them ends in one line, `N passed, N failed, N skipped`, so that the scripts
# add up: run_script counts a script by that line, or, where it has none, once by its exit code (0 passed, 77 skipped).
# What failed is named once more above that line, so that the end of a long log says it.

passed=0 failed=0 skipped=0 failures=()
count() {  # PASSED FAILED SKIPPED
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
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

finish() {
  if [ ${#failures[@]} -gt 0 ]; then printf '\n-- failed: %s\n' "${failures[@]}"; fi
  echo "$passed passed, $failed failed, $skipped skipped"
  if [ "$failed" -gt 0 ]; then exit 1; fi
  exit 0
}
