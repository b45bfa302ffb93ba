#!/usr/bin/env bash
# Prints the recipe and the flags of a row of a paper's table. Runs nothing.
#
#   recipes/row.sh FOLDER                 the names of the rows: recipes/rectify_router, recipes/top_p, recipes/remoe
#   recipes/row.sh FOLDER/ROW             the recipe of a row
#   recipes/row.sh FOLDER/ROW COMMAND     the flags of the row for `moe COMMAND`:
#
#   ./moe train moe -o run --data openorca.jsonl $(recipes/row.sh recipes/rectify_router/top1+ir train)
#
# FOLDER/small has recipes of the same rows for a laptop. FOLDER/rows.txt describes its columns.
set -euo pipefail
unset CDPATH

fail() {
  echo "row: $1" >&2
  exit 2
}
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }

given=${1%/}
if [ -d "$given" ]; then
  folder=$given row=
else
  folder=$(dirname -- "$given")
  row=$(basename -- "$given" .toml)
fi
rows=$folder/rows.txt is_twin=
if [ "$(basename -- "$folder")" = small ]; then
  rows=$folder/../rows.txt is_twin=yes
fi
[ -f "$rows" ] || fail "$given: there is no $rows"

# recipe|published|parameters|work|GPU hours|flags|flags at full size, without the blanks of the table
line=$(awk -F ' *[|] *' -v row="$row" '!/^#/ { sub(/ +$/, "", $1); if (row == "") print $1; else if ($1 == row) print $2 "|" $7 "|" $8 }' "$rows")
if [ -z "$row" ]; then
  printf '%s\n' "$line"
  exit
fi
[ -n "$line" ] || fail "$rows has no row '$row'; recipes/row.sh $folder names them"
IFS='|' read -r recipe flags full <<<"$line"
recipe=$folder/$recipe.toml
if [ $# = 1 ]; then
  printf '%s\n' "$recipe"
  exit
fi
grep -q "^\[$2\]" "$recipe" || fail "the row '$row' has no moe $2: $recipe has no table [$2]"
[ -z "$is_twin" ] || full=

printf -- '--config %s' "$recipe"
command=
for word in $flags $full; do
  case $word in
    upcycle | init | train | eval) command=$word ;;
    *) [ "$command" != "$2" ] || printf ' %s' "$word" ;;
  esac
done
printf '\n'
