#!/usr/bin/env bash
# chorus-perf, chorus probe and chorus doctor as the processes of a job on several hosts (network
# namespaces), started by mpirun of Open MPI, by Hydra, and by torchrun's variables.
set -euo pipefail
perf=$1
chorus=$2
collectives=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
  echo "FAIL: $*" >&2
  exit 1
}

code=0
"$perf" cluster run pairs -- true >"$dir/can" 2>&1 || code=$?
if [ "$code" = 3 ]; then
  echo "skipped: $(cat "$dir/can")"
  exit 77
fi
[ "$code" = 0 ] || fail "no cluster: $(cat "$dir/can")"

launchers="ranks"
command -v mpirun.openmpi >/dev/null && launchers="$launchers openmpi"
command -v mpirun.mpich >/dev/null && launchers="$launchers mpich"
for launcher in $launchers; do
  "$perf" cluster run --launcher "$launcher" pairs -- "$perf" all_reduce latency --sizes 64,16K \
    --rounds 1 --iterations 10 --budget-ms 20 --timeout-s 60 --json "$dir/r.json" \
    >"$dir/out" 2>"$dir/err" || fail "$launcher: $(cat "$dir/out" "$dir/err")"
  [ "$(grep -c '^# .*hosts, started by' "$dir/out")" = 1 ] || fail "$launcher: not told once"
  python3 - "$dir/r.json" <<'CHECK' || fail "$launcher: $(cat "$dir/out" "$dir/err")"
import json, sys
report = json.load(open(sys.argv[1]))
hosts = report["hosts"]
assert [h["name"] for h in hosts] == ["host0", "host1", "host2", "host3"], hosts
assert [h["ranks"] for h in hosts] == [[0], [1], [2], [3]], hosts
measured = {row["library"] for row in report["rows"] if row["p50_us"]}
known = measured | {a["name"] for a in report["not_measured"]} | {
    row["library"] for row in report["rows"] if row["reason"]}
assert "chorus" in measured, report["rows"]
assert known >= {"chorus", "openmpi", "mpich", "gloo", "nccl"}, known
for row in report["rows"]:
    assert row["wrong"] == 0, row
    assert row["p50_us"] or row["reason"], row
    # Shared memory takes a fraction of a microsecond: this went through a network.
    if row["p50_us"] and row["bytes"] == 64: assert row["p50_us"] > 3, row
assert all(a["reason"] for a in report["not_measured"])
CHECK
done

# Several ranks of a host share its start line.
"$chorus" run -n 3 -- "$perf" all_reduce -l chorus --sizes 64 --rounds 1 --iterations 20 \
  --json "$dir/one.json" >/dev/null 2>&1 || fail "one host"
grep -q '"launcher": "chorus"' "$dir/one.json" || fail "one host: no launcher"

# A record names programs and files, not where they lay.
"$perf" all_reduce -l chorus --cluster pairs --sizes 64 --rounds 1 --iterations 5 --json "$dir/c.json" \
  >/dev/null 2>&1 || fail "a cluster"
python3 - "$dir/c.json" <<'CHECK' || fail "a path in $(grep '"command"' "$dir/c.json")"
import json, sys
for library in json.load(open(sys.argv[1]))["libraries"]:
    assert "rsh_agent=chorus-perf-enter" in library["command"] and "=/" not in library["command"]
CHECK

# A library that no host has costs its own rows.
"$perf" cluster run pairs -- "$perf" all_reduce -l chorus,absent --worker absent=/nowhere/worker \
  --sizes 64 --rounds 1 --iterations 5 --timeout-s 20 >"$dir/out" 2>&1 || true
grep -q "absent over auto: it rank 0 on host0 exited with 127" "$dir/out" ||
  fail "absent: $(cat "$dir/out")"
# Wrong usage is told once, by rank 0.
"$perf" cluster run pairs -- "$perf" -n 7 >"$dir/out" 2>&1 && fail "-n was taken"
[ "$(grep -c 'leave -n out' "$dir/out")" = 1 ] || fail "usage: $(cat "$dir/out")"

# Of a topology with several networks each is recognized by who has an address in it; one that is
# described otherwise than it is, is named.
"$chorus" topo random-lan:14 --json >"$dir/right.json"
"$chorus" topo random-lan:14,cables=3 --json >"$dir/wrong.json"
for described in right wrong; do
  CHORUS_TOPOLOGY=$dir/$described.json CHORUS_LOG=info "$perf" cluster run random:14 -- \
    "$collectives" >"$dir/$described" 2>&1 ||
    fail "described $described: $(cat "$dir/$described")"
done
grep -q 'describes 2 networks between hosts: switch0 is that of the first interfaces, switch0n1 10\.' \
  "$dir/right" || fail "described right: $(cat "$dir/right")"
grep -q 'describes 3 networks between hosts, but addresses make others (that of the first' "$dir/wrong" ||
  fail "described wrong: $(cat "$dir/wrong")"

"$perf" cluster run pairs -- "$chorus" doctor --json >"$dir/doctor" 2>"$dir/err" || true
python3 - "$dir/doctor" <<'CHECK' || fail "doctor: $(cat "$dir/doctor")"
import json, sys
report = json.load(open(sys.argv[1]))
for finding in report["findings"]:
    assert finding["hosts"], finding
CHECK
# A host that differs is named.
"$perf" cluster run homo -- sh -c \
  '[ "$(hostname)" != host2 ] || ulimit -S -n 512; exec "$0" doctor' "$chorus" >"$dir/doctor" 2>&1 || true
grep -A3 'hosts-differ: open files' "$dir/doctor" | grep -q '512 on host2' ||
  fail "doctor: $(cat "$dir/doctor")"
[ "$(grep -c 'hosts-differ: open files' "$dir/doctor")" = 1 ] || fail "doctor: told twice"

"$chorus" run --hosts a,b -n 2 -- true >"$dir/out" 2>&1 && fail "--hosts was taken"
grep -q 'mpirun --host a,b' "$dir/out" || fail "--hosts: $(cat "$dir/out")"
"$chorus" run --hostfile list -n 2 -- true >"$dir/out" 2>&1 && fail "--hostfile was taken"
grep -q 'mpirun --hostfile list' "$dir/out" || fail "--hostfile: $(cat "$dir/out")"
pgrep -f "chorus-perf-worker-.*tcp:10" && fail "workers are left"
echo "well: $launchers"
