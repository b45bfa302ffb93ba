#!/usr/bin/env bash
# Builds the tests of the loader, the trainer and the ranks with the preset `tsan` (thread sanitizer) and runs them; a report is a
# failure. LibTorch and libgomp are not instrumented: tests/support/tsan.supp suppresses reports inside them. The last line is
# `N passed, N failed, N skipped`.
#
#   tests/slow/tsan.sh [TEST...]     names of ctest, as in core_data_batches_test; default: all of them
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh

tests=("$@")
if [ "${#tests[@]}" -eq 0 ]; then
  tests=(core_data_batches_test core_data_examples_test core_data_token_cache_test core_train_stop_signals_test
         core_train_trainer_test 'core_distributed_.*')
fi
recipes/setup.sh --checks --target core_data_test --target core_train_test --target core_distributed_test \
  --target core_distributed_nccl_test tsan || { count 0 1 0; finish; }

# More OpenMP threads or processes would only add false reports about LibTorch, which is not instrumented.
export OMP_NUM_THREADS=1
export TSAN_OPTIONS="suppressions=$root/tests/support/tsan.supp history_size=4 exitcode=66"
run_ctest tsan --parallel 1 -R "^($(IFS='|'; echo "${tests[*]}"))$"
finish
