#!/usr/bin/env bash
# Interop with stock transformers and LibTorch's Python package in .venv. The last line is
# `N passed, N failed, N skipped` (tests/support/tally.sh).
#
#   tests/interop/run.sh                    every script of this folder, with one case per form (MOE_INTEROP_SHORT=1): 3 minutes on 2 cores
#   tests/interop/run.sh --all              every case
#   tests/interop/run.sh SCRIPT.py...       every case of these scripts
#
# The binary is ./moe unless MOE says otherwise; MOE_SHARED_DATA has published models, tokenizers and
# benchmarks (default: ../shared/data); without it, scripts use the repository's model, and those that cannot are skipped.
set -euo pipefail
unset CDPATH

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
cd -- "$root"
export MOE=${MOE:-$root/build/cpu/moe} MOE_SHARED_DATA=${MOE_SHARED_DATA:-$root/../shared/data}
cache=$(mktemp -d) # of tokens: nothing of a test stays in the user's
trap 'rm -rf -- "$cache"' EXIT
export XDG_CACHE_HOME=$cache HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false

. tests/support/tally.sh

case "${1:-}" in
  '') scripts=("$here"/*.py); export MOE_INTEROP_SHORT=1 ;;
  --all) scripts=("$here"/*.py) ;;
  -*) echo "tests/interop/run.sh: unknown option '$1'; known: --all" >&2; exit 2 ;;
  *) scripts=("$@") ;;
esac

recipes/setup.sh --no-build --python "$here/requirements.txt"
if ! .venv/bin/python -I -c 'import torch' 2>/dev/null; then
  echo "skipped: .venv has no torch that Python can import (it needs a CUDA 13 toolkit's libraries, or all of torch's wheels)"
  count 0 0 ${#scripts[@]}
  finish
fi

# The harness is large and used by one script only, which is skipped if it cannot be installed.
if printf '%s\n' "${scripts[@]}" | grep -q 'eval_parity\.py$' && [ -z "${MOE_LM_EVAL_PYTHON:-}" ] && [ -d "$MOE_SHARED_DATA/bench" ]; then
  recipes/setup.sh --no-build --python "$here/requirements-eval.txt" ||
    echo "lm-evaluation-harness cannot be installed here; is there a network?"
fi

# Runs as many scripts in parallel as there are cores, each on one thread, and prints their logs in order.
export OMP_NUM_THREADS=1
logs=$cache/logs
mkdir -- "$logs"
printf '%s\0' "${scripts[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c '
  log=$2/${1##*/} status=0
  .venv/bin/python "$1" </dev/null >"$log" 2>&1 || status=$?
  echo "$status" >"$log.status"' _ {} "$logs"
replay() { cat -- "$logs/$1"; return "$(cat -- "$logs/$1.status")"; }
for script in "${scripts[@]}"; do
  echo "-- ${script##*/}"
  run_script replay "${script##*/}"
done
finish
