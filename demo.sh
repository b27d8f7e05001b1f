#!/usr/bin/env bash
# Shows on this machine what Chorus does: sets the machine up, builds, and goes the whole way from
# the wiring to a measured collective.
#
#   ./demo.sh
#
# Leaves no process, port or file in /dev/shm behind, however it ends. Logs: build/log/.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
case ${1:-} in
  --contained) ;;
  "") exec scripts/contained.sh "$PWD/demo.sh" --contained ;;
  *)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
    ;;
esac
. scripts/lib.sh
bin=build/release/bin
PATH="$PWD/$bin:$PATH"

# show COMMAND...: prints the command as one would type it, runs it, and ends the demo if it fails.
show() {
  printf '\n$ %s\n' "$*"
  "$@" </dev/null || fail "this command failed with exit status $?; everything up to here worked"
}

start=$SECONDS
heading "Set-up and build"
scripts/setup.sh || exit 1
build_preset release || exit 1

heading "How is this machine wired?"
show chorus topo

heading "done in $((SECONDS - start)) s"
