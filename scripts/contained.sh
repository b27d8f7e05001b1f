#!/usr/bin/env bash
# Runs a command so that nothing outlives it: no process, no file in /dev/shm, no listening port, no
# temporary directory; not even if it, or this script, is killed midway with SIGKILL.
#
#   scripts/contained.sh COMMAND [ARG...]
#
# Every process started from here carries a mark in its environment, wherever it moves itself (own
# session, own process group, as launchers do). A watcher in a session of its own waits for this
# script to end, however it ends, and ends what still carries the mark.
set -uo pipefail

# The live processes that carry mark $1, one per line.
marked() {
  grep -lsazxF "CONTAINED_BY=$1" /proc/[0-9]*/environ | cut -d/ -f3
}

# Those of processes $@ that do not merely wait to clean up behind another (chorus-perf has one).
but_guardians() {
  local pid
  for pid; do
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = chorus-perf-end ] || echo "$pid"
  done
}

# The files in /dev/shm that processes $@ have open or mapped.
shared_files() {
  local pid
  for pid; do
    sed -nE 's|^[^/]*(/dev/shm/[^ ]+)( \(deleted\))?$|\1|p' "/proc/$pid/maps" 2>/dev/null
    find "/proc/$pid/fd" -lname '/dev/shm/*' -printf '%l\n' 2>/dev/null
  done | sort -u
}

# Ends everything that carries mark $1 and removes what it leaves; $2 is its temporary directory.
sweep() {
  local pids files try
  for try in {1..20}; do
    pids=$(marked "$1")
    [ -n "$pids" ] || break
    [ "$try" -gt 10 ] || pids=$(but_guardians $pids) # these end once the others have
    files=$(shared_files $pids)
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null
    [ -z "$files" ] || printf '%s\n' "$files" | tr '\n' '\0' | xargs -0 rm -f --
    sleep 0.05
  done
  rm -rf "$2"
}

if [ "${1:-}" = --watch ]; then # --watch PID MARK DIRECTORY
  tail --pid="$2" -s 0.1 -f /dev/null
  sweep "$3" "$4"
  exit 0
fi

[ $# -gt 0 ] || {
  sed -n '2,9s/^# \{0,1\}//p' "$0"
  exit 2
}
mark="$$.$(date +%s%N)"
directory=$(mktemp -d "${TMPDIR:-/tmp}/chorus.XXXXXX") || exit 1
setsid "$BASH" "$0" --watch $$ "$mark" "$directory" </dev/null >/dev/null 2>&1 &
disown

# Job control gives the command a process group of its own and leaves it its signals.
set -m
CONTAINED_BY="$mark" TMPDIR="$directory" "$@" &
child=$!
stop() {
  trap '' INT TERM HUP
  disown "$child" # no word about its end from the shell
  kill -TERM -- "-$child" 2>/dev/null
  sweep "$mark" "$directory"
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP
wait -f "$child" # -f: not when it is merely stopped
status=$?
sweep "$mark" "$directory"
exit "$status"
