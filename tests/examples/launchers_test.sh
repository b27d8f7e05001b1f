#!/usr/bin/env bash
# The same program gives the same bits under `chorus run` and under mpirun of Open MPI and MPICH,
# over shared memory and over TCP.
#   launchers_test.sh CHORUS PROBE
set -eu
chorus=$1 probe=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 CHORUS_FLIGHT_DIR=$dir
# Under the leak sanitizer: five bytes of PMIx itself stay behind.
echo "leak:libpmix" >"$dir/lsan"
export LSAN_OPTIONS=suppressions=$dir/lsan:print_suppressions=0
wrong=0

compare() { # NAME COMMAND...
  local name=$1
  shift
  timeout 120 "$@" >"$dir/$name" </dev/null
  [ -s "$dir/$name" ] || { echo "FAILED: $name printed nothing" && exit 1; }
  if cmp -s "$dir/reference" "$dir/$name"; then
    echo "$name: the same $(wc -l <"$dir/$name") digests"
  else
    echo "FAILED: $name differs:"
    diff "$dir/reference" "$dir/$name" | head -5
    wrong=1
  fi
}

timeout 120 "$chorus" run -n 4 -- "$probe" >"$dir/reference" </dev/null
compare again "$chorus" run -n 4 -- "$probe"
if command -v mpirun.openmpi >/dev/null; then
  compare openmpi mpirun.openmpi -n 4 --oversubscribe "$probe"
else
  echo "skipped Open MPI: mpirun.openmpi is not installed"
fi
if command -v mpirun.mpich >/dev/null; then
  compare mpich mpirun.mpich -n 4 "$probe"
else
  echo "skipped MPICH: mpirun.mpich is not installed"
fi
# Another transport may choose other schedules; the launchers must agree among themselves.
export CHORUS_TRANSPORTS=tcp
timeout 120 "$chorus" run -n 4 -- "$probe" >"$dir/reference" </dev/null
if command -v mpirun.mpich >/dev/null; then compare mpich-tcp mpirun.mpich -n 4 "$probe"; fi
if command -v mpirun.openmpi >/dev/null; then
  compare openmpi-tcp mpirun.openmpi -n 4 --oversubscribe "$probe"
fi
# In rank order, the transport and with it the schedule make no difference.
export CHORUS_DETERMINISTIC=1 CHORUS_TRANSPORTS=shm
timeout 120 "$chorus" run -n 4 -- "$probe" >"$dir/reference" </dev/null
CHORUS_TRANSPORTS=tcp compare deterministic-tcp "$chorus" run -n 4 -- "$probe"
CHORUS_SLOT_BYTES=4096 compare deterministic-small-slots "$chorus" run -n 4 -- "$probe"
exit $wrong
