#!/usr/bin/env bash
# Claim: on an emulated cluster, `chorus probe` finds the islands whatever the order of ranks, a declared
# topology that is wrong is reported, and programs run on what was found.
#
# Cables are slow, so that what is measured is not how busy this machine is.
#
#   probe_test.sh CHORUS CHORUS_PERF
set -uo pipefail
chorus=$1
perf=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CHORUS_PROBE_CACHE=$scratch/cache
cluster=lan:2x2,rate=0.02,trunk=0.002
status=0
fail() { echo "FAILED: $*"; status=1; }

timeout 60 "$perf" cluster run "$cluster" -- true 2> "$scratch/why"
code=$?
if [ $code -eq 3 ]; then
  echo "skipped: $(cat "$scratch/why")"
  exit 77
fi
[ $code -eq 0 ] || fail "no cluster: $(cat "$scratch/why")"

# Hosts are named after their ranks: the order of ranks, and who is beside the last two places.
for case in 0,1,2,3:host2,host3 0,2,1,3:host1,host3 3,0,2,1:host1,host3; do
  order=${case%%:*}
  far=${case#*:}
  timeout 120 "$perf" cluster run "$cluster" --order "$order" -- \
    "$chorus" probe -o "$scratch/$order.json" > "$scratch/$order.txt" 2> "$scratch/$order.err" ||
    fail "order $order: $(cat "$scratch/$order.err")"
  grep -q "trunk .* to ${far/,/ } and back" "$scratch/$order.txt" ||
    fail "order $order: no trunk between the pairs: $(cat "$scratch/$order.txt")"
done

# One that takes the trunk for as fast as the cables.
timeout 120 "$perf" cluster run "$cluster" -- "$chorus" probe --cached \
  --compare lan:4,rate=0.02 > "$scratch/compare.txt" 2> "$scratch/compare.err"
grep -q 'is not what was measured: from host' "$scratch/compare.err" ||
  fail "a wrong declaration passed: $(cat "$scratch/compare.err")"
# Of several networks that a topology describes two hosts have together what they carry.
timeout 120 "$perf" cluster run random:14 -- "$chorus" probe --compare random-lan:14 \
  > "$scratch/several.txt" 2> "$scratch/several.err" ||
  fail "a right declaration of two networks: $(cat "$scratch/several.err")"
exit $status
