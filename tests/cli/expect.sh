# Sourced by tests of commands: a folder $dir that goes with the test, and claims about a command.
# `done_testing` says how it went.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

expect() { # STATUS TEXT COMMAND...: exit status and a text in what it prints
  local status=$1 text=$2 got
  shift 2
  "$@" >"$dir/out" 2>&1 </dev/null
  got=$?
  if [ $got -ne "$status" ] || { [ -n "$text" ] && ! grep -qF -- "$text" "$dir/out"; }; then
    fail "$*"
    echo "  exit $got, expected $status with '$text'; it printed:"
    head -5 "$dir/out"
  fi
}

silent() { # COMMAND...: exit status 0 and not a word
  "$@" >"$dir/out" 2>&1 </dev/null && [ ! -s "$dir/out" ] && return
  fail "$*"
  head -5 "$dir/out"
}

done_testing() {
  [ "$failures" -eq 0 ] && echo "all held"
  exit "$((failures > 0))"
}
