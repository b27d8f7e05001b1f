#!/usr/bin/env bash
# Many ranks that a launcher has started by torchrun's variables: the coordinator, and those that
# would succeed it, are ranks like others.
#
#   many_ranks_test.sh PROGRAM RANKS SENTENCE    SENTENCE: what the first rank prints at the end
set -u
program=$1 ranks=$2 sentence=$3
out=$(mktemp)
trap 'trap "" TERM; kill 0 2>/dev/null; rm -f "$out"' EXIT
trap 'exit 1' TERM INT
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
for _ in 1 2 3; do
  # Below the ports that the kernel gives to connections.
  export MASTER_PORT=$((20000 + RANDOM % 12000))
  for ((rank = 0; rank < ranks; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank timeout 250 "$program" >>"$out" 2>&1 &
  done
  wait
  grep -qF "$sentence" "$out" && exit 0
  grep -qi "in use" "$out" || break
  : >"$out"
done
sort "$out" | uniq -c | sort -rn | head -20
exit 1
