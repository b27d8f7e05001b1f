#!/usr/bin/env bash
# Claim: libchorus.so needs the C and C++ libraries, threads and hwloc alone, and shows programs the
# symbols of namespace chorus alone.
#
#   library_test.sh LIBRARY
set -euo pipefail
status=0

allowed='libc libm libstdc++ libgcc_s libpthread libhwloc ld-linux-x86-64 ld-linux-aarch64'
for needed in $(readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'); do
  [[ " $allowed " == *" ${needed%%.so*} "* ]] || { echo "needs $needed"; status=1; }
done

shown=$(nm -DC --defined-only "$1" | cut -d' ' -f3-)
grep -q '^chorus::' <<<"$shown" || { echo "shows nothing of chorus"; status=1; }
foreign=$(grep -vE '^((typeinfo|typeinfo name|vtable) for )?chorus::|^CHORUS_0' <<<"$shown" || true)
[ -z "$foreign" ] || { echo "shows what is not its own:"; head <<<"$foreign"; status=1; }
exit $status
