#!/usr/bin/env bash
# Evaluates a checkpoint trained with plain top-k routing with other routers, capacity factors and numbers of ranks: the tables of
# Rectify-Router that need no training. Prints the published numbers of each row above ours.
#
#   at_test.sh TABLE K MODEL OUT [FLAGS of moe eval...]
#   recipes/rectify_router/at_test.sh 8 1 run/final scores --config recipes/rectify_router/table.toml --data benchmarks
#
# TABLE is 2, 5, 7, 8 (= 3), 9 (= 4) or fig3; K = 1 or 2 is the k of MODEL. MODEL is the row top1 or top2 of rows.txt, for table 7
# top1-lb-off (its rows with the loss are those of table 2), for fig3 top1-32-experts or top2-32-experts.
# Ranks are logical: of 8 experts, each of 8, 4, 2 ranks has 1, 2, 4. A dash keeps the setting of the folder.
set -euo pipefail

rows() {
  cat <<'TABLE'
2     1  top1        1.0   -   9.4k  33.05 64.34 29.49 28.11 38.74
2     1  top1+ir     1.0   -   9.2k  36.21 64.64 29.86 29.18 39.97
2     1  top1+fr     1.0   -   8.9k  33.28 62.76 28.51 29.49 38.51
2     1  top1+ir+fr  1.0   -   8.6k  36.40 63.94 29.98 29.80 40.03
2     2  top2        2.0   -   6.2k  35.39 64.58 29.98 29.33 39.82
2     2  top2+ir     2.0   -   6.0k  35.70 64.40 30.47 29.95 40.13
2     2  top2+fr     2.0   -   5.8k  35.96 65.37 30.35 30.26 40.48
2     2  top2+ir+fr  2.0   -   5.5k  36.14 65.16 30.35 31.49 40.78
5     1  top1+ir     1.0   8   -     36.21 64.64 29.86 29.18 39.97
5     1  top1+ir     1.0   4   -     36.17 64.38 30.23 29.03 39.95
5     1  top1+ir     1.0   2   -     36.47 64.37 29.62 28.87 39.83
5     2  top2+ir     2.0   8   -     35.70 64.40 30.47 29.95 40.13
5     2  top2+ir     2.0   4   -     35.79 64.73 30.35 29.18 40.01
5     2  top2+ir     2.0   2   -     35.79 65.38 30.35 29.18 40.17
7     1  top1        1.0   -   -     33.88 61.60 27.41 29.95 38.21
7     1  top1+ir+fr  1.0   -   -     36.09 64.05 31.21 28.57 39.98
8     1  top1        1.0   -   9.4k  33.05 64.34 29.49 28.11 38.74
8     1  top1+ir     1.0   -   9.2k  36.21 64.64 29.86 29.18 39.97
8     1  top1        0.75  -   12.1k 30.88 62.68 29.37 28.41 37.83
8     1  top1+ir     0.75  -   9.9k  36.12 64.61 29.74 29.80 40.06
8     1  top1        0.5   -   16.0k 26.43 59.71 26.68 26.57 34.84
8     1  top1+ir     0.5   -   10.6k 36.32 65.23 29.98 30.10 40.40
8     2  top2        2.0   -   6.2k  35.39 64.58 29.98 29.33 39.82
8     2  top2+ir     2.0   -   6.0k  35.70 64.40 30.47 29.95 40.13
8     2  top2        1.5   -   7.4k  35.22 65.00 30.47 27.34 39.50
8     2  top2+ir     1.5   -   6.6k  35.71 64.47 29.98 28.26 39.60
8     2  top2        1.0   -   8.9k  33.28 62.76 28.51 29.49 38.51
8     2  top2+ir     1.0   -   7.3k  35.93 64.40 29.62 30.10 40.01
9     1  top1        1.0   -   9.4k  33.05 64.34 29.49 28.11 38.74
9     1  top1+fr     1.0   -   8.9k  33.28 62.76 28.51 29.49 38.51
9     1  top1        1.25  -   8.6k  34.51 62.94 29.13 31.79 39.59
9     1  top1+fr     1.25  -   8.1k  35.01 65.22 30.23 29.95 40.10
9     1  top1        1.5   -   7.9k  36.40 64.21 28.88 29.95 39.86
9     1  top1+fr     1.5   -   7.3k  36.10 64.89 30.23 30.10 40.33
9     2  top2        2.0   -   6.2k  35.39 64.58 29.98 29.33 39.82
9     2  top2+fr     2.0   -   5.8k  35.96 65.37 30.35 30.26 40.48
9     2  top2        2.5   -   5.4k  35.96 64.53 30.23 28.87 39.89
9     2  top2+fr     2.5   -   5.1k  36.00 64.92 30.59 30.56 40.51
9     2  top2        3.0   -   4.9k  35.72 64.65 30.59 29.18 40.03
9     2  top2+fr     3.0   -   4.5k  35.98 65.31 30.23 30.26 40.44
fig3  1  top1        1.0   -   -     - - - - -
fig3  1  top1+ir+fr  1.0   -   -     - - - - -
fig3  2  top2        2.0   -   -     - - - - -
fig3  2  top2+ir+fr  2.0   -   -     - - - - -
TABLE
}

if [ $# -lt 4 ] || ! rows | grep -Eq "^$1 +$2 "; then
  echo "usage: at_test.sh TABLE K MODEL OUT [FLAGS of moe eval...], TABLE K one of:" \
    "$(rows | awk '!seen[$1 $2]++ { printf "%s%s %s", sep, $1, $2; sep = ", " }')" >&2
  exit 2
fi
table=$1 wanted=$2 model=$3 out=$4
shift 4
moe=${MOE:-$(dirname -- "${BASH_SOURCE[0]}")/../../moe}

rows | while read -r number k router cf ranks speed mmlu superglue truthfulqa logiqa average; do
  if [ "$number" != "$table" ] || [ "$k" != "$wanted" ]; then continue; fi
  ep_ranks=()
  [ "$ranks" = - ] || ep_ranks=(--ep-ranks "$ranks")
  printf '\n== table %s: %s at CF %s%s\n' "$table" "$router" "$cf" "${ep_ranks[*]:+ on $ranks ranks}"
  printf 'published: MMLU %s, SuperGLUE %s, TruthfulQA %s, LogiQA %s, average %s, tokens/s a GPU %s\n' \
    "$mmlu" "$superglue" "$truthfulqa" "$logiqa" "$average" "$speed"
  "$moe" eval "$model" -o "$out/table$table-$router-cf$cf-ranks$ranks" --router "$router" --cf "$cf" "${ep_ranks[@]}" "$@" </dev/null
done
