#!/usr/bin/env bash
# Claim: `chorus probe --host` shows and keeps what it measured of this machine's cores, and programs run by it or by
# what it wrote; what cannot be is refused with a sentence.
#
#   host_probe_test.sh CHORUS EXAMPLE
set -uo pipefail
chorus=$1
example=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CHORUS_PROBE_CACHE=$scratch/cache
status=0
fail() { echo "FAILED: $*"; status=1; }

# refused WHAT PATTERN COMMAND…: exit status 2 and a sentence
refused() {
  local what=$1 pattern=$2
  shift 2
  "$@" > "$scratch/out" 2> "$scratch/err"
  local code=$?
  [ $code -eq 2 ] || fail "$what: exit status $code"
  grep -q -- "$pattern" "$scratch/err" || fail "$what: $(cat "$scratch/err")"
}

"$chorus" probe --host > "$scratch/table" 2> "$scratch/err"
code=$?
if [ $code -ne 0 ] && [ "$(nproc)" -lt 2 ]; then
  echo "skipped: one core: $(cat "$scratch/err")"
  exit 77
fi
[ $code -eq 0 ] || fail "probe --host: $(cat "$scratch/err")"
grep -q 'into slots  from slots    streamed  from there   by kernel' "$scratch/table" || fail "no table: $(cat "$scratch/table")"
[ -s "$CHORUS_PROBE_CACHE/host.json" ] || fail "nothing was kept"

cp "$CHORUS_PROBE_CACHE/host.json" "$scratch/kept"
"$chorus" probe --host --cached --json > "$scratch/json" || fail "--cached"
cmp -s "$scratch/json" "$scratch/kept" || fail "--cached --json is not what was kept"
# Virtual cores move, and what was kept no longer holds: it is shown all the same, as it was kept.
sed 's/"line_s": *[0-9.e+-]*/"line_s": 0.001/' "$scratch/kept" > "$CHORUS_PROBE_CACHE/host.json"
cmp -s "$CHORUS_PROBE_CACHE/host.json" "$scratch/kept" && fail "nothing was changed in $(cat "$scratch/kept")"
cp "$CHORUS_PROBE_CACHE/host.json" "$scratch/kept"
"$chorus" probe --host --cached --json > "$scratch/json" || fail "--cached, stale"
cmp -s "$scratch/json" "$scratch/kept" || fail "--cached --json measured again"
"$chorus" probe --host --no-cache -o "$scratch/host.json" > /dev/null || fail "-o"
cmp -s "$CHORUS_PROBE_CACHE/host.json" "$scratch/kept" || fail "--no-cache changed what was kept"

for wanted in auto off "$scratch/host.json"; do
  CHORUS_HOST_PROBE=$wanted timeout 60 "$chorus" run -n 2 "$example" > "$scratch/out" 2>&1 ||
    fail "CHORUS_HOST_PROBE=$wanted: $(cat "$scratch/out")"
done

# Damaged: measured anew, with a line that says so.
head -c 100 "$scratch/kept" > "$CHORUS_PROBE_CACHE/host.json"
CHORUS_LOG=info timeout 60 "$chorus" run -n 2 "$example" > "$scratch/out" 2>&1 || fail "damaged: $(cat "$scratch/out")"
grep -q 'host.json: .*looking at this machine again' "$scratch/out" || fail "no word of it: $(cat "$scratch/out")"
"$chorus" probe --host --cached > /dev/null || fail "it was not mended"

refused "an absent file" 'absent.json' env CHORUS_HOST_PROBE="$scratch/absent.json" "$chorus" probe --host --cached
refused "a plan in its place" 'chorus-host' env CHORUS_HOST_PROBE=<(echo '{"format": "chorus-plan", "version": 1}') \
  "$chorus" probe --host --cached
refused "a picture of it" '--svg' "$chorus" probe --host --svg "$scratch/x.svg"
exit $status
