#!/bin/sh
# The tests of collectives over GPU memory, by executing what nvcc emitted in place of the kernels'
# twin. Every architecture that is given is compiled anew, without its machine code.
#
#   ptx_suite.sh BUILD [SEEDS [ARCHITECTURES [FILTER]]]    e.g.  ptx_suite.sh build/dev 20 "80 90 100"
#
# SEEDS (1) orders of warps: that many, or some of them ("5-8"); FILTER: of gtest. What has passed
# is kept in the file $DONE, if that is set, and not run again on the same PTX: who was interrupted
# goes on, and architectures whose PTX differs in its target alone (8.0 and 9.0) are one. Several
# may run side by side, each with seeds of its own. Without nvcc it says so and ends with 77.
set -eu
build=${1:?the build directory}
seeds=${2:-1}
architectures=${3:-90}
filter=${4:-*}
first=1
case $seeds in *-*) first=${seeds%-*} seeds=${seeds#*-} ;; esac
done=${DONE:-/dev/null}
root=$(cd "$(dirname "$0")/../.." && pwd)
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ -x "$nvcc" ] || {
  echo "skipped: there is no nvcc"
  exit 77
}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
for arch in $architectures; do
  "$nvcc" -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -I"$root/include" -I"$root/src" \
    -I"$root" -arch="compute_$arch" -ptx -o "$out/kernels.ptx" "$root/src/device/kernels.cu"
  ptx=$(grep -v '^\.target' "$out/kernels.ptx" | sha256sum | cut -c1-12)
  seed=$first
  while [ "$seed" -le "$seeds" ]; do
    for test in device_world_test device_streams_test device_sharing_test device_rules_test \
      device_contexts_test device_failure_test device_gpudirect_test; do
      program=$build/tests/device/$test
      if [ ! -x "$program" ]; then
        echo "left out, not built: $program"
        [ $test = device_gpudirect_test ] || failed=1  # which needs verbs' header
        continue
      fi
      what="PTX $ptx, seed $seed, $test, $filter"
      grep -qF "$what: " "$done" 2>/dev/null && continue
      if FAKE_CUDA_KERNELS="ptx:$out/kernels.ptx" FAKE_CUDA_SEED=$seed \
        "$program" --gtest_brief=1 --gtest_filter="$filter" >"$out/log" 2>&1; then
        echo "sm_$arch, $what: $(grep -E '^PTX:|PASSED' "$out/log" | tr '\n' ' ')" | tee -a "$done"
      else
        echo "FAILED: sm_$arch, $what"
        grep -E "PTX:|FAILED|Failure" "$out/log" | head -20
        failed=1
      fi
    done
    seed=$((seed + 1))
  done
done
exit $failed
