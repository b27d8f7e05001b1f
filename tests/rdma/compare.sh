#!/usr/bin/env bash
# Puts over one RDMA link beside perftest, in one run of the guest: each pair of figures one after
# the other, three times, between rxe0 and rxe1.
#
#   guest.sh -- compare.sh RDMA_BENCH
set -uo pipefail
bench=$1
export CHORUS_TEST_HCAS=rxe0,rxe1
perftest() { # TOOL OPTION...
  "$1" -d rxe0 -x 1 -F "${@:2}" >/dev/null 2>&1 &
  sleep 1
  "$1" -d rxe1 -x 1 -F "${@:2}" 10.77.0.1 2>/dev/null | grep -E '^ *[0-9]+ +[0-9]' | tail -n 1
  wait
}
for _ in 1 2 3; do
  for bytes in 8 4096 65536; do
    rounds=$((bytes > 4096 ? 200 : 1000))
    printf 'ib_write_lat (bytes iterations min max typical avg sd p99 us): %s\n' \
      "$(perftest ib_write_lat -s $bytes -n $rounds -I 60)"
    "$bench" lat $bytes $rounds
  done
  for bytes in 4096 65536 131072; do
    printf 'ib_write_bw (bytes iterations peak average MB/s msg): %s\n' \
      "$(perftest ib_write_bw -s $bytes -n 500)"
    "$bench" bw $bytes 500
  done
done
