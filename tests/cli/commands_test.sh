#!/usr/bin/env bash
# explain, schedule, verify and flight: what they print and how they exit.
#   commands_test.sh CHORUS DIES    (DIES: a program whose last rank kills itself)
set -u
chorus=$1 dies=$2
. "$(dirname "$0")/expect.sh"

# A good schedule is proved, a spoiled one is not, and what is no schedule is refused.
"$chorus" schedule ring all_reduce -n 4 >"$dir/ring.json" || exit 1
expect 0 "proved" "$chorus" verify "$dir/ring.json"
sed '0,/"reduce"\]/s/, "reduce"\]/, "copy"]/' "$dir/ring.json" >"$dir/spoiled.json"
cmp -s "$dir/ring.json" "$dir/spoiled.json" && echo "FAILED: nothing was spoiled" && exit 1
expect 1 "WRONG" "$chorus" verify "$dir/spoiled.json"
head -c 200 "$dir/ring.json" >"$dir/cut.json"
expect 2 "cut.json" "$chorus" verify "$dir/cut.json"
sed 's/"version": 1/"version": 99/' "$dir/ring.json" >"$dir/later.json"
expect 2 "99" "$chorus" verify "$dir/later.json"
expect 2 "missing.json" "$chorus" verify "$dir/missing.json"

# Other systems' files: converted there and back, proved, spoiled, refused.
silent "$chorus" convert "$dir/ring.json" "$dir/ring.xml"
expect 0 "proved" "$chorus" verify "$dir/ring.xml"
silent "$chorus" convert "$dir/ring.xml" "$dir/again.json"
silent "$chorus" convert "$dir/again.json" "$dir/again.xml"
cmp "$dir/ring.xml" "$dir/again.xml" || fail "the conversion there and back differs"
expect 0 "proved" "$chorus" verify "$dir/again.json" "$dir/again.xml"
silent "$chorus" convert "$dir/ring.xml" "$dir/sccl.json" --to sccl
expect 0 "proved" "$chorus" verify "$dir/sccl.json"
expect 0 '"sem_acquire"' "$chorus" convert "$dir/ring.xml" - --to mscclpp
expect 0 'proto="LL"' "$chorus" convert "$dir/ring.json" - --to msccl-xml --proto LL
sed '0,/type="rrs"/s//type="rcs"/' "$dir/ring.xml" >"$dir/spoiled.xml"
cmp -s "$dir/ring.xml" "$dir/spoiled.xml" && echo "FAILED: nothing was spoiled" && exit 1
expect 1 "WRONG" "$chorus" verify "$dir/spoiled.xml" "$dir/ring.xml"
expect 1 "proved" "$chorus" verify "$dir/spoiled.xml" "$dir/ring.xml"
expect 1 "spoiled.xml:" "$chorus" convert "$dir/spoiled.xml" "$dir/never.json"
head -c 300 "$dir/ring.xml" >"$dir/cut.xml"
expect 2 "cut.xml:" "$chorus" verify "$dir/cut.xml"
expect 2 "--to" "$chorus" convert "$dir/ring.json" "$dir/ring.out"
expect 2 "msccl-xml" "$chorus" convert "$dir/ring.json" - --to mscl
expect 2 "cannot be written" "$chorus" convert "$dir/ring.json" "$dir/no/such.xml"
"$chorus" schedule binomial_tree broadcast -n 4 >"$dir/broadcast.json"
expect 2 "is a broadcast" "$chorus" convert "$dir/broadcast.json" - --to mscclpp
silent "$chorus" convert dgx1 "$dir/dgx1.json" --topology
echo '{"msccl_type": "topology", "name": "two", "links": [[0, 1], [1, 0]], "switches": []}' \
  >"$dir/two.json"
expect 0 '"chorus-topology"' "$chorus" convert "$dir/two.json" - --topology
expect 0 '"msccl_type"' "$chorus" convert "$dir/two.json" - --topology --to sccl
expect 2 "sccl.json" "$chorus" convert "$dir/sccl.json" - --topology

expect 2 "ring" "$chorus" schedule rong all_reduce -n 4
expect 2 "all_reduce" "$chorus" schedule ring all_reduced -n 4
expect 2 "8" "$chorus" schedule ring all_reduce -n 4 -t dgx1
expect 0 "hierarchical" "$chorus" schedule hierarchical all_reduce -n 8 --levels 4,2
expect 2 "do not multiply" "$chorus" schedule hierarchical all_reduce -n 8 --levels 4,4
expect 2 "ring takes no levels: leave them out, or choose blueconnect, hierarchical, two_level" \
  "$chorus" schedule ring all_reduce -n 8 --levels 4,2
expect 0 "--levels INT,INT,..." "$chorus" schedule --help
expect 0 "simulated" "$chorus" schedule ring all_reduce -n 8 -t dgx1 -b 16M --svg "$dir/ring.svg" \
  --trace "$dir/ring.trace"
grep -q "</svg>" "$dir/ring.svg" || fail "no picture"
grep -q traceEvents "$dir/ring.trace" || fail "no trace"
expect 2 "cannot be written" "$chorus" schedule ring all_reduce -n 8 -t dgx1 --svg "$dir/no/such"

expect 0 "limit of all_gather" "$chorus" explain all_gather 1M -t dgx1
expect 0 "171.4" "$chorus" explain all_gather 1M -t dgx1
expect 0 '"candidates"' "$chorus" explain all_reduce 4 1M -n 8 --json
expect 2 "all_reduced" "$chorus" explain all_reduced
expect 2 "" "$chorus" explain all_reduce -n 0

# Numbers that are none, or beyond all use.
for number in nan inf -1 0 1e308 1x; do
  expect 2 "is not a number in" "$chorus" convert dgx1 - --topology --to sccl --link-gb-s="$number"
  expect 2 "is not a number in" "$chorus" synth ring:4 -o "$dir/never.json" --time-limit="$number"
  expect 2 "is not a number in" "$chorus" run -n 1 --timeout="$number" -- true
done
expect 2 "is not a size" "$chorus" explain all_reduce -n 2 -- -1
expect 2 "is not a size" "$chorus" simulate "$dir/ring.json" -t ring:4 --bytes=-4K
expect 2 "is too large: a size is at most 1024G" "$chorus" explain all_reduce 99999999999999999999999
expect 2 "is not a whole number" "$chorus" synth ring:4 --seed=-1

# Lists by blanks and by commas, in every command that takes one.
for sizes in "4 64K 1M" "4,64K,1M" "4,64K 1M"; do
  # shellcheck disable=SC2086 # several words on purpose
  expect 0 "all_reduce of 1048576 bytes" "$chorus" explain all_reduce $sizes -n 2
  # shellcheck disable=SC2086
  expect 0 "1M" "$chorus" synth ring:4 --cache "$dir" -c all_reduce all_gather --only classic -b $sizes
done
expect 0 "hierarchical" "$chorus" schedule hierarchical all_reduce -n 8 --levels 4 2

# A file named - is standard output, and has it alone.
for command in "simulate $dir/ring.json -t ring:4 --svg -" \
  "simulate $dir/ring.json -t ring:4 --trace -" "synth ring:4 --cache $dir -b 1K -c all_reduce -o -" \
  "schedule ring all_reduce -n 8 -t dgx1 --svg -" "convert $dir/ring.json - --to chorus" \
  "run -n 1 -- $chorus probe -o -"; do
  # shellcheck disable=SC2086
  "$chorus" $command >"$dir/only" 2>/dev/null || fail "$command"
  case $(head -c 1 "$dir/only") in
    "<" | "{") ;;
    *) fail "$command: something else comes first: $(head -c 80 "$dir/only")" ;;
  esac
  [ ! -e - ] || fail "$command wrote a file named -"
done
expect 2 "only one result" "$chorus" simulate "$dir/ring.json" -t ring:4 --svg - --trace -
expect 2 "only one result" "$chorus" topo dgx1 --svg - --json

# One of a thing is one.
"$chorus" schedule ring all_reduce -n 2 >"$dir/two.json"
"$chorus" schedule binomial_tree broadcast -n 2 >"$dir/one.json"
expect 0 "1 chunk, 1 step, 1 transfer: proved" "$chorus" verify "$dir/one.json"
expect 0 "1 rank:" "$chorus" explain all_reduce 1 -n 1
expect 0 "1 rank, " "$chorus" topo ring:1
expect 2 "'ring:1' has 1 rank," "$chorus" simulate "$dir/two.json" -t ring:1

# Two times, and which to believe.
expect 0 "the time to believe" "$chorus" simulate "$dir/ring.json" -t ring:4
expect 0 "but they overlap" "$chorus" schedule chain reduce -n 16 -t "2*dgx-a100"
expect 0 "transfers of several steps share links" \
  "$chorus" schedule binomial_tree broadcast -n 16 -t torus:4x4

# One host has no network between hosts, and nothing is called measured that was not.
expect 0 "nothing was measured" env CHORUS_HOST_PROBE=off "$chorus" run -n 2 -- \
  "$chorus" probe -o "$dir/probed.json"
expect 0 "  assumed" "$chorus" topo "$dir/probed.json"
grep -q '"measured"' "$dir/probed.json" && fail "a figure is called measured that was not"
expect 0 '"experiments": 0' "$chorus" run -n 1 -- "$chorus" probe --json
expect 2 "nothing is measured to compare" "$chorus" run -n 2 -- "$chorus" probe --compare ring:2

# Usage errors name the command, and what was meant.
for command in algorithms convert doctor explain flight layout probe run schedule simulate synth topo \
  verify; do
  expect 0 "xample" "$chorus" "$command" --help
  "$chorus" "$command" --help >"$dir/help"
  expect 0 "$(sed -n 3p "$dir/help")" "$chorus" help "$command"
done
expect 2 "chorus synth: there is no option --byte; did you mean --bytes? See chorus synth --help" \
  "$chorus" synth --byte 4
expect 2 "chorus synth: " "$chorus" synth "$dir/no/such.json"
expect 2 "is now \`chorus layout\`" "$chorus" plan dgx1
expect 2 "did you mean verify?" "$chorus" verfiy
expect 2 "did you mean topo?" "$chorus" TOPO
expect 2 "did you mean dgx-a100?" "$chorus" topo DGX-A100
expect 2 "did you mean torus?" "$chorus" topo Torus:4x4
expect 2 "did you mean all_reduce?" "$chorus" explain AllReduce
expect 2 "did you mean all_gather?" "$chorus" schedule ring allgather -n 4
expect 2 "did you mean ring?" "$chorus" schedule Ring all_reduce -n 4
expect 2 "did you mean classic?" "$chorus" synth ring:4 --only clasic
expect 2 "did you mean mscclpp?" "$chorus" convert "$dir/ring.json" - --to msccl++
echo '{' >"$dir/cut-record.json"
expect 2 "not a flight record: line 2, column 1" "$chorus" flight "$dir/cut-record.json"
grep -q "json.exception" "$dir/out" && fail "the name of an exception is shown"

# What was asked for and would not have been done.
expect 2 "there is no command 'topos'; did you mean topo?" "$chorus" topos
expect 2 "on which topology" "$chorus" schedule ring all_reduce -n 4 --svg "$dir/never.svg"
expect 2 "excludes" "$chorus" explain all_reduce -t ring:4 -n 8
expect 2 "excludes" "$chorus" topo --list --json
expect 2 "cannot be written" "$chorus" probe -o "$dir/no/such.json"
expect 2 "cannot be opened" "$chorus" probe --compare "$dir/no/such.json"
ln -s circle "$dir/circle"
expect 2 "$dir/circle/proc: cannot be opened: Too many levels" "$chorus" doctor --root "$dir/circle"
expect 2 "holds neither proc nor sys" "$chorus" doctor --root "$dir"
expect 2 "ring.json: cannot be made" "$chorus" synth ring:4 -b 1K --svg "$dir/ring.json"

# What cannot be written leaves what was there, and no draft.
echo before >"$dir/kept.svg"
chmod 640 "$dir/kept.svg"
ln -s kept.svg "$dir/link.svg"
picture() { "$chorus" schedule ring all_reduce -n 8 -t dgx1 --svg "$dir/link.svg"; }
small_files_only() { (trap '' XFSZ && ulimit -f 1 && picture); }
expect 2 "link.svg: cannot be written: File too large" small_files_only
[ "$(cat "$dir/kept.svg")" = before ] || fail "a file was lost to a full disk"
expect 0 "ring" picture
grep -q "<svg" "$dir/kept.svg" || fail "the file behind a link was not replaced"
[ "$(stat -c %a "$dir/kept.svg")" = 640 ] || fail "a replaced file has other permissions"
[ -z "$(find "$dir" -name 'kept.svg.*')" ] || fail "drafts were left: $(ls "$dir")"

# A list ends where the next word begins.
expect 0 "all_reduce" "$chorus" synth --cache "$dir" -b 1K -c all_reduce ring:4

# Closed standard streams are not given to the next file.
"$chorus" run -n 1 --rank-prefix -- echo lost >&- 2>"$dir/lost"
[ $? -eq 2 ] || fail "closed output and another exit code than 2"
grep -q "Bad file descriptor" "$dir/lost" || fail "nobody said that output is closed"
"$chorus" run -n 2 -- true >&- 2>&- <&- || fail "closed streams end a run"
"$chorus" run -n 1 --rank-prefix -- echo lost >/dev/full 2>"$dir/lost"
[ $? -eq 2 ] || fail "lost output and another exit code than 2"
grep -q "No space left" "$dir/lost" || fail "nobody said that output was lost"
"$chorus" --help >/dev/full 2>"$dir/lost" && fail "lost help and exit code 0"
grep -q "No space left" "$dir/lost" || fail "nobody said that the help was lost"

# Little memory: nothing starts threads that nobody needs. Sanitizers reserve more than all of it.
if ! ldd "$chorus" | grep -qE 'lib(asan|tsan|ubsan)'; then
  with_little_memory() { (ulimit -v 200000 && exec timeout 60 "$@"); }
  expect 0 "chorus" with_little_memory "$chorus" --version
  expect 0 "by LP" with_little_memory "$chorus" explain all_to_all 1M -t mesh:4x4
fi

# The variables: one table for the command, the page, and what is read.
"$chorus" env --markdown | diff "$(dirname "$0")/../../docs/variables.md" - >"$dir/diff" ||
  fail "docs/variables.md: write it again: chorus env --markdown"
expect 0 "CHORUS_TIMEOUT_MS            environment 5000  (default 600000)" \
  env CHORUS_TIMEOUT_MS=5000 "$chorus" env
expect 0 "CHORUS_SLOTS                 default     8" "$chorus" env
expect 1 "CHORUS_SLOTS                 malformed   99: must be a whole number in [2, 32]  (default 8)" \
  env CHORUS_SLOTS=99 "$chorus" env
expect 1 "CHORUS_SLOT                  unknown     did you mean CHORUS_SLOTS?" \
  env CHORUS_SLOT=4 "$chorus" env
expect 0 "(set, not shown)" env CHORUS_SECRET=00112233445566778899aabbccddeeff "$chorus" env
grep -q 00112233 "$dir/out" && fail "chorus env shows a secret"
expect 0 "NCCL_IB_TC                   environment, but CHORUS_RDMA_TC wins 7" \
  env NCCL_IB_TC=7 CHORUS_RDMA_TC=1 "$chorus" env NCCL_IB_TC
echo "NCCL_IB_SL=3" >"$dir/nccl.conf"
expect 0 "NCCL_IB_SL                   $dir/nccl.conf 3" env NCCL_CONF_FILE="$dir/nccl.conf" "$chorus" env
expect 0 "whole number from 1 on: Longest wait for a peer" "$chorus" env CHORUS_TIMEOUT_MS
expect 2 "did you mean CHORUS_SLOTS?" "$chorus" env CHORUS_SLOT
"$chorus" env --json | python3 -c 'import json,sys; sys.exit(len(json.load(sys.stdin)) < 60)' ||
  fail "chorus env --json"

# A rank kills itself; the others leave records that say so.
CHORUS_FLIGHT_DIR=$dir CHORUS_LOG=error "$chorus" run -n 3 -- "$dies" >"$dir/run" 2>&1 </dev/null
[ $? -ne 0 ] || fail "a run with a dead rank exited 0"
expect 1 "rank    2 left no record" "$chorus" flight "$dir"/chorus-flight-*.json
expect 1 "failure (ranks 0 1)" "$chorus" flight "$dir"
expect 1 "2 records, failed 20" env CHORUS_FLIGHT_DIR="$dir" "$chorus" flight
expect 2 "there are no flight records in /" "$chorus" flight /
echo '{"format": "chorus-flight", "version": 7}' >"$dir/later.json"
expect 2 "update Chorus" "$chorus" flight "$dir/later.json"
expect 2 "but 'chorus-flight' is expected" "$chorus" flight "$dir/ring.json"
echo '{"format": ' >"$dir/half.json"
expect 2 "half.json: not a flight record: line 2, column 1: syntax error" "$chorus" flight "$dir/half.json"
grep -q "json.exception" "$dir/out" && fail "the parser's own error text is shown"
one=$(ls "$dir"/chorus-flight-*-0-*.json)
sed 's/"world_size": *3/"world_size": 2147483647/' "$one" >"$dir/huge.json"
expect 1 "ranks 1 to 2147483646 left no record" "$chorus" flight "$dir/huge.json"
for size in 0 -3 2.5 4294967299 '"3"' null; do
  sed "s/\"world_size\": *3/\"world_size\": $size/" "$one" >"$dir/wrong.json"
  expect 2 "in [1, 2147483647]" "$chorus" flight "$dir/wrong.json"
done
done_testing
