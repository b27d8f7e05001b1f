#!/usr/bin/env bash
# Runs the fuzzers of a build for some time each and sums up.
#
#   run.sh BUILD SECONDS [READER...]    all readers, or those named
#   run.sh BUILD mutations COUNT        COUNT structured mutations of every sample instead (slow)
#
# Corpora grow in BUILD/fuzz/corpus; an input that broke a promise stays in BUILD/fuzz/findings. One
# line per reader: name, executions, findings. Exit status 1 if there was a finding.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
build=$(realpath "$1") seconds=$2
shift 2
fuzzers=$build/tests/fuzz
work=$build/fuzz
mkdir -p "$work"/{corpus,findings,log}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

if [ "$seconds" = mutations ]; then
  export CHORUS_TEST_MUTATIONS=${1:?how many}
  status=0
  for tests in "$fuzzers"/fuzz_*_test; do "$tests" --gtest_brief=1 || status=1; done
  exit $status
fi

# fuzz_one FUZZER READER
fuzz_one() {
  local log=$work/log/$2
  "$1" "--reader=$2" "$work/corpus/$2" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 \
    -max_len=65536 -artifact_prefix="$work/findings/$2-" -print_final_stats=1 >"$log" 2>&1
  local status=$? executions
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '  %-22s %12s executions, %s\n' "$2" "${executions:-?}" \
    "$([ $status = 0 ] && echo "no finding" || echo "A FINDING: $log")"
  return $status
}
export -f fuzz_one
export work seconds

for fuzzer in "$fuzzers"/fuzzer "$fuzzers"/fuzzer_checkpoint; do
  [ -x "$fuzzer" ] || continue
  for reader in $("$fuzzer" "--samples=$work/corpus"); do
    [ $# -eq 0 ] || [[ " $* " == *" $reader "* ]] || continue
    printf '%s %s\n' "$fuzzer" "$reader"
  done
done | xargs -P "$(nproc)" -L 1 bash -c 'fuzz_one "$@"' fuzz || exit 1
