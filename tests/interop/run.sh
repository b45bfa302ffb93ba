#!/usr/bin/env bash
# Interop with stock transformers, beside LibTorch's own Python package in .venv. The last line is
# `N passed, N failed, N skipped`: a script's own count when its last line has that form, else one each (exit code 77 = skipped).
#
#   tests/interop/run.sh [SCRIPT.py...]     default: all of this folder
#
# The binary is ./moe unless MOE says otherwise; the real model is looked for in MOE_SHARED_DATA, else ../shared/data.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
cd -- "$root"
export MOE=${MOE:-$root/build/cpu/moe} MOE_SHARED_DATA=${MOE_SHARED_DATA:-$root/../shared/data}
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false

passed=0 failed=0 skipped=0
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ "$failed" -eq 0 ]; exit; }

scripts=("$@")
[ ${#scripts[@]} -gt 0 ] || scripts=("$here"/*.py)

recipes/setup.sh --no-build --python "$here/requirements.txt"
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  echo "skipped: .venv has no torch that Python can import (it needs a CUDA 13 toolkit's libraries, or all of torch's wheels)"
  skipped=${#scripts[@]}
  finish
fi
if [ ! -d "$MOE_SHARED_DATA/stories260K-hf" ]; then
  echo "skipped: no real model; set MOE_SHARED_DATA or put stories260K-hf into ../shared/data"
  skipped=${#scripts[@]}
  finish
fi

for script in "${scripts[@]}"; do
  log=$(mktemp) status=0
  echo "-- ${script##*/}"
  .venv/bin/python "$script" </dev/null 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  counts=$(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p')
  rm -f "$log"
  if [ -z "$counts" ]; then
    case $status in 0) counts="1 0 0" ;; 77) counts="0 0 1" ;; *) counts="0 1 0" ;; esac
  fi
  read -r p f s <<<"$counts"
  if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ "$f" -eq 0 ]; then f=1; fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
finish
