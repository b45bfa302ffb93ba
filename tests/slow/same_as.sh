#!/usr/bin/env bash
# What an old commit computes, this one computes too: both binaries run the same commands on this machine (instruction sets
# round differently, so a stored answer would not do), and what they leave is compared byte for byte, times aside.
#
#   tests/slow/same_as.sh COMMIT           builds COMMIT beside this one and compares
#   tests/slow/same_as.sh --binary OLD     compares with a binary that is built already
#
# Environment: MOE (this build's binary), MOE_SHARED_DATA (benchmark files). Without an argument nothing is compared and the script
# counts as skipped.
# The last line is `N passed, N failed, N skipped`.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
moe=${MOE:-$root/build/cpu/moe}
work=$(mktemp -d)
old_tree=
cleanup() {
  [ -z "$old_tree" ] || git worktree remove --force "$old_tree"
  rm -rf -- "$work"
}
trap cleanup EXIT

build_old() {  # COMMIT: in a worktree of its own, with the LibTorch that is here
  local torch
  old_tree=$work/tree
  git worktree add --quiet --detach "$old_tree" "$1"
  torch=$(compgen -G "$root/.venv/lib/python3*/site-packages/torch/share/cmake/Torch" | head -n 1)
  Torch_DIR=${Torch_DIR:-$torch} "$old_tree/recipes/setup.sh" cpu >&2
  old=$old_tree/build/cpu/moe
}

case "${1:-}" in
  '') echo "skipped: name the commit to compare with"; echo "0 passed, 0 failed, 1 skipped"; exit 0 ;;
  --binary) old=$(realpath -- "${2:?--binary needs a path}") ;;
  -*) echo "same_as: unknown option '$1'; usage: tests/slow/same_as.sh COMMIT | --binary OLD" >&2; exit 2 ;;
  *) build_old "$1" ;;
esac

export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache
python3 tests/slow/same_as.py "$old" "$moe" "$work/runs" --data "${MOE_SHARED_DATA:-$root/../shared/data}"
