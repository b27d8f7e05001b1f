#!/usr/bin/env bash
# Shows on this machine what Chorus does: sets the machine up, builds, and goes the whole way from
# the wiring to a measured collective.
#
#   ./demo.sh
#   ./demo.sh --small BUILD   the same commands in half a minute, on what BUILD holds: a test of them
#
# Leaves no process, port or file in /dev/shm behind, however it ends. Logs: build/log/.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
build=build/release out=build/demo proved="2 3 4 5 6 7 8 9 12 16" compared='' steps=200 small=''
case ${1:-}:$# in
  --contained:*) shift ;;
  :0 | --small:2) exec scripts/contained.sh "$PWD/demo.sh" --contained "$@" ;;
  *)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
    ;;
esac
[ $# -eq 0 ] || build=$2 out=$TMPDIR/demo proved="2 3 4 8" compared="-e 4" steps=40 small=yes
. scripts/lib.sh
PATH="$(realpath -m "$build")/bin:$PATH"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # in containers one often is

# show COMMAND...: prints the command as one would type it, runs it, and ends the demo if it fails.
show() {
  printf '\n$ %s\n' "$*"
  "$@" </dev/null || fail "this command failed with exit status $?; everything up to here worked"
}

# prove_all: replays every classic schedule on contribution counts, and the programs it is cut into
# under the real number of slots; one line per algorithm.
prove_all() {
  local directory=$TMPDIR/schedules algorithm collectives collective ranks file levels all=0
  mkdir -p "$directory"
  printf '\n$ chorus schedule ALGORITHM COLLECTIVE -n RANKS | chorus verify -   # all of them\n'
  while read -r algorithm collectives; do
    rm -f "$directory"/*
    for collective in $collectives; do
      for ranks in $proved; do
        file=$directory/$collective-$ranks.json
        levels=(--levels "$((ranks % 2 ? ranks : 2)),$((ranks % 2 ? 1 : ranks / 2))")
        # Most take no levels; some have no form for so many ranks.
        chorus schedule "$algorithm" "$collective" -n "$ranks" "${levels[@]}" >"$file" 2>/dev/null ||
          chorus schedule "$algorithm" "$collective" -n "$ranks" >"$file" 2>/dev/null ||
          rm "$file"
      done
    done
    chorus verify "$directory"/*.json >"$directory/said" || {
      grep WRONG "$directory/said"
      fail "a schedule of $algorithm is wrong"
    }
    printf '  %-28s proved %3d schedules: %s\n' "$algorithm" "$(wc -l <"$directory/said")" \
      "$collectives"
    all=$((all + 1))
  done < <(chorus algorithms | awk '
    /^[a-z_]+$/ { name = $1 }
    /^  for / { sub(/;.*/, ""); gsub(/,/, ""); $1 = ""; print name $0 }')
  [ "$all" -gt 0 ] || fail "chorus algorithms names none"
}

start=$SECONDS
if [ -z "$small" ]; then
  heading "Set-up and build"
  scripts/setup.sh --lean || exit 1
  build_preset release demo || exit 1
fi

heading "How is this machine wired?"
mkdir -p "$out"
show chorus topo --svg "$out/machine.svg"
echo "(drawn in $out/machine.svg)"

heading "Which schedules fit, and how far are they from the limit?"
show chorus explain all_reduce 64 4M -n 4
show chorus explain all_to_all 1M --topology dgx1
show chorus schedule ring all_reduce -n 8 --topology dgx1 --bytes 16M --svg "$out/ring.svg"
echo "(its timeline is drawn in $out/ring.svg)"

heading "Can the wiring do better?"
show chorus synth -n 4 --fresh -o "$out/here.json"
show chorus explain "$out/here.json" 4K
show chorus synth 2*ndv2 --fresh -c all_reduce,all_gather,all_to_all -o "$out/ndv2.json"
show chorus simulate "$out/ndv2.json" all_gather -b 16M --svg "$out/gather.svg"
echo "(its timeline is drawn in $out/gather.svg)"

heading "Is every schedule right?"
show chorus verify "$out/here.json" "$out/ndv2.json"
prove_all

heading "Every collective between real processes"
for transport in shm tcp; do
  export CHORUS_TRANSPORTS=$transport
  printf '\n$ export CHORUS_TRANSPORTS=%s\n' "$transport"
  show chorus run -n 4 -- "$build/examples/02_collectives"
done
unset CHORUS_TRANSPORTS
printf '\n$ export CHORUS_PLAN=%s\n' "$out/here.json"
CHORUS_PLAN=$(realpath "$out/here.json") show chorus run -n 4 -- "$build/examples/02_collectives"
show mpirun.openmpi -n 4 --oversubscribe "$build/examples/02_collectives"
show mpirun.mpich -n 4 "$build/examples/02_collectives"

heading "How does it compare?"
# shellcheck disable=SC2086 # several words on purpose
show chorus-perf --quick --brief $compared --json "$out/quick.json"
show chorus-perf all_reduce all_gather all_to_all --plan "$out/here.json" -l chorus --brief \
  -b 1K -e 1M -f 32

heading "Does it train?"
if [ -x "$build/examples/trainer/train" ]; then
  PATH="$(realpath "$build")/examples/trainer:$PATH"
  cat docs/*.md >"$out/text" # this project's own pages
  show train --preset 13B --dp 16 --tp 8 --pp 4 --zero 1 --micro-batches 16 --dry-run
  show chorus run -n 4 -- train --preset tiny --dp 2 --tp 2 --zero 1 --batch 8 --steps "$steps" \
    --learning-rate 5e-3 --print-every 40 --data "$out/text" --report
else
  echo "(the trainer was left out: build/log/ says why)"
fi

heading "done in $((SECONDS - start)) s"
