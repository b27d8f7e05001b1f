#!/usr/bin/env bash
# The commands of the trainer's page run as printed, but for fewer steps: pages_test.sh CHORUS TRAIN PAGE
#
# Left out: what builds, and the text, which comes from Debian's packages (a file of the page itself
# takes its place).
set -uo pipefail
chorus=$(dirname "$1")
train=$(dirname "$2")
page=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH="$chorus:$train:$PATH" CHORUS_FLIGHT_DIR=$work OPENBLAS_NUM_THREADS=1
mkdir "$work/build"
cat "$page" "$page" >"$work/build/kjv.txt"
cd "$work" || exit 1

failures=0
ran=0
while IFS= read -r command; do
  short=$command
  case $command in
  *--dry-run* | *--break-even* | *' plan '*) ;;
  *'train '*) # the last of an option counts
    short="${command%%#*} --steps 2 --print-every 1"
    [[ $command != *--compare-* ]] || short="$short --compare-plan 0 --compare-overlap 1"
    [[ $command != *--preset\ small* ]] || short="$short --preset tiny"
    ;;
  *) continue ;;
  esac
  ran=$((ran + 1))
  if ! bash -c "$short" >"$work/out" 2>&1; then
    printf 'FAIL: %s\n' "$command"
    tail -n 3 "$work/out"
    failures=$((failures + 1))
  fi
done < <(sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' "$page" | sed -n 's/^    \(chorus \|train \)/\1/p')

[ "$ran" -ge 20 ] || { echo "FAIL: the page has $ran commands only"; failures=1; }
[ "$failures" = 0 ] && echo "$ran commands run as printed"
exit "$((failures > 0))"
