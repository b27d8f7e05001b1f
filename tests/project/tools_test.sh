#!/usr/bin/env bash
# Claim: every command that is installed below PREFIX does there what its help says, and has a manual
# page and completions; what a package does not hold is not asked for.
#
#   tools_test.sh PREFIX VERSION
set -u
prefix=$1 version=$2
. "$(dirname "$0")/../cli/expect.sh"
cd "$dir" || exit 1
PATH=$prefix/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
unset LD_LIBRARY_PATH PYTHONPATH PKG_CONFIG_PATH
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export XDG_CACHE_HOME=$dir/cache
share=$prefix/share

commands=$(cd "$prefix/bin" && ls -d chorus chorus-perf* train 2>/dev/null)
[ -n "$commands" ] || fail "no command in $prefix/bin"
for command in $commands; do
  expect 0 "$command $version" "$command" --version
  expect 0 "xample" "$command" --help
  [ -s "$share/man/man1/$command.1" ] || [ -s "$share/man/man1/$command.1.gz" ] ||
    fail "$command has no manual page"
  [ -s "$share/bash-completion/completions/$command" ] || fail "$command has no completion for bash"
  [ -n "$(find "$share/zsh" -name "_$command" 2>/dev/null)" ] ||
    fail "$command has no completion for zsh"
  expect 0 "" bash -n "$share/bash-completion/completions/$command"
  expect 2 " $command --help" "$command" --no-such-option
done
subcommands=$(chorus --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$subcommands")" -ge 13 ] || fail "chorus --help lists too few: $subcommands"
for command in $subcommands; do
  expect 0 "xample" chorus help "$command"
  # layout is the trainer's: it speaks in its own name.
  expect 2 "$([ "$command" = layout ] && echo train || echo "chorus $command"): " \
    chorus "$command" --no-such-option one two three
done

# chorus, command by command.
expect 0 "rank" chorus topo
expect 0 "chorus-topology" chorus topo dgx1 --json
expect 0 "ring" chorus algorithms
expect 0 "limit" chorus explain all_reduce 4,64K 1M -n 2
chorus schedule ring all_reduce -n 8 >ring.json || fail "no schedule"
expect 0 "proved" chorus verify ring.json
expect 0 "the time to believe" chorus simulate ring.json -t dgx1 --svg ring.svg
[ -s ring.svg ] || fail "no timeline"
expect 0 "<algo" chorus convert ring.json - --to msccl-xml
expect 0 "all_reduce" chorus synth ring:4 -b 1K 1M -c all_reduce -o plan.json
expect 0 "of limit" chorus explain plan.json 1K
expect 0 "2" chorus run -n 2 -- sh -c 'echo $CHORUS_WORLD_SIZE'
expect 0 "nothing was measured" chorus run -n 2 -- chorus probe
expect 2 "cannot be opened" chorus flight none.json
chorus doctor >/dev/null || [ $? -ne 2 ] || fail "no doctor"
if command -v dot >/dev/null; then
  expect 0 "" chorus topo --svg machine.svg
  grep -q "</svg>" machine.svg || fail "no picture of the machine"
fi

# chorus-perf, and what it starts.
measure=(-b 4 -e 4 --rounds 1 --budget-ms 5)
expect 0 "chorus" chorus-perf all_reduce "${measure[@]}" -l chorus --json one.json
expect 0 "all_reduce" chorus-perf show one.json
expect 0 "all_reduce" chorus-perf compare one.json one.json
expect 0 '"format": "chorus-perf"' chorus-perf all_reduce "${measure[@]}" -l chorus --json -
[ ! -e - ] || fail "chorus-perf wrote a file named -"
expect 0 "ring" chorus-perf all_reduce --explain --sizes 256 --budget-ms 5
expect 0 "point" chorus run -n 2 -- chorus-perf-selection all_reduce --sizes 256 --ms 1
expect 0 "private, MB" chorus-perf-startup -n 2
expect 0 "found" chorus-perf-synthesis cluster
families=(chorus-perf-synthesis families --json families.json)
expect 0 "1 of 1: ring:4" "${families[@]}" --topology ring:4
expect 0 "2 of 2: ring:5" "${families[@]}" --continue --topology ring:4 --topology ring:5
expect 2 "that --bytes does not name" "${families[@]}" --continue --topology ring:6 -b 1K
expect 0 "all_reduce 1 GiB" chorus-perf compare families.json families.json
for library in openmpi mpich gloo; do
  [ -x "$prefix/libexec/chorus/chorus-perf-worker-$library" ] || continue
  expect 0 "$library" chorus-perf all_reduce "${measure[@]}" -t tcp -l "$library"
done
# Not `cluster check`: how fast links are on a busy machine is no claim of this test.
chorus-perf cluster run pairs -- hostname >cluster 2>&1
case $? in
  0) grep -q host3 cluster || fail "no fourth host: $(tail -n 2 cluster)" ;;
  3) ;; # this process may not
  *) fail "no cluster: $(tail -n 2 cluster)" ;;
esac
if command -v gnuplot >/dev/null; then
  expect 0 "" chorus-perf all_reduce -b 4 -e 64 --rounds 1 --budget-ms 5 -l chorus --svg perf.svg
  grep -q "</svg>" perf.svg || fail "no picture of what was measured"
fi

if [ -x "$prefix/bin/train" ]; then
  expect 0 "step" chorus run -n 2 -- train --preset tiny --dp 2 --steps 1
  expect 0 "sequences" chorus layout ring:4 --preset tiny --gflops 10
fi
modules=$prefix/lib/python3/dist-packages
if [ -d "$modules/chorus" ]; then
  expect 0 "[3.0]" env PYTHONPATH="$modules" chorus run -n 2 -- /usr/bin/python3 -c '
import array, chorus
x = array.array("d", [1 + chorus.COMM_WORLD.rank]); chorus.COMM_WORLD.Allreduce(chorus.IN_PLACE, x)
if chorus.COMM_WORLD.rank == 0: print(list(x))'
fi
module=$modules/chorus_torch
if [ -d "$module" ] && /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  expect 0 "[0.5]" env PYTHONPATH="${module%/*}" chorus run -n 2 -- /usr/bin/python3 -c '
import torch, torch.distributed as dist, chorus_torch
dist.init_process_group("chorus", init_method="chorus://")
x = torch.ones(1) * dist.get_rank(); dist.all_reduce(x, dist.ReduceOp.AVG)
if dist.get_rank() == 0: print(x.tolist())'
fi
for document in LICENSE README.md CHANGELOG.md docs/README.md; do
  [ -s "$share/doc/chorus/$document" ] || fail "$document is not installed"
done
done_testing
