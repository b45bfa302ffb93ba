#!/usr/bin/env bash
# The loader, the saver and the ranks under the thread sanitizer: builds these tests with the preset `tsan` and runs them, a
# report being a failure. LibTorch and libgomp are not instrumented: tests/support/tsan.supp leaves out what they do inside.
# The last line is `N passed, N failed, N skipped`.
#
#   tests/slow/tsan.sh [TARGET...]     (default: all of them)
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh

targets=("$@")
if [ "${#targets[@]}" -eq 0 ]; then
  targets=(core_data_step_loader_test core_data_examples_test core_data_token_cache_test core_train_stop_signals_test
           core_train_trainer_test)
  while read -r file; do
    target=${file#tests/}
    target=${target%.cpp}
    targets+=("${target//\//_}")
  done < <(find tests/core/distributed -maxdepth 1 -name '*_test.cpp' | sort)
fi
wanted=()
for target in "${targets[@]}"; do wanted+=(--target "$target"); done
recipes/setup.sh --checks "${wanted[@]}" tsan || { count 0 1 0; finish; }

# A library that is not instrumented cannot be seen to take part, so one process at a time and one thread of OpenMP are
# enough to see ours; more only make LibTorch's own look like races.
export OMP_NUM_THREADS=1
export TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp history_size=4 exitcode=66"
for target in "${targets[@]}"; do
  status=0
  "build/tsan/$target" </dev/null || status=$?
  case $status in
    0) count 1 0 0 ;;
    77) count 0 0 1 ;;
    *) echo "$target: exit code $status"; count 0 1 0 ;;
  esac
done
finish
