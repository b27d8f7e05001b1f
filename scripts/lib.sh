# Shared by demo.sh and test.sh; sourced from the root of the project.
# shellcheck shell=bash

# Lets a build in another folder (tests/consumer) take the same objects from ccache.
export CCACHE_NOHASHDIR=1

heading() { printf '\n== %s\n' "$*"; }

fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# quietly LOG WHAT COMMAND...: runs COMMAND with its output in LOG and one line of progress here (a
# new one every 30 s where this is no terminal). On failure prints the end of the log and its path.
quietly() {
  local log=$1 what=$2 start=$SECONDS told=$SECONDS done_so_far pid
  shift 2
  mkdir -p "${log%/*}"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    done_so_far=$(tail -n 1 "$log" 2>/dev/null | sed -nE 's/^(\[[0-9]+\/[0-9]+\]).*/\1/p')
    if [ -t 1 ]; then
      printf '\r  %s %s\e[K' "$what" "$done_so_far"
    elif [ $((SECONDS - told)) -ge 30 ]; then
      printf '  %s %s\n' "$what" "$done_so_far"
      told=$SECONDS
    fi
    sleep 0.5
  done
  [ ! -t 1 ] || printf '\r\e[K'
  if wait "$pid"; then
    printf '  %s: done in %d s\n' "$what" $((SECONDS - start))
  else
    printf '  %s: FAILED after %d s; the end of %s:\n' "$what" $((SECONDS - start)) "$log"
    tail -n 40 "$log" | sed 's/^/    /'
    return 1
  fi
}

# build_preset NAME [TARGET...]: configures and builds build/NAME, logs in build/log.
build_preset() {
  local preset=$1
  shift
  quietly "build/log/$preset-configure.log" "configure $preset" cmake --preset "$preset" ||
    return 1
  NINJA_STATUS='[%f/%t] ' quietly "build/log/$preset-build.log" "build $preset" \
    cmake --build --preset "$preset" -j "$(nproc)" ${1+--target "$@"}
}
