#!/usr/bin/env bash
# Installs what moe needs on a fresh Debian 12 or 13 or Ubuntu 24.04, and builds ./moe. Can be repeated: existing parts are kept.
#
#   recipes/setup.sh                 preset gpu if nvcc is installed, else cpu; ./moe is a link to the binary
#   recipes/setup.sh cpu asan        builds moe with each of these presets (CMakePresets.json)
#   recipes/setup.sh arm64           cross-compiles for Linux on arm64; its libraries are installed into build/arm64-libraries
#   recipes/setup.sh --checks cpu    also installs clang (fuzzing), clang-format, and qemu and a compiler for arm64
#   recipes/setup.sh --target all    builds this target instead of moe; may be repeated
#   recipes/setup.sh --python FILE   also installs the pinned Python packages of FILE into .venv
#   recipes/setup.sh --no-build      installs only packages and LibTorch
#   recipes/setup.sh --list          prints the system packages that would be installed (with --checks those of the checks too)
#   recipes/setup.sh --packages      installs only the system packages, for `pip install .` with an existing torch
#   recipes/setup.sh --yes           uses sudo for system packages without asking
#
# LibTorch is taken from Torch_DIR (its share/cmake/Torch) or CMAKE_PREFIX_PATH. Otherwise the wheels of recipes/libtorch.txt are
# installed into .venv. The Arrow libraries of recipes/parquet.txt go there too. Both files pin versions and SHA-256. System packages
# have the versions of the release. Without root they are installed by sudo, with --yes or after confirmation on the terminal.
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"

say() { printf '%s\n' "setup: $*" >&2; }
stop() { say "$@"; exit 2; }

called_from=$OLDPWD
checks=no list=no build=yes torch=yes yes=no presets=() targets=() python_packages=()
while [ $# -gt 0 ]; do
  case "$1" in
    --checks) checks=yes ;;
    --no-build) build=no ;;
    --packages) build=no torch=no ;;
    --list) list=yes ;;
    --yes) yes=yes ;;
    --target | --python)
      [ $# -ge 2 ] || stop "$1 needs a value"
      if [ "$1" = --target ]; then targets+=("$2"); else python_packages+=("$(cd -- "$called_from" && realpath -- "$2")"); fi
      shift ;;
    -*) stop "unknown option '$1'; known: --checks --target --python --no-build --packages --list --yes, then presets" ;;
    *) presets+=("$1") ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || targets=(moe)

nvcc_folder() {
  local found
  if found=$(command -v nvcc); then dirname -- "$found"
  elif [ -x /usr/local/cuda/bin/nvcc ]; then echo /usr/local/cuda/bin
  fi
}
cuda=$(nvcc_folder)
if [ ${#presets[@]} -eq 0 ]; then
  if [ -n "$cuda" ]; then presets=(gpu); else presets=(cpu); fi
fi
for_arm64=no
case " ${presets[*]} " in *' arm64 '*) for_arm64=yes ;; esac

# --- LibTorch given by the user: a folder that holds lib/libtorch_cpu.so -------------------------------------------------
cmake_options=()
given_torch=""
find_given_torch() {
  local prefix
  if [ -n "${Torch_DIR:-}" ]; then
    Torch_DIR=$(cd -- "$called_from" && realpath -m -- "$Torch_DIR")
    [ -e "$Torch_DIR/../../../lib/libtorch_cpu.so" ] ||
      stop "Torch_DIR=$Torch_DIR is not LibTorch's share/cmake/Torch: no lib/libtorch_cpu.so three folders up"
    given_torch=$Torch_DIR
    cmake_options+=("-DTorch_DIR=$Torch_DIR")
    return
  fi
  local -a prefixes
  IFS=':;' read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in ${prefixes[@]+"${prefixes[@]}"}; do
    if [ -e "$prefix/lib/libtorch_cpu.so" ] || [ -e "$prefix/torch/lib/libtorch_cpu.so" ]; then
      given_torch=$prefix
      cmake_options+=("-DCMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH//:/;}")
      return
    fi
  done
}
find_given_torch

# --- System packages ------------------------------------------------------------------------------------------------------
installed() { dpkg-query -W -f='${Status}\n' "$1" 2>/dev/null | grep -q '^install ok installed$'; }

libraries=(libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev catch2 libgloo-dev libsentencepiece-dev libxxhash-dev
           zlib1g-dev libzstd-dev libutf8proc-dev libonig-dev)
needed=(g++ cmake ninja-build pkg-config "${libraries[@]}")
wished=(git ccache mold) # faster builds; everything works without them
cross=(g++-aarch64-linux-gnu qemu-user)
[ -n "$given_torch" ] || [ "$torch" = no ] || needed+=(python3-venv)
[ "$checks" = no ] || needed+=(clang libclang-rt-dev) wished+=("${cross[@]}") # tests/arm64.sh skips without them
[ "$for_arm64" = no ] || needed+=("${cross[@]}" python3-venv)
if [ "$list" = yes ]; then
  printf '%s\n' "${needed[@]}" "${wished[@]}"
  exit 0
fi

may_use_sudo() {  # PACKAGE...
  local answer=""
  command -v sudo >/dev/null || return 1
  [ "$yes" = no ] || return 0
  [ -t 0 ] && [ -t 2 ] || return 1
  read -r -p "setup: install with sudo apt-get: $* ? [y/N] " answer
  [[ $answer = [yY] || $answer = [yY][eE][sS] ]]
}

install_packages() {
  local -a missing=() nice=()
  local package
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: expecting what Debian calls ${needed[*]}"
    return
  fi
  for package in "${needed[@]}"; do installed "$package" || missing+=("$package"); done
  for package in "${wished[@]}"; do installed "$package" || nice+=("$package"); done
  [ $((${#missing[@]} + ${#nice[@]})) -gt 0 ] || return 0

  local -a all=(${missing[@]+"${missing[@]}"} ${nice[@]+"${nice[@]}"}) as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if [ ${#missing[@]} -eq 0 ] && [ "$yes" = no ]; then return 0; fi # everything works without the rest
    may_use_sudo "${all[@]}" || stop "please install, then run this again, or give --yes to use sudo: sudo apt-get install ${all[*]}"
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n)
  fi
  say "installing system packages: ${all[*]}"
  local log
  log=$(mktemp)
  if ! { ${as_root[@]+"${as_root[@]}"} apt-get -q update &&
         ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
           apt-get -q -y --no-install-recommends install "${all[@]}"; } </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    stop "apt-get could not install ${all[*]} (its last words are above)"
  fi
  rm -f "$log"
}
install_packages
[ "$torch" = yes ] || exit 0

# --- LibTorch's wheels ----------------------------------------------------------------------------------------------------
site_packages() { compgen -G "$root/.venv/lib/python3*/site-packages" | head -n 1 || true; }

# Prints the requirements of FILE that FOLDER lacks, each with its hashes on one line. Compares the names of .dist-info folders,
# without Python.
lacking() {  # FILE FOLDER
  local site=$2 line name version there
  there=$(find "$site" -maxdepth 1 -name '*.dist-info' -printf '%f\n' 2>/dev/null | tr '[:upper:]' '[:lower:]' || true)
  while read -r line; do
    case "$line" in '' | '#'*) continue ;; esac
    version=${line##*==}
    name=${line%%==*}
    name=${name//-/_}-${version%% *}.dist-info
    grep -qxF "${name,,}" <<<"$there" || printf '%s\n' "$line"
  done < <(sed -e ':join' -e '/\\$/{N;s/ *\\\n */ /;b join' -e '}' "$1")
}

# Installs exactly the given requirements into .venv, without their dependencies, and checks their hashes.
pip_install() {  # REQUIREMENT... -- FLAGS of pip...
  local -a lines=()
  local list
  while [ $# -gt 0 ] && [ "$1" != -- ]; do lines+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  list=$(mktemp)
  printf '%s\n' "${lines[@]}" >"$list"
  "$root/.venv/bin/python" -I -m pip install -q --disable-pip-version-check --no-input --no-deps --require-hashes -r "$list" "$@" \
    </dev/null >&2 || { rm -f "$list"; stop "pip could not install: ${lines[*]%% *}"; }
  rm -f "$list"
}

# A toolkit may lack cuDNN, NCCL or a newer library; these are installed in the versions that torch pins.
complete_cuda_libraries() {
  local torch=$1/torch
  [ -e "$torch/lib/libtorch_cuda.so" ] || return 0
  ldd "$torch/lib/libtorch_cuda.so" 2>/dev/null | grep -q 'not found' || return 0
  install_wheels recipes/cuda_libraries.txt
}

make_venv() {
  [ ! -x .venv/bin/python ] || return 0
  say "creating .venv"
  python3 -m venv .venv </dev/null >&2 || stop "python3 -m venv failed: install python3-venv, remove .venv, run this again"
}

install_wheels() {  # FILE: installs the missing wheels of a requirements file
  local -a wheels
  make_venv
  mapfile -t wheels < <(lacking "$1" "$(site_packages)")
  [ ${#wheels[@]} -eq 0 ] || { say "installing into .venv: ${wheels[*]%% *}"; pip_install "${wheels[@]}"; }
}
[ -n "$given_torch" ] || [ "${presets[*]}" = arm64 ] || install_wheels recipes/libtorch.txt
# The Arrow libraries that read Parquet files (cmake/parquet.cmake); with a LibTorch of the user only if .venv exists.
[ "${presets[*]}" = arm64 ] || { [ -n "$given_torch" ] && [ ! -x .venv/bin/python ]; } || install_wheels recipes/parquet.txt
[ "$checks" = no ] || install_wheels recipes/clang_format.txt
for file in ${python_packages[@]+"${python_packages[@]}"}; do
  install_wheels "$file"
done

# --- arm64: the same libraries for that processor, unpacked where cmake/arm64.cmake looks for them --------------------------
arm64=$root/build/arm64-libraries

# Uses separate package lists, so that those of this machine and its installed packages do not change.
fetch_arm64_packages() {
  local lists=$arm64/apt packages=$arm64/packages log wanted
  wanted="${libraries[*]}"
  [ "$wanted" != "$(cat "$arm64/unpacked" 2>/dev/null)" ] || return 0
  say "fetching for arm64: $wanted"
  local -a options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$lists" -o "Dir::State::lists=$lists/lists"
                    -o Dir::State::status=/dev/null -o "Dir::Cache=$lists/cache" -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)")
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$packages"
  log=$(mktemp)
  local -a own=() # dependencies of a -dev package with an equal version are its library
  if ! { apt-get "${options[@]}" update </dev/null &&
         mapfile -t own < <(apt-cache "${options[@]}" --no-all-versions show "${libraries[@]}" | sed -n 's/^Depends: //p' |
                            tr ',' '\n' | sed -nE 's/^ *([a-z0-9.+-]+) \(= .*/\1/p') &&
         (cd -- "$packages" && apt-get "${options[@]}" download "${libraries[@]}" "${own[@]}" </dev/null); } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    stop "apt-get found no arm64 packages in the sources of this system (its last words are above); Ubuntu has them at ports.ubuntu.com"
  fi
  rm -f "$log"
  local package
  for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$arm64"; done
  rm -rf -- "$lists" "$packages"
  echo "$wanted" >"$arm64/unpacked"
}

# The wheels of libtorch.txt that LibTorch's CPU library needs; the others are for its CUDA library.
fetch_arm64_torch() {
  local version
  local -a wheels platforms=()
  mapfile -t wheels < <(lacking recipes/libtorch.txt "$arm64" | grep -E '^(torch|nvidia-cuda-(runtime|cupti))==')
  [ ${#wheels[@]} -gt 0 ] || return 0
  say "unpacking for arm64: ${wheels[*]%% *}"
  make_venv
  for version in 2_17 2_25 2_28; do platforms+=(--platform "manylinux_${version}_aarch64"); done
  pip_install "${wheels[@]}" -- --target "$arm64" --no-compile --upgrade --only-binary=:all: "${platforms[@]}"
}
if [ "$for_arm64" = yes ]; then
  fetch_arm64_packages
  fetch_arm64_torch
fi

# --- Build ----------------------------------------------------------------------------------------------------------------
[ "$build" = yes ] || exit 0

build_preset() {
  local preset=$1 log
  if [ "$preset" = gpu ]; then
    [ -n "$cuda" ] || stop "preset gpu needs nvcc (CUDA 13) on PATH or in /usr/local/cuda/bin; preset cpu needs none"
    export PATH="$PATH:$cuda"
    [ -n "$given_torch" ] || complete_cuda_libraries "$(site_packages)"
  fi
  log=$(mktemp)
  if ! cmake --preset "$preset" ${cmake_options[@]+"${cmake_options[@]}"} >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    stop "cmake --preset $preset failed (see above)"
  fi
  rm -f "$log"
  cmake --build --preset "$preset" --target "${targets[@]}" >&2 || { say "building $preset failed"; exit 1; }
  case "$preset" in
    cpu | gpu) ln -sfn "build/$preset/moe" moe; say "./moe -> build/$preset/moe" ;;
  esac
}
for preset in "${presets[@]}"; do
  build_preset "$preset"
done
