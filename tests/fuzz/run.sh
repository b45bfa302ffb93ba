#!/usr/bin/env bash
# Fuzzes the readers of hostile files, each target SECONDS long, as many at once as there are cores, under the address and
# undefined-behaviour sanitizers. Starts from tests/fuzz/corpus/TARGET, one small input per branch of the reader, named after
# it (see the target's source for its first byte); new inputs are kept in build/fuzz/. The last line is
# `N passed, N failed, N skipped`.
#
#   tests/fuzz/run.sh [SECONDS [TARGET...]]     (default: 20, all targets)
set -euo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cd -- "$root"
. tests/support/tally.sh
seconds=${1:-20}
all=(safetensors config data task task_data logits run tokenizer tokenizer_json)
targets=("${@:2}")
[ "${#targets[@]}" -gt 0 ] || targets=("${all[@]}")
build=build/fuzz

# The sources of each target besides TARGET_fuzz.cpp; none may include LibTorch (tests/layout_test.cpp).
base=(core/base/{error,json,read_file,text}.cpp)
mapped=("${base[@]}" core/io/file.cpp)
tensors=("${mapped[@]}" core/io/safetensors.cpp)
forms=$build/generated/forms.cpp # as cmake/embed.cmake writes it
data=("$forms" core/data/{chat_template,data_file,example_set,examples,formats,records,templates,text_codec}.cpp core/jinja/*.cpp core/tokenizer/*.cpp)
declare -A sources=(
  [safetensors]="${tensors[*]}"
  [config]="${tensors[*]} $(echo core/io/{checkpoint,output_checks,staged_folder}.cpp core/tokenizer/*.cpp core/model/config/{architecture,config*,weights}.cpp core/route/router*.cpp)"
  [data]="${base[*]} ${data[*]}"
  [task_data]="${base[*]} $(echo core/data/{data_file,records}.cpp core/eval/formats/*.cpp core/jinja/*.cpp)"
  [task]="${base[*]} core/base/toml.cpp core/eval/tasks/prompt_template.cpp core/eval/metrics/filters.cpp $(echo core/data/{data_file,records}.cpp core/eval/formats/*.cpp core/jinja/*.cpp)"
  [logits]="${base[*]} core/route/read_logits.cpp"
  [run]="${base[*]} ${data[*]} $(echo core/io/{checksums,line_log,output_checks,staged_folder}.cpp core/train/observe/{history,curves}.cpp core/train/checkpoint/{inputs,run_folder}.cpp core/train/config/settings.cpp core/base/{option,toml}.cpp core/upcycle/upcycle_request.cpp core/model/config/{architecture,compute,config}.cpp core/route/router*.cpp)"
  [tokenizer]="${mapped[*]} $(echo core/tokenizer/*.cpp)"
  [tokenizer_json]="${mapped[*]} $(echo core/tokenizer/*.cpp)"
)
# NDEBUG as in a release: toml++ 3.3 has assertions for bad keys and dates that it refuses anyway.
flags=(-std=c++20 -O1 -g1 -I. -DNDEBUG -DFMT_HEADER_ONLY -DTOML_HEADER_ONLY=1 -fsanitize=fuzzer-no-link,address,undefined
       -fno-sanitize-recover=undefined -fsanitize-ignorelist=tests/fuzz/ignored.txt
       -fno-omit-frame-pointer -Wall -Wextra)

if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -x c++ - -fsanitize=fuzzer,address,undefined -o /dev/null 2>/dev/null; then
  echo "skipped: no clang++ with libFuzzer (apt-get install clang)"
  count 0 0 ${#targets[@]}
  finish
fi

# Headers take most of the compile time: the sources of a folder are compiled as one, as in a release, and linked from an archive.
# An object is compiled again if its sources or any header of the tree are newer; ccache makes that cheap.
compiler=clang++
if command -v ccache >/dev/null; then compiler="ccache clang++"; fi
mkdir -p "$build/finds" "$build/joined" "$build/generated"
{
  printf '#include "core/data/chat_template.h"\nstd::vector<moe::data::Form> moe::data::forms() {\n  return {\n'
  for file in core/data/forms/*.jinja; do printf '{"%s", R"form(%s)form"},\n' "$(basename -- "$file" .jinja)" "$(cat -- "$file")"; done
  printf '};\n}\n'
} >"$forms.new"
if cmp -s "$forms.new" "$forms"; then rm "$forms.new"; else mv "$forms.new" "$forms"; fi
newest_header=$(find core tests/fuzz -name '*.h' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
declare -A joined=()
for target in "${all[@]}"; do
  for source in ${sources[$target]}; do joined[$(dirname -- "$source")]+=" $source"; done
done
units=()
for folder in "${!joined[@]}"; do # written only if its text changes
  unit=$build/joined/${folder//\//_}.cpp
  tr ' ' '\n' <<<"${joined[$folder]}" | sed '/./!d; s/.*/#include "&"/' | sort -u >"$unit.new"
  if cmp -s "$unit.new" "$unit"; then rm "$unit.new"; else mv "$unit.new" "$unit"; fi
  units+=("$unit")
done
object_of() { local name=${1//\//_}; echo "$build/${name%.cpp}.o"; }
is_stale() { # SOURCE
  local object source
  object=$(object_of "$1")
  for source in "$1" "$newest_header" $(sed -n 's/^#include "\(.*\.cpp\)"$/\1/p' "$1"); do
    [ "$object" -nt "$source" ] || return 0
  done
  return 1
}
for source in "${units[@]}" "${targets[@]/%/_fuzz.cpp}"; do
  case "$source" in "$build"/*) ;; *) source=tests/fuzz/$source ;; esac
  if is_stale "$source"; then printf '%s\0' "$compiler ${flags[*]} -c $source -o $(object_of "$source")"; fi
done | xargs -0 -r -P "$(nproc)" -I{} sh -c '{}'
rm -f "$build/sources.a"
archived=()
for unit in "${units[@]}"; do archived+=("$(object_of "$unit")"); done
ar rcs "$build/sources.a" "${archived[@]}"
for target in "${targets[@]}"; do
  clang++ -fsanitize=fuzzer,address,undefined "$(object_of "tests/fuzz/${target}_fuzz.cpp")" "$build/sources.a" \
    -lz -lzstd -lsentencepiece -lutf8proc -lonig -o "$build/$target"
done

fuzz() {  # TARGET: libFuzzer writes to the first folder and only reads the second; 0 = no crash
  mkdir -p "$build/corpus/$1"
  "$build/$1" "$build/corpus/$1" "tests/fuzz/corpus/$1" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -dict=tests/fuzz/words.dict -artifact_prefix="$build/finds/$1-" -print_final_stats=1 \
    >"$build/$1.log" 2>&1
  echo $? >"$build/$1.status"
}
export -f fuzz
export build seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
for target in "${targets[@]}"; do
  if [ "$(cat "$build/$target.status")" -eq 0 ]; then
    count 1 0 0
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log") inputs, no crash"
  else
    count 0 1 0
    echo "$target: FAILED; the input is in $build/finds/, the report ends:"
    tail -n 40 "$build/$target.log"
  fi
done
finish
