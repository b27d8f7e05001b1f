#!/usr/bin/env bash
# Takes the records of perf/torch, writes them to RESULTS, a folder of perf/results, and the tables of all machines' into
# docs/pytorch.md and README.md.
#
#   perf/torch/take.sh operations|generate|training PYTHON RESULTS STATE
#
# PYTHON has torch 2.15 and chorus-torch (for generate also transformers and deepspeed, of which the latter is compared
# where it is); STATE says what else the machine does ("idle"). training needs root and `chorus-perf` (a build's bin/ on
# PATH). On two idle cores operations takes 3 minutes, generate 5, training 6.
set -euo pipefail
[ $# -eq 4 ] || { sed -n '5p' "$0"; exit 2; }
what=$1 python=$2 results=$3 state=$4
here=$(dirname "$(realpath "$0")")
mkdir -p "$results/torch"
export OMP_NUM_THREADS=1 CHORUS_FLIGHT_DIR=
PATH=$(dirname "$(realpath -s "$python")"):$PATH  # DeepSpeed's compilation wants this Python's ninja
ranks() {
  local n=$1
  shift
  "$python" -m torch.distributed.run --standalone --nproc_per_node="$n" "$@"
}
deepspeed() { "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("deepspeed"))'; }
# ms of an all-reduce of 16 MiB; TCP's headers leave 0.956 of a cable.
bound() { chorus-perf cluster show "$1" | awk '$1 == "all_reduce" {print $2 / 0.956}'; }

case $what in
  operations)
    more=()
    ! deepspeed || more=(--deepspeed)
    for n in 2 4; do
      ranks $n "$here/operations.py" "${more[@]}" --note "$state" --json "$results/torch/operations-$n-ranks.json"
    done
    ;;
  generate)
    backends=(none gloo chorus)
    ! deepspeed || backends+=(deepspeed)
    "$python" "$here/generate.py" --ranks 2 --rounds 3 --backends "${backends[@]}" --note "$state" \
      --json "$results/torch/generate-2-ranks.json"
    "$python" "$here/generate.py" --ranks 4 --rounds 1 --backends "${backends[@]}" --note "$state" \
      --json "$results/torch/generate-4-ranks.json"
    ;;
  training)
    for method in ddp fsdp zero; do
      ranks 2 "$here/training_step.py" $method --note "$state" --json "$results/torch/training-$method-loopback.json"
    done
    for cluster in pairs random:1,hosts=4 random:2,hosts=4 random:3,hosts=4; do
      for method in ddp fsdp zero; do
        chorus-perf cluster run "$cluster" -- "$python" "$here/training_step.py" $method --steps 4 --note "$state" \
          --all-reduce-16m-ms "$(bound "$cluster")" --json "$results/torch/training-$method-$cluster.json"
      done
    done
    ;;
  *) sed -n '5p' "$0"; exit 2 ;;
esac
"$python" "$here/tables.py"
