#!/usr/bin/env bash
# How long a job under Open MPI's ULFM takes from a rank's death until all others have read of it, and
# until they have a result without it: what chorus-campaign measures of Chorus.
#
#   perf/startup/ulfm.sh PREFIX [RANKS [RUNS]]    PREFIX: of Open MPI 5 (perf/peers.sh: build/peers/openmpi5)
set -euo pipefail
prefix=$(realpath "$1") ranks=${2:-4} runs=${3:-20}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OPAL_PREFIX=$prefix
"$prefix/bin/mpicc" -O2 "$(dirname "$0")/ulfm.c" -o "$dir/loss"
root=()
[ "$(id -u)" = 0 ] && root=(--allow-run-as-root)
for ((run = 0; run < runs; ++run)); do
  rm -f "$dir/died"
  code=0
  timeout 8 "$prefix/bin/mpirun" "${root[@]}" --oversubscribe --with-ft ulfm -n "$ranks" "$dir/loss" \
    "$dir/died" >"$dir/out" 2>>"$dir/err" || code=$?
  grep -E '^[0-9.]+ [0-9.]+$|wrong' "$dir/out" || echo "runs without a result"
  [ "$code" != 124 ] || echo "runs that had not ended after 8 s"
done >"$dir/all"
grep -vE '^[0-9]' "$dir/all" | sort | uniq -c || true
for column in 1 2; do
  grep -E '^[0-9]' "$dir/all" | cut -d' ' -f$column | sort -n | awk -v what="$column" '
    { all[NR] = $1 }
    END {
      printf "%s, ms: p50 %.1f, most %.1f, of %d runs\n", what == 1 ? "until all were told" : "until all went on",
        all[int((NR + 1) / 2)], all[NR], NR
    }'
done
