#!/usr/bin/env bash
# Replicas that die while a model is trained: elastic_test.sh CHORUS TRAIN
#
#   - the process of rank 0 is killed in the middle: the others go on, it is started anew, taken in,
#     and the last loss is that of a run that nothing happened to, to what a step's share is worth;
#   - two of three are killed and nobody is started: one goes on to the end;
#   - without --elastic the same death ends the job, by name.
set -uo pipefail
chorus=$1
train=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CHORUS_FLIGHT_DIR=$work OPENBLAS_NUM_THREADS=1
failures=0

fail() {
  printf 'FAIL: %s\n' "$*"
  sed 's/^/  | /' "$work/out" "$work/err" | tail -n 40
  failures=$((failures + 1))
}

# Each rank leaves the number of its process, by its life.
cat >"$work/rank" <<'EOF'
#!/usr/bin/env bash
echo $$ >"$1/pid.$CHORUS_RANK${CHORUS_REJOIN:+.anew}.new"
mv "$1/pid.$CHORUS_RANK${CHORUS_REJOIN:+.anew}.new" "$1/pid.$CHORUS_RANK${CHORUS_REJOIN:+.anew}"
shift
exec "$@"
EOF
chmod +x "$work/rank"

# begin RANKS RESPAWN ARGUMENT...: a run in the background, its processes in pid.*
begin() {
  local ranks=$1 respawn=$2
  shift 2
  rm -f "$work"/pid.*
  : >"$work/out"  # nobody is to read what the run before has printed
  "$chorus" run -n "$ranks" --respawn "$respawn" --timeout 300 -- "$work/rank" "$work" "$train" \
    --preset tiny --print-every 1 --batch 1 --learning-rate 3e-3 --dp "$ranks" "$@" \
    >"$work/out" 2>"$work/err" &
  job=$!
}

# await PATTERN: until the run has printed it; false if it ends before.
await() {
  until grep -qE "$1" "$work/out" 2>/dev/null; do
    kill -0 "$job" 2>/dev/null || { grep -qE "$1" "$work/out" && return; return 1; }
    sleep 0.02
  done
}

last_loss() { sed -n 's/^step .* loss \([0-9.]*\) .*/\1/p' "$work/out" | tail -n 1; }
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a != "" && d < t && -d < t) }'; }

steps=400
begin 3 0 --elastic --steps $steps
wait "$job" || fail "an elastic run to which nothing happens ends with status $?"
undisturbed=$(last_loss)

begin 3 2 --elastic --steps $steps
await '^step +20 ' && kill -KILL "$(cat "$work/pid.0")"
await '2 of 3 replicas go on' || fail "the others did not go on without rank 0"
await '1 came: 3 of 3 replicas go on' || fail "rank 0 was not taken in again"
wait "$job" || fail "the run that lost rank 0 ends with status $?"
grep -q "rank 0 (pid $(cat "$work/pid.0")" "$work/out" || fail "who died is not named"
disturbed=$(last_loss)
near "$disturbed" "$undisturbed" 0.15 || fail "the loss ends at '$disturbed', undisturbed at '$undisturbed'"
# No step is told twice, and one line alone may be lost with the rank that was to write it.
told() { grep -oE '^step +[0-9]+  loss' "$work/out" | "$@" | wc -l; }
[[ $(told sort -u) == "$(told cat)" ]] || fail "a step is told twice"
(($(told cat) >= steps - 1)) || fail "steps are missing"

begin 3 0 --elastic --steps 60
await '^step +10 ' && kill -KILL "$(cat "$work/pid.1")"
await '2 of 3 replicas go on' && kill -KILL "$(cat "$work/pid.0")"
await '1 of 3 replicas go on' || fail "one replica alone did not go on"
await '^step +60 ' || fail "one replica alone did not come to the end"
wait "$job" || fail "a run of which one rank came to its end ends with status $?"

begin 2 0 --steps 4000
await '^step +10 ' && kill -KILL "$(cat "$work/pid.1")"
wait "$job"
[[ $? == 137 ]] || fail "without --elastic the death of a rank must end the job"
grep -q 'rank 1 (pid .* died' "$work/err" || fail "who died is not named without --elastic"

begin 2 0 --elastic --zero 1 --steps 2
wait "$job" && fail "--elastic with sharded optimizers is not refused"
grep -q -- '--elastic needs replicas each of which has the whole model' "$work/err" ||
  fail "the refusal does not say why"

[[ $failures == 0 ]] && echo "all well"
exit $((failures > 0))
