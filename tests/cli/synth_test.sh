#!/usr/bin/env bash
# synth, simulate, explain of a plan: what they write and how they exit; a plan runs between processes.
#   synth_test.sh CHORUS EXAMPLE    (EXAMPLE: a program that checks its results)
set -u
chorus=$1 example=$2
. "$(dirname "$0")/expect.sh"

synth() { "$chorus" synth --cache "$dir/cache" "$@"; }

# The plan is written, proved, the same each time, and taken from the cache the second time.
expect 0 "of limit" synth dgx1 -b 1K,64M -o "$dir/plan.json"
expect 0 "from the cache" synth dgx1 -b 1K,64M -o "$dir/cached.json"
cmp -s "$dir/plan.json" "$dir/cached.json" || fail "the cached plan differs"
expect 0 "of limit" synth dgx1 -b 1K,64M -o "$dir/again.json" --fresh
cmp -s "$dir/plan.json" "$dir/again.json" || fail "the same input gave other bytes"
expect 0 "proved" "$chorus" verify "$dir/plan.json"
grep -q WRONG "$dir/out" && fail "a synthesized schedule is wrong"

expect 0 "limits, of messages" "$chorus" explain "$dir/plan.json"
expect 2 "the link gpu0 -> gpu1 has 25 GB/s" "$chorus" explain "$dir/plan.json" -t dgx1,rate=20
expect 0 "simulated" "$chorus" simulate "$dir/plan.json" all_gather -b 64M --svg "$dir/t.svg"
grep -q "</svg>" "$dir/t.svg" || fail "no picture"
expect 2 "has no schedule for gather" "$chorus" simulate "$dir/plan.json" gather

# However early the search ends every collective has its schedule; one that is named twice has one.
expect 0 "stopped early" synth 2*dgx1 --time-limit 0.001 -o "$dir/early.json"
expect 0 "all_to_all" "$chorus" verify "$dir/early.json"
expect 0 "of limit" synth dgx1 -c all_gather,all_gather -b 1K -o "$dir/twice.json"
expect 0 "proved" "$chorus" verify "$dir/twice.json"

# So much effort ends at the same place every time, and what it found is kept.
expect 0 "the best that so much effort finds" synth 2*dgx1 --effort 0.01 -o "$dir/little.json"
expect 0 "from the cache" synth 2*dgx1 --effort 0.01
expect 0 "of limit" synth 2*dgx1 --effort 0.01 -o "$dir/anew.json" --fresh
cmp -s "$dir/little.json" "$dir/anew.json" || fail "the same effort gave other bytes"
expect 0 "proved" "$chorus" verify "$dir/little.json"
expect 2 "effort" synth 2*dgx1 --effort 0

# Beyond 160 ranks what repeats itself is timed folded; what it is compared with is not.
expect 0 "ring" synth 42*pcie4 -c all_gather -b 1M -o "$dir/many.json"
grep -qE '^all_gather .*[0-9]x +[0-9.]+x$' "$dir/out" || fail "no comparison: $(cat "$dir/out")"
expect 0 "proved" "$chorus" verify "$dir/many.json"

# Without a folder for it the cache is in the home directory, wherever that is.
expect 0 "of limit" env -u XDG_CACHE_HOME HOME="$dir/home" "$chorus" synth dgx1 -c all_gather -b 1K
ls "$dir/home/.cache/chorus/"*.json >"$dir/out" 2>&1 || fail "nothing is kept in the home directory"

# Bad input: what is wrong, and what to do.
expect 2 "'gredy' is not a strategy: did you mean greedy?" synth dgx1 --only gredy
expect 2 "hierarchical, gateways, trees" synth dgx1 --only gredy  # each name once
expect 2 "give it or -n, not both" synth dgx1 -n 4
expect 2 "not a known machine" synth dgx77
expect 2 "cannot be written" "$chorus" synth --cache "$dir/new" dgx1 -b 1K -o "$dir/no/plan.json"
[ -e "$dir/new" ] && fail "it was said after the work"
cat >"$dir/apart.json" <<'JSON'
{"format": "chorus-topology", "version": 1, "name": "apart",
 "nodes": [{"name": "a", "kind": "gpu"}, {"name": "b", "kind": "gpu"}, {"name": "c", "kind": "gpu"}],
 "links": [{"src": "a", "dst": "b", "alpha_s": 1e-6, "beta_s_per_byte": 1e-10, "provenance": "declared"},
           {"src": "b", "dst": "a", "alpha_s": 1e-6, "beta_s_per_byte": 1e-10, "provenance": "declared"}],
 "port_groups": [], "ranks": ["a", "b", "c"]}
JSON
expect 1 "rank 2" synth "$dir/apart.json"

# A stranger's names cannot move the cursor; links that take no time leave no shares to tell.
sed 's/"apart"/"a\\u001b[31mb"/; s/1e-6/0/; s/1e-10/0/; s/, "c"\]/]/' "$dir/apart.json" >"$dir/odd.json"
expect 0 'a?[31mb, 2 ranks' synth "$dir/odd.json" -c all_reduce
grep -q nan "$dir/out" && fail "a share that is no number"
expect 0 'a?[31mb: 2 ranks' "$chorus" topo "$dir/odd.json"

# Two hosts have together what all networks between them carry, in plans and what is said of them.
for command in 'synth random-lan:14 -c all_gather -b 16M -o several.json' \
  '"$chorus" explain several.json -t random-lan:14'; do
  expect 0 "of limit" eval "${command//several/"$dir/several"}"
  grep -qE '^all_gather .* (9[0-9]|100)\.[0-9] %' "$dir/out" ||
    fail "several networks: $(cat "$dir/out")"
done
expect 0 "on random-lan:14: 8" "$chorus" simulate "$dir/several.json" all_gather -b 16M

# A sketch limits the search; TACCL's topologies say what one box is, its sketches how many there are.
cat >"$dir/box.json" <<'JSON'
{"name": "box", "gpus_per_node": 4, "nics_per_node": 1, "alpha": 0.5, "node_betas_list": [8],
 "node_invbws_list": [8.5], "remote_alpha": 2, "remote_beta": 100, "remote_invbw": 102}
JSON
cat >"$dir/sketch.json" <<'JSON'
{"nnodes": 2, "intranode_sketch": {"strategy": "none"},
 "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
 "symmetry_offsets": [[4, 8]], "hyperparameters": {"input_chunkup": 2, "heuristic": 3}}
JSON
expect 0 "2*box, 8 ranks" synth "$dir/box.json" --sketch "$dir/sketch.json" -b 1M -o "$dir/two.json"
expect 0 "proved" "$chorus" verify "$dir/two.json"
sed 's/"0": \[1\]/"0": [4]/' "$dir/sketch.json" >"$dir/wrong.json"
expect 2 "no local rank 4" synth "$dir/box.json" --sketch "$dir/wrong.json"
sed 's/"0": \[1\]/"a": [1]/' "$dir/sketch.json" >"$dir/wrong.json"
expect 2 "internode_conn/a" synth "$dir/box.json" --sketch "$dir/wrong.json"

# Hundreds of ranks: schedules that repeat themselves, proved for the chunks of one rank.
expect 0 "512 ranks" synth '64*dgx-a100' -b 1K -o "$dir/many.json"
expect 0 "512 cells of 1 rank" "$chorus" verify "$dir/many.json"
sed 's/\[0, 1, 0, "copy"\], //' "$dir/many.json" >"$dir/wrong.json"
expect 1 "rank 1 never receives chunk 0" "$chorus" verify "$dir/wrong.json"
cat >"$dir/turns.json" <<'JSON'
{"format": "chorus-plan", "version": 1, "topology": "0123456789abcdef", "world_size": 4, "entries": [
 {"min_bytes": 0, "max_bytes": null, "min_bytes_time_s": 0, "per_byte_time_s": 0, "schedule":
  {"name": "turns", "collective": "all_reduce", "world_size": 4, "num_chunks": 4, "symmetry": [4],
   "steps": [[[1, 0, 0, "reduce"], [2, 0, 0, "reduce"], [3, 0, 0, "reduce"]],
             [[0, 1, 0, "copy"], [0, 2, 0, "copy"], [0, 3, 0, "copy"]]]}}]}
JSON
expect 0 "proved" "$chorus" verify "$dir/turns.json"
expect 0 "turns.json is a plan for another topology than is found here" env CHORUS_PLAN="$dir/turns.json" "$chorus" run -n 4 -- "$example"
expect 0 "runs turns: the plan has it from 0 bytes on; predicted" \
  env CHORUS_LOG=debug CHORUS_PLAN="$dir/turns.json" "$chorus" run -n 4 -- "$example"
grep -q "the plan has no such collective for this size, so built-in schedules serve" "$dir/out" ||
  fail "nothing says that the plan is set aside"

# Ctrl-C, once (without --foreground timeout may send two, and the second ends it at once): the best
# found so far.
timeout --foreground -s INT 1.5 "$chorus" synth --cache "$dir/cache" 8*dgx-a100 -b 1M,1G >"$dir/out" 2>&1
[ $? -eq 124 ] || fail "did not run until it was interrupted"
grep -q "best found so far\|no strategy makes" "$dir/out" || {
  fail "an interrupted search says nothing"
  tail -3 "$dir/out"
}

# A plan made for another machine's wiring still computes the right results here.
expect 0 "" env CHORUS_PLAN="$dir/plan.json" "$chorus" run -n 8 -- "$example"
expect 0 "" synth -n 4 -b 1K,1M -o "$dir/here.json"
expect 0 "here.json is the plan, made for this wiring" env CHORUS_LOG=info CHORUS_PLAN="$dir/here.json" "$chorus" run -n 4 -- "$example"
grep -q "other wiring" "$dir/out" && fail "a plan for this wiring is called one for another"

# Where the wiring is described and there is no plan, one is synthesized beside the calls, or before them, or not if
# told so.
"$chorus" topo dgx1 --json >"$dir/dgx1.json"
described=(env CHORUS_LOG=info CHORUS_SYNTHESIS_MS=20000 CHORUS_TOPOLOGY="$dir/dgx1.json")
expect 0 "" "${described[@]}" "$chorus" run -n 8 -- "$example"
grep -q "(plan)" "$dir/out" && fail "the first calls waited for a plan"
expect 0 "schedules for 'dgx1'" "${described[@]}" CHORUS_AWAIT_PLAN=1 "$chorus" run -n 8 -- "$example"
grep -q "(plan)" "$dir/out" || fail "the plan that was awaited serves no call"
"${described[@]}" CHORUS_SYNTHESIS_MS=0 "$chorus" run -n 8 -- "$example" >"$dir/out" 2>&1 ||
  fail "CHORUS_SYNTHESIS_MS=0"
grep -q "synthesized [0-9]* schedules" "$dir/out" && fail "synthesized though told not to"
expect 1 "plan for 4 ranks" env CHORUS_PLAN="$dir/here.json" "$chorus" run -n 2 -- "$example"
done_testing
