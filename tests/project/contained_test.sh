#!/usr/bin/env bash
# Claim: whatever scripts/contained.sh runs leaves no process, no file in /dev/shm and no temporary
# directory, when it ends well, when it is told to stop, and when it is killed.
set -muo pipefail # with job control, or a background job would ignore SIGINT
contained=$1/scripts/contained.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Starts a process in its own session that holds a file in /dev/shm, and a guardian as chorus-perf
# has one, which removes a directory there once the others have ended; tells all, and waits.
cp "$BASH" "$work/chorus-perf-end"
export guardian=$work/chorus-perf-end
cat >"$work/job.sh" <<'JOB'
exec 9>"/dev/shm/contained_test.$$"
setsid sleep 300 9>&9 &
sleeper=$!
mkdir "/dev/shm/contained_test.$$.d"
mkfifo "$1.fifo"
setsid "$guardian" -c 'exec 9>&-; read -r _ <"$0"; rm -rf "$1"' "$1.fifo" \
  "/dev/shm/contained_test.$$.d" &
exec 8>"$1.fifo"
printf '%s\n' "$sleeper" "$TMPDIR" "/dev/shm/contained_test.$$" >"$1.new"
mv "$1.new" "$1"
[ "$2" = end ] && exit 7
wait
JOB

alive() { [ -r "/proc/$1/stat" ] && ! grep -q '^[0-9]* (.*) Z' "/proc/$1/stat"; }

check() { # HOW SIGNAL EXPECTED_STATUS
  local told=$work/told.$1 pid temporary file status
  "$contained" bash "$work/job.sh" "$told" "$1" &
  local outer=$!
  for _ in $(seq 100); do [ -e "$told" ] && break || sleep 0.05; done
  [ -e "$told" ] || { echo "$1: the job did not start"; exit 1; }
  [ "$2" = none ] || kill "-$2" "$outer"
  wait "$outer" 2>/dev/null
  status=$?
  { read -r pid; read -r temporary; read -r file; } <"$told"
  [ "$status" = "$3" ] || { echo "$1: exit status $status instead of $3"; exit 1; }
  for _ in $(seq 100); do # the watcher needs a moment after SIGKILL
    alive "$pid" || [ -e "$temporary" ] || [ -e "$file" ] || [ -e "$file.d" ] || {
      echo "$1: nothing left"
      return
    }
    sleep 0.05
  done
  echo "$1: left behind after 5 s: $(ls -d "/proc/$pid" "$temporary" "$file" "$file.d" 2>/dev/null | xargs)"
  kill -KILL "$pid" 2>/dev/null
  rm -rf "$file" "$file.d"
  exit 1
}

check end none 7
check interrupted INT 130
check terminated TERM 143
check killed KILL 137
