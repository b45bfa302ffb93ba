#!/usr/bin/env bash
# Fuzzes the readers of hostile files, each target SECONDS long, all at once, under the address and undefined-behaviour
# sanitizers. Starts from the kept corpus; new finds stay in build/fuzz/. The last line is `N passed, N failed, N skipped`.
#
#   tests/fuzz/run.sh [SECONDS]     (default 20)
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
seconds=${1:-20}
build=build/fuzz
common=(core/base/error.cpp core/base/json.cpp core/base/utf8.cpp core/io/file.cpp core/io/mapped_file.cpp
        core/io/tensor_info.cpp core/io/safetensors.cpp core/io/safetensors_writer.cpp
        core/io/safetensors_header.cpp)
config=(core/io/checkpoint.cpp core/io/checkpoint_writer.cpp core/io/shards.cpp core/io/staged_folder.cpp core/model/config/config*.cpp
        core/model/config/weights.cpp core/route/router_*.cpp) # all of it without LibTorch
data=(core/data/compressed.cpp core/data/example*.cpp core/data/formats.cpp core/data/no_parquet.cpp
      core/data/records.cpp core/data/show.cpp core/data/templates.cpp)
flags=(-std=c++20 -O1 -g1 -I. -DFMT_HEADER_ONLY -fsanitize=fuzzer-no-link,address,undefined
       -fno-sanitize-recover=undefined -fno-omit-frame-pointer -Wall -Wextra)

if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -x c++ - -fsanitize=fuzzer,address,undefined -o /dev/null 2>/dev/null; then
  echo "skipped: no clang++ with libFuzzer (apt-get install clang)"
  echo "0 passed, 0 failed, 3 skipped"
  exit 0
fi

# An object is compiled again when its source or any header of the tree is newer; ccache, where it is, knows better.
compiler=clang++
if command -v ccache >/dev/null; then compiler="ccache clang++"; fi
mkdir -p "$build"
newest_header=$(find core -name '*.h' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
object_of() { echo "$build/${1//\//_}.o"; }
for source in "${common[@]}" "${config[@]}" "${data[@]}" tests/fuzz/{safetensors,config,data}_fuzz.cpp; do
  object=$(object_of "$source")
  if [ ! "$object" -nt "$source" ] || [ ! "$object" -nt "$newest_header" ]; then
    printf '%s\0' "$compiler ${flags[*]} -c $source -o $object"
  fi
done | xargs -0 -r -P "$(nproc)" -I{} sh -c '{}'
link() {  # TARGET SOURCE...
  local target=$1 source objects=()
  shift
  for source in "$@"; do objects+=("$(object_of "$source")"); done
  clang++ -fsanitize=fuzzer,address,undefined "${objects[@]}" -lz -lzstd -o "$build/$target"
}
link safetensors "${common[@]}" tests/fuzz/safetensors_fuzz.cpp
link config "${common[@]}" "${config[@]}" tests/fuzz/config_fuzz.cpp
link data core/base/{error,json,utf8}.cpp "${data[@]}" tests/fuzz/data_fuzz.cpp

fuzz() {  # TARGET: libFuzzer writes to the first folder and only reads the second
  mkdir -p "$build/corpus/$1" "$build/finds"
  "$build/$1" "$build/corpus/$1" "tests/fuzz/corpus/$1" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -dict=tests/fuzz/words.dict -artifact_prefix="$build/finds/$1-" -print_final_stats=1 \
    >"$build/$1.log" 2>&1
}
fuzz safetensors & first=$!
fuzz config & second=$!
fuzz data & third=$!
passed=0 failed=0
for run in "safetensors $first" "config $second" "data $third"; do
  read -r target process <<<"$run"
  if wait "$process"; then
    passed=$((passed + 1))
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log") inputs, no crash"
  else
    failed=$((failed + 1))
    echo "$target: FAILED; the input is in $build/finds/, the report ends:"
    tail -n 40 "$build/$target.log"
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
