#!/usr/bin/env bash
# The command as people run it: train_test.sh CHORUS TRAIN PAGES
#
#   - 2, 4 and 8 processes end at the loss of one;
#   - text is learned (a third of the way from ln 256 to nothing in 60 steps);
#   - what cannot be is refused in one sentence, with exit status 2;
#   - a killed rank ends the job by name, and a restart from its checkpoint ends at the same loss.
set -uo pipefail
chorus=$1
train=$2
work=$(mktemp -d)
closed=$(mktemp -d -p /tmp chorus-closed.XXXXXX) # where strangers get at; TMPDIR may be ours alone
trap 'rm -rf "$work" "$closed"' EXIT
text=$work/text
cat "$3"/*.md >"$text"
export CHORUS_FLIGHT_DIR=$work OPENBLAS_NUM_THREADS=1
failures=0

fail() {
  printf 'FAIL: %s\n' "$*"
  failures=$((failures + 1))
}

# last_loss RANKS ARGUMENT...: the loss of the last step.
last_loss() {
  local ranks=$1
  shift
  "$chorus" run -n "$ranks" --timeout 120 -- "$train" --preset tiny --print-every 1 --batch 1 "$@" \
    >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; return 1; }
  sed -n 's/^step .* loss \([0-9.]*\) .*/\1/p' "$work/out" | tail -n 1
}

# near A B TOLERANCE
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a != "" && d < t && -d < t) }'; }

one=$(last_loss 1 --steps 4 --micro-batches 4)
while read -r ranks layout; do
  # shellcheck disable=SC2086
  several=$(last_loss "$ranks" --steps 4 $layout)
  near "$several" "$one" 0.0002 || fail "$ranks ranks ($layout) end at '$several', one at '$one'"
done <<'LAYOUTS'
2 --dp 2 --micro-batches 2 --zero 1
2 --pp 2 --micro-batches 4
4 --dp 4 --zero 3
4 --tp 4 --micro-batches 4 --sequence-parallel
8 --dp 2 --tp 2 --pp 2 --micro-batches 2
LAYOUTS

first=$(last_loss 2 --dp 2 --data "$text" --steps 1)
last=$(last_loss 2 --dp 2 --data "$text" --steps 60 --batch 4 --learning-rate 3e-3)
near "$first" 5.6 0.2 || fail "the first loss on text is '$first', not about ln 256"
awk -v a="$last" 'BEGIN { exit !(a != "" && a < 3.8) }' || fail "60 steps on text end at '$last'"

# refused WORDS ARGUMENT...: one rank; the sentence holds WORDS.
refused() {
  local words=$1 status
  shift
  "$train" --preset tiny "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ "$status" = 2 ] || fail "exit status $status for: $*"
  [ "$(wc -l <"$work/err")" = 1 ] || fail "not one line for: $*: $(cat "$work/err")"
  grep -qF -- "$words" "$work/err" || fail "'$words' is not in: $(cat "$work/err")"
}
refused "is 3 ranks, but 1 were started; --dp 1 --tp 1 --pp 1 would fit" --dp 3
refused "nearest that does is --heads 4" --heads 5
refused "--tp 2" --tp 3 --dry-run
refused "--ep 2 needs --experts" --dp 2 --ep 2 --dry-run
refused "use at most --pp 2" --pp 4 --dry-run
refused "8 is" --layers 8 --pp 4 --micro-batches 6 --schedule interleaved --dry-run
refused "needs --schedule interleaved" --virtual-stages 2 --dry-run
refused "--partition 1,2" --pp 2 --partition 1,2 --dry-run
refused "there is no preset" --preset 9000B
refused "is none of gpipe" --schedule fastest
refused "not between 1 and the 4 experts" --experts 4 --top-k 5
refused "cannot be opened" --data "$work/absent"
: >"$work/empty"
refused "0 bytes" --data "$work/empty"
printf 'short' >"$work/short"
refused "5 bytes" --data "$work/short"
refused "$work is not a file" --data "$work"
refused "/dev/full is not a file" --data /dev/full
refused "need --checkpoint" --resume
refused "0 or more" --checkpoint "$work/ckpt" --checkpoint-every -1
refused "--compare-overlap is -1" --compare-overlap -1
refused "--print-every is 0" --print-every 0
refused "--trace-steps is 101" --trace-steps 101
refused "--bucket-bytes is 0" --bucket-bytes 0
refused "--bucket-bytes is 4611686018427387904; it must be at most" --bucket-bytes -1
refused "there is no directory $work/absent" --report-json "$work/absent/report.json"
refused "it is a directory" --trace "$work"
refused "given for two outputs" --trace "$work/same.json" --report-json "$work/same.json"
refused "Not a directory" --checkpoint "$text"
refused "--threshold is nan" --compress threshold --threshold nan --dp 2 --dry-run
refused "--sequences -4" --plan ring:2 --sequences -4
refused "--speeds 1,nan" --plan ring:2 --speeds 1,nan
refused "--gflops -1" --plan ring:2 --gflops -1
refused "--memory-gb nan" --plan ring:2 --memory-gb nan
refused "--learning-rate is nan" --learning-rate nan
refused "--clip is -1" --clip -1
refused "--capacity is nan" --experts 2 --capacity nan
refused "--warmup-steps is -4" --warmup-steps -4
refused "--steps is -3" --steps -3
refused "--feed-forward) is -1" --feed-forward -1
refused "--layers) is 1000000; it must be at most 10000" --layers 1000000
refused "(--dp x --tp x --pp) is 4294967296" --dp 65536 --tp 65536
refused "12800000000" --batch 2000000 --context 6400
refused "does not give" --batch 1000000 --context 2000
refused "must be at least 1" --batch 0
refused "use --zero 0" --compress topk --dp 2 --zero 2 --dry-run
refused "is none of none, qsgd" --compress zip
refused "not in (0, 1]" --compress topk --share 0 --dp 2 --dry-run
refused "is none of cpu, cuda" --backend tpu
refused "--ef21 compresses differences; it needs --compress" --dp 2 --ef21 --dry-run
refused "--compare-json needs --compare-overlap" --compare-json "$work/figures.json"
refused "--speeds changes nothing without --plan TOPOLOGY" --speeds 1,2
refused "--memory-gb changes nothing without --plan TOPOLOGY" --memory-gb 80
refused "--expert-chunks changes nothing without --experts" --expert-chunks 2
refused "--share changes nothing without --compress topk or threshold" --share 0.1 --compress qsgd
refused "--rank changes nothing without --compress power" --rank 2
refused "--no-error-feedback changes nothing without --compress" --no-error-feedback
refused "--trace-steps changes nothing without --trace FILE" --trace-steps 2
refused "$work/t.svg is the name of its picture; take another for the timeline, say $work/t.json" --trace "$work/t.svg"
# As a user whom permissions bind: told before anything is trained.
printf 'before' >"$closed/kept.json"
mkdir "$closed/hidden" && chmod 700 "$closed/hidden" && chmod 555 "$closed"
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -x "$train" 2>/dev/null; then
  for name in new.json kept.json hidden/below/new.json; do
    HOME=/ setpriv --reuid=65534 --clear-groups "$train" --preset tiny --steps 1 --report-json "$closed/$name" >"$work/out" 2>"$work/err"
    [ $? = 2 ] || fail "$name in a closed directory: $(cat "$work/out" "$work/err")"
    grep -qF "cannot write $closed/$name: Permission denied" "$work/err" || fail "closed: $(cat "$work/err")"
    grep -q '^step' "$work/out" && fail "it trained before it said that it cannot write $name"
  done
fi
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -x "$train" 2>/dev/null; then
  HOME=/ setpriv --reuid=65534 --clear-groups "$train" --preset tiny --steps 1 --checkpoint "$closed" >"$work/out" 2>"$work/err"
  [ $? = 2 ] || fail "checkpoints in a closed directory: $(cat "$work/out" "$work/err")"
  grep -qF "cannot keep checkpoints in $closed: Permission denied" "$work/err" || fail "closed: $(cat "$work/err")"
  grep -q '^step' "$work/out" && fail "it trained before it said that it can keep no checkpoints"
fi
# Rank 0 answers for all where nothing is trained.
for what in --presets "--dry-run --dp 2" "--plan ring:2 --gflops 1"; do
  # shellcheck disable=SC2086
  "$train" --preset tiny $what >"$work/alone"
  # shellcheck disable=SC2086
  "$chorus" run -n 2 --timeout 60 -- "$train" --preset tiny $what >"$work/out" 2>"$work/err" || fail "$what on 2 ranks: $(cat "$work/err")"
  cmp -s "$work/alone" "$work/out" || fail "$what says on 2 ranks: $(cat "$work/out")"
done
# Directories may have dots.
mkdir "$work/run.1"
"$train" --preset tiny --steps 1 --trace "$work/run.1/trace" >"$work/out" 2>"$work/err" || fail "trace: $(cat "$work/err")"
[ "$(ls "$work/run.1" | tr '\n' ' ')" = "trace trace.svg " ] || fail "the picture is not beside the timeline: $(ls "$work")"
for seed in -1 18446744073709551616 3x; do
  "$train" --preset tiny --seed "$seed" --dry-run >"$work/out" 2>"$work/err"
  [ $? = 2 ] || fail "--seed $seed is taken"
  grep -qF -- "$seed is no whole number from 0 to 18446744073709551615" "$work/err" ||
    fail "--seed $seed: $(cat "$work/err")"
done
if [ ! -e /dev/nvidia0 ] && [ ! -e /dev/dxg ]; then
  refused "or take --backend cpu" --backend cuda
fi

# refused_by_all RANKS WORDS ARGUMENT...: one sentence, whichever rank ends first; no rank speaks of another's end.
refused_by_all() {
  local ranks=$1 words=$2 status
  shift 2
  "$chorus" run -n "$ranks" --timeout 60 -- "$train" --preset tiny "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ "$status" = 2 ] || fail "exit status $status on $ranks ranks for: $*"
  [ "$(grep -cv '^chorus run: ' "$work/err")" = 1 ] || fail "not one line of $ranks ranks for: $*: $(cat "$work/err")"
  grep -qF -- "$words" "$work/err" || fail "'$words' is not in: $(cat "$work/err")"
}
refused_by_all 3 "is 4 ranks, but 3 were started; --dp 3 --tp 1 --pp 1 would fit" --dp 2 --tp 2
refused_by_all 6 "is 4 ranks, but 6 were started; --dp 3 --tp 2 --pp 1 would fit" --dp 2 --tp 2
refused_by_all 4 "use at most --pp 2" --pp 4
refused_by_all 4 "0 bytes" --dp 4 --data "$work/empty"
refused_by_all 2 "there is no directory" --dp 2 --report-json "$work/absent/report.json"
if [ -w /dev/full ]; then
  "$train" --preset tiny --steps 1 >/dev/full 2>"$work/err"
  [ $? = 2 ] || fail "a full disk under the output goes unnoticed"
  grep -qxF "train: cannot write to standard output: No space left on device" "$work/err" ||
    fail "a full disk under the output: $(cat "$work/err")"
fi
[ -w /dev/full ] && refused_by_all 2 "cannot write /dev/full: No space left on device" --dp 2 --steps 1 --report-json /dev/full

# Products of bfloat16 are emulated where the processor has none, which the run says, and trained the same.
quick=$(last_loss 1 --steps 4 --bfloat16)
grep -q '^matrix products of bfloat16: ' "$work/out" || fail "the run does not say what multiplies"
emulated=$(DNNL_MAX_CPU_ISA=AVX2 last_loss 1 --steps 4 --bfloat16)
grep -q '^matrix products of bfloat16: emulation in float32 by OpenBLAS ' "$work/out" ||
  fail "nothing says that bfloat16 is emulated: $(grep 'matrix products' "$work/out")"
near "$quick" "$emulated" 0.001 || fail "bfloat16 ends at '$quick', emulated at '$emulated'"

# A rank is killed in the middle; the restart ends where the uninterrupted run does.
common=(--dp 2 --zero 1 --steps 40 --deterministic)
whole=$(last_loss 2 "${common[@]}")
"$chorus" run -n 2 --timeout 120 -- "$train" --preset tiny --print-every 1 --batch 1 --steps 1000000 \
  --dp 2 --zero 1 --checkpoint "$work/ckpt" --checkpoint-every 1 >"$work/out" 2>"$work/err" &
job=$!
for _ in $(seq 300); do
  [ -d "$work/ckpt/step-00000002" ] && break
  sleep 0.1
done
victim=$(pgrep -P "$job" | tail -n 1)
kill -KILL "$victim"
wait "$job" && fail "the job outlived its rank"
grep -q 'rank' "$work/err" || fail "nobody names the killed rank: $(cat "$work/err")"
rm -rf "$work/ckpt"
last_loss 2 "${common[@]}" --steps 40 --checkpoint "$work/ckpt" --checkpoint-every 15 >/dev/null
# Another run in its place would leave checkpoints of two, and a restart could go on from the wrong one.
refused "$work/ckpt/step-00000040 is there from an earlier run: go on from it with --resume" --checkpoint "$work/ckpt"
[ -d "$work/ckpt/step-00000030" ] || fail "a refused run touched the checkpoints"
rm -rf "$work/ckpt/step-00000040"
resumed=$(last_loss 2 "${common[@]}" --checkpoint "$work/ckpt" --resume)
grep -q 'going on from .*step-00000030' "$work/out" || fail "it did not go on from step 30"
[ -n "$whole" ] && [ "$resumed" = "$whole" ] || fail "resumed it ends at '$resumed', whole at '$whole'"

# What rank 0 says is what was wrong on another rank, whose disk is full; nothing is left of the attempt.
mkdir -p "$work/full/step-00000003.unfinished"
ln -s /dev/full "$work/full/step-00000003.unfinished/rank-0001.bin"
last_loss 2 --dp 2 --steps 3 --checkpoint "$work/full" >/dev/null 2>&1 && fail "a full disk went unnoticed"
grep -q '^train: rank 1: cannot write .*: No space left on device$' "$work/err" ||
  fail "nobody says that a disk is full: $(cat "$work/err")"
[ -z "$(ls "$work/full")" ] || fail "left on the full disk: $(ls "$work/full")"

[ "$failures" = 0 ] && echo "all as expected"
exit "$((failures > 0))"
