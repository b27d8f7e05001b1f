#!/usr/bin/env bash
# Claim: chorus-perf-selection measures all schedules of a point beside the chosen one, and keeps the figures with
# where they come from; where it could not it says so before it measures.
#
#   selection_test.sh CHORUS CHORUS_PERF_SELECTION
set -uo pipefail
chorus=$1
selection=$2
. "$(dirname "$0")/../cli/expect.sh"
ranks() { timeout 120 "$chorus" run -n 2 -- "$selection" "$@"; }

expect 0 "2 points, the chosen schedule is more than 10 % slower" \
  ranks all_reduce all_gather --sizes 256 --ms 1 --json "$dir/s.json"
for member in '"format": "chorus-selection"' '"commit": "' '"command": "chorus-perf-selection all_reduce' \
  '"ranks": 2' '"hosts": 1' '"collective": "all_gather"' '"measured_s": '; do
  grep -qF -- "$member" "$dir/s.json" || fail "no $member in the record"
done
[ "$(grep -c '"schedule": "ring"' "$dir/s.json")" -eq 2 ] || fail "a ring runs at both points, and is not in the record"

expect 2 "cannot be written" ranks all_reduce --sizes 256 --json "$dir/none/s.json"
grep -qF "1 point" "$dir/out" && fail "it measured what it could not keep"
expect 2 "--sizes" ranks all_reduce --sizes 0
done_testing
