#!/usr/bin/env bash
# The wheel: built from this checkout against the torch of .venv, installed into a fresh virtual environment, and used there with
# nothing of this checkout in sight. The environment's torch is one without CUDA (that of .venv with those libraries hidden), and no
# package index is asked. The last line is `N passed, N failed, N skipped`.
#
#   tests/wheel/run.sh
#   tests/wheel/run.sh --cuda    the wheel with the CUDA half (needs nvcc), beside a torch that has its own: that it fits, and opens
set -uo pipefail
unset CDPATH

cuda=OFF
case "${1:-}" in
  '') ;;
  --cuda) cuda=ON ;;
  *) echo "tests/wheel/run.sh: unknown option '$1'; known: --cuda" >&2; exit 2 ;;
esac

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root" || exit 2
. tests/support/tally.sh
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

check() {  # WORDS COMMAND...
  local words=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "ok     $words (${SECONDS} s so far)"
    count 1 0 0
  else
    echo "FAILED $words"
    count 0 1 0
    failures+=("$words: $(tail -n 30 "$work/log")")
  fi
}
refuses() {  # WORDS COMMAND...: the command ends with exit code 2 and says WORDS in one line
  local words=$1 said status=0
  shift
  said=$("$@" 2>&1 >/dev/null) || status=$?
  echo "exit code $status: $said"
  [ "$status" -eq 2 ] && [ "$(wc -l <<<"$said")" -eq 1 ] && grep -qF -- "$words" <<<"$said"
}

recipes/setup.sh --no-build || exit 1
python=$root/.venv/bin/python
# By the compilers' names in the presets, so that the cache of the build serves this one.
check "the wheel is built" env CC=cc CXX=c++ "$python" -m pip wheel -v --disable-pip-version-check --no-deps -w "$work/wheel" \
  -C cmake.define.MOE_CUDA=$cuda "$root"
wheel=$(compgen -G "$work/wheel/*.whl") || finish

torch_version=$(grep -oP '^torch==\K[0-9.]+' recipes/libtorch.txt) || exit 1
contents() { "$python" -m zipfile -l "$wheel"; }
pins_one_torch() {  # the version that setup.sh installs too
  unzip_text '*.dist-info/METADATA' | grep -xF "Requires-Dist: torch==$torch_version"
}
unzip_text() {
  "$python" -I -c 'import fnmatch, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
print(*(wheel.read(name).decode() for name in wheel.namelist() if fnmatch.fnmatch(name, sys.argv[2])))' "$wheel" "$1"
}
is_small() { stat -c '%s bytes' "$wheel"; [ "$(stat -c %s "$wheel")" -lt 20000000 ]; }
holds_no_torch() { contents; ! contents | grep -E 'libtorch|libc10|libgomp|libcu'; }
check "it is under 20 MB: $(stat -c %s "$wheel" | numfmt --to=si)" is_small
check "it has no LibTorch inside" holds_no_torch
check "it asks for the torch of recipes/libtorch.txt" pins_one_torch

# A torch that pip takes for installed, without its CUDA half where the wheel has none.
"$python" -m venv "$work/env"
site=$(compgen -G "$work/env/lib/python3*/site-packages")
torch=$(compgen -G "$root/.venv/lib/python3*/site-packages/torch")
mkdir -p "$site"/torch/lib "$site/torch-$torch_version.dist-info"
printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$torch_version" >"$site/torch-$torch_version.dist-info/METADATA"
cp "$torch/version.py" "$site/torch"
for library in "$torch"/lib/*.so*; do
  case "$cuda ${library##*/}" in "OFF "*cuda* | "OFF "*nvshmem*) ;; *) ln -s "$(realpath -- "$library")" "$site/torch/lib/${library##*/}" ;; esac
done
if [ -e "$torch/../nvidia" ]; then ln -s "$(realpath -- "$torch/../nvidia")" "$site/nvidia"; fi
check "it is installed, and torch is not fetched" "$work/env/bin/python" -m pip install --disable-pip-version-check --no-index "$wheel"

mkdir "$work/elsewhere"
cd -- "$work/elsewhere" || exit 1
package=$site/moe_upcycle
moe() { env -i HOME="$work" PATH=/usr/bin:/bin "$work/env/bin/moe" "$@"; }
says_version() { moe --version | grep -xF "moe $(sed -nE 's/^project\(moe VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")"; }
# Every library is the environment's own, but for those of the C and C++ compilers.
needs_no_system_library() {
  env -i ldd "$package/moe"
  env -i ldd "$package/moe" >libraries
  ! grep -vE '^\s(linux-vdso|/lib(64)?/ld-|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so)' libraries | grep -vF "=> $work/env"
}
check "moe --version" says_version
if [ "$cuda" = ON ]; then
  # By a driver of no function: the half is found and fits, and has no GPU to show.
  mkdir driver
  gcc -shared -x c /dev/null -o driver/libcuda.so.1
  finds_no_gpu() { refuses "the driver shows no GPU" env LD_LIBRARY_PATH="$PWD/driver" "$work/env/bin/moe" generate model --prompt x --device cuda; }
  check "it holds the CUDA half" test -s "$package/libmoe_cuda.so"
  check "--device cuda opens it" finds_no_gpu
  finish
fi
check "its libraries lie beside it, or in torch" needs_no_system_library
check "moe quickstart --short" moe quickstart --short
check "it leaves a page" test -s runs/quickstart/quickstart.html
check "an evaluation" moe eval runs/quickstart/moe-tuned/final --tasks runs/quickstart/texts/quiz.jsonl --bos on --limit 1200 -o scores
scores_equal() { cmp runs/quickstart/scores/moe-tuned/samples_quiz.jsonl scores/samples_quiz.jsonl; }
check "it repeats what the quickstart scored" scores_equal
check "--device cuda is refused in a sentence" refuses "cuda" moe eval runs/quickstart/moe-tuned/final --device cuda \
  --tasks runs/quickstart/texts/quiz.jsonl
check "a folder that holds something else is left alone" refuses "holds something else" moe quickstart -o "$package"

# The tests of commands that ask for nothing of a source tree, nor for the folder of the binary, with the installed one; as many at
# once as there are cores.
passes_command_test() {  # FILE
  local status=0
  "$root/build/cpu/cli_test" -# "[#$1]~[.]" >"$work/$1.log" 2>&1 || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || { cat "$work/$1.log"; echo "failed: $1"; return 1; }
}
passes_command_tests() {
  local source
  local -a files=()
  for source in $(grep -L 'source_folder\|moe_binary\|tiny(' "$root"/tests/cli/*_test.cpp); do files+=("$(basename -- "$source" .cpp)"); done
  export -f passes_command_test
  root=$root work=$work MOE_BINARY=$work/env/bin/moe \
    xargs -P "$(nproc)" -I{} bash -c 'passes_command_test {}' <<<"$(printf '%s\n' "${files[@]}")"
}
if [ -x "$root/build/cpu/cli_test" ]; then
  check "it passes the tests of commands" passes_command_tests
else
  echo "skipped: the tests of commands with the installed binary; build/cpu has none (recipes/setup.sh --checks --target all cpu)"
  count 0 0 1
fi

sed -i "s/^__version__ = .*/__version__ = '2.10.0+cpu'/" "$site/torch/version.py"
check "a torch of another version is named" refuses "torch 2.10.0+cpu, but this moe was built for" moe --version
cp "$torch/version.py" "$site/torch"
mkdir "$work/other"
mv "$site/torch" "$site/nvidia" "$work/other"
check "a missing torch is named" refuses "no torch in this environment; run pip install torch==" moe --version
finds_torch_elsewhere() { env PYTHONPATH="$work/other" "$work/env/bin/moe" --version; }
touch "$work/other/torch/__init__.py"
check "a torch elsewhere on Python's path serves" finds_torch_elsewhere
finish
