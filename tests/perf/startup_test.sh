#!/usr/bin/env bash
# Claim: chorus-perf-startup starts jobs, checks their first calls and keeps what they took, by the number of ranks; as
# a rank of a job it measures that job. What cannot be kept is refused before anything starts.
#
#   startup_test.sh CHORUS CHORUS_PERF_STARTUP
set -uo pipefail
chorus=$1
startup=$2
. "$(dirname "$0")/../cli/expect.sh"

expect 0 "private, MB" timeout 120 "$startup" -n 2,5 --json "$dir/s.json" --svg "$dir/s.svg"
for member in '"format": "chorus-startup"' '"commit": "' '"command": "chorus-perf-startup -n 2,5' '"ranks": 2' \
  '"ranks": 5' '"what": "all_to_all"' '"descriptors": {'; do
  grep -qF -- "$member" "$dir/s.json" || fail "no $member in the record"
done
python3 - "$dir/s.json" <<'END' || fail "a figure of the record cannot be"
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    firsts = {first["what"]: first for first in row["first"]}
    together = sum(firsts[what]["processor_s"]["mean"] for what in ("join", "barrier", "all_reduce", "all_gather"))
    assert row["wrong"] == 0 and all(first["longest_s"] > 0 for first in row["first"]), row
    assert abs(together - row["processor_of_start_s"]["mean"]) < 1e-9 and together > 0, row
    assert 1e5 < row["private_bytes"]["mean"] <= row["private_bytes"]["most"], row
    assert 3 <= row["descriptors"]["mean"] <= row["descriptors"]["most"], row
END
grep -q "</svg>" "$dir/s.svg" || fail "no picture"

expect 0 "private, MB" timeout 120 "$chorus" run -n 3 -- "$startup" --json "$dir/three.json"
grep -q '"ranks": 3' "$dir/three.json" || fail "a job of three ranks has another record"
expect 2 "cannot be written" timeout 120 "$startup" -n 2 --json "$dir/none/s.json"
CHORUS_TRANSPORTS=none expect 1 "the job of 2 ranks exited with 2" timeout 120 "$startup" -n 2
done_testing
