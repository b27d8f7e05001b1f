#!/usr/bin/env bash
# The trainer's cuda backend, by ranks that share one GPU: gpu_train.sh CHORUS TRAIN
#
#   - replicas, ZeRO, slices, pipelines, experts and their product end at the cpu backend's loss;
#   - so does bfloat16, to its rounding; averages of values; 8-bit ZeRO++, to a code or two;
#   - so do compressed gradients;
#   - a run resumed from its checkpoint ends where the whole one does;
#   - a timeline holds every pass, within the time of its steps, and steps are compared;
#   - MEASURE=1: the 125M preset's share of the measured peak of matrix products, in bfloat16.
#
# BACKEND=cuda-emulated: the same with the host in the GPU's place, to check this script.
# Exit status: 0 all well, 1 something failed, 77 there is no GPU or no cuda backend.
set -uo pipefail
chorus=$1
train=$2
backend=${BACKEND:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CHORUS_FLIGHT_DIR=$work OPENBLAS_NUM_THREADS=1
failures=0

"$train" --preset tiny --steps 1 --backend "$backend" >"$work/out" 2>"$work/err" || {
  cat "$work/err"
  grep -q 'or take --backend cpu' "$work/err" && exit 77
  exit 1
}
grep '^computing on' "$work/out" || { echo "FAIL: it does not say on what it computes"; exit 1; }

# last_loss RANKS ARGUMENT...: the loss of the last step.
last_loss() {
  local ranks=$1
  shift
  "$chorus" run -n "$ranks" --timeout 120 -- "$train" --preset tiny --batch 1 --steps 4 "$@" \
    >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; return 1; }
  sed -n 's/^step .* loss \([0-9.]*\) .*/\1/p' "$work/out" | tail -n 1
}

# expect REFERENCE TOLERANCE RANKS ARGUMENT...
expect() {
  local reference=$1 tolerance=$2 ranks=$3 loss
  shift 3
  loss=$(last_loss "$ranks" --backend "$backend" "$@")
  if awk -v a="$loss" -v b="$reference" -v t="$tolerance" \
    'BEGIN { d = a - b; exit !(a != "" && b != "" && d <= t && -d <= t) }'; then
    echo "passed: $ranks ranks: $*: loss $loss"
  else
    echo "FAIL: $ranks ranks: $*: loss '$loss', the cpu backend's '$reference'"
    failures=$((failures + 1))
  fi
}

dense=$(last_loss 1 --micro-batches 4)
expect "$dense" 0.0002 1 --micro-batches 4
expect "$dense" 0.0002 2 --dp 2 --micro-batches 2
expect "$dense" 0.0002 4 --dp 4 --zero 3
expect "$dense" 0.0002 2 --tp 2 --micro-batches 4
expect "$dense" 0.0002 2 --tp 2 --micro-batches 4 --sequence-parallel --recompute full
expect "$dense" 0.0002 2 --pp 2 --micro-batches 4
expect "$dense" 0.0002 8 --dp 2 --tp 2 --pp 2 --micro-batches 2 --zero 1
expect "$dense" 0.02 1 --micro-batches 4 --bfloat16
deeper=$(last_loss 1 --micro-batches 4 --layers 4)
expect "$deeper" 0.0002 2 --pp 2 --micro-batches 4 --layers 4 --schedule interleaved --virtual-stages 2
experts=$(last_loss 1 --micro-batches 4 --experts 4)
expect "$experts" 0.0002 4 --dp 4 --ep 4 --experts 4
expect "$experts" 0.0002 4 --dp 4 --ep 2 --experts 4 --zero 2 --expert-chunks 2
averaged=$(last_loss 2 --dp 2 --average ring --global-every 2)
expect "$averaged" 0.0002 2 --dp 2 --average ring --global-every 2
packed=$(last_loss 4 --dp 4 --zero 3 --quantize-weights --quantize-gradients --secondary 2)
expect "$packed" 0.002 4 --dp 4 --zero 3 --quantize-weights --quantize-gradients --secondary 2
for how in qsgd 'topk --share 0.2' 'power --rank 4'; do
  # shellcheck disable=SC2086
  compressed=$(last_loss 2 --dp 2 --compress $how)
  # shellcheck disable=SC2086
  expect "$compressed" 0.002 2 --dp 2 --compress $how
done
expect "$dense" 0.0002 2 --dp 2 --micro-batches 2 --zero 1 --trace "$work/trace.json" --trace-steps 2 \
  --compare-overlap 3 --compare-plan 3
grep -q '^measured .* standing still; median of 3 steps' "$work/out" || {
  echo "FAIL: nothing was compared: $(cat "$work/out")"
  failures=$((failures + 1))
}
# 2 ranks, 2 steps, 2 micro-batches
python3 - "$work/trace.json" <<'CHECK' || failures=$((failures + 1))
import json, sys
spans = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
count = lambda name: sum(e["name"] == name for e in spans)
passes = [count(name) for name in ("forward", "backward", "update")]
assert passes == [8, 8, 4], f"FAIL: passes on the timeline: {passes}"
assert all(e["dur"] >= 0 and 0 <= e["ts"] < 60e6 for e in spans), "FAIL: times of another clock"
assert any(e["cat"] == "in flight" and e["dur"] > 0 for e in spans), "FAIL: no call took any time"
CHECK
last_loss 2 --backend "$backend" --dp 2 --micro-batches 2 --checkpoint "$work/ckpt" --checkpoint-every 2 >"$work/loss"
rm -rf "$work/ckpt/step-00000004"
expect "$(cat "$work/loss")" 0 2 --dp 2 --micro-batches 2 --checkpoint "$work/ckpt" --resume

if [ "${MEASURE:-0}" = 1 ]; then
  "$train" --preset 125M --backend "$backend" --bfloat16 --batch 4 --steps 30 --warmup-steps 5 \
    >"$work/out" 2>"$work/err" || failures=$((failures + 1))
  cat "$work/err"
  sed 's/^/125M: /' "$work/out"
fi

[ "$failures" = 0 ] && echo "all as expected"
exit "$((failures > 0))"
