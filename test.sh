#!/usr/bin/env bash
# Builds and tests Chorus. Sets the machine up first where packages are missing.
#
#   ./test.sh              layout, lint of what changed, and every test of the dev build
#   ./test.sh --asan       the tests under the address and undefined-behaviour sanitizers instead
#   ./test.sh --tsan       the tests under the thread sanitizer instead
#   ./test.sh --all        all of the above, lint of everything
#   ./test.sh --quick      the dev build's tests but those labelled slow; no lint
#   ./test.sh --packages   instead: makes the Debian packages and a wheel, tries them in a bare system; root
#   ./test.sh --only REGEX the tests whose names match; no lint. Goes with --asan and --tsan
#   ./test.sh --no-guest   without the tests of RDMA in an emulated machine. Goes with the others
#   ./test.sh --fuzz [SECONDS]  fuzzes every reader, a minute each unless told, in place of the tests
#
# Leaves no process, port or file in /dev/shm behind, however it ends. Logs: build/log/.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
if [ "${1:-}" != --contained ]; then exec scripts/contained.sh "$PWD/test.sh" --contained "$@"; fi
shift
. scripts/lib.sh

presets=() only="" lint=300 lint_what=changed ctest_options=() left_out=() setup=()
fuzz="" packages=""
while [ $# -gt 0 ]; do
  case $1 in
    --asan | --tsan) presets+=("${1#--}") ;;
    --all) presets=(dev asan tsan) lint=900 lint_what= ;;
    --packages) packages=yes setup=(--no-guest) ;;
    --quick) left_out+=(slow) lint="" ;;
    --only)
      [ $# -ge 2 ] || fail "--only needs a regular expression"
      only=$2 lint=""
      shift
      ;;
    --no-guest)
      left_out+=(guest)
      setup=(--no-guest)
      ;;
    --fuzz)
      fuzz=60
      if [[ ${2:-} =~ ^[0-9]+$ ]]; then
        fuzz=$2
        shift
      fi
      ;;
    -h | --help)
      sed -n '2,14s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
  shift
done
[ ${#presets[@]} -gt 0 ] || presets=(dev)
[ -z "$only" ] || ctest_options+=(-R "$only")
[ ${#left_out[@]} -eq 0 ] || ctest_options+=(-LE "^($(IFS='|'; echo "${left_out[*]}"))$")

# run_tests PRESET: ctest, with the sanitizers made fatal and readable.
run_tests() {
  local prefix=() status=0
  export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  # GCC 12's thread sanitizer cannot live with the address randomisation of newer kernels.
  if [ "$1" = tsan ] && setarch -R true 2>/dev/null; then prefix=(setarch -R); fi
  ${prefix[@]+"${prefix[@]}"} ctest --test-dir "build/$1" -j "$(nproc)" --output-on-failure \
    --no-tests=error ${ctest_options[@]+"${ctest_options[@]}"} &
  wait $! || status=1
  skipped_in "build/$1/Testing/Temporary/LastTest.log" "$1"
  return $status
}

# skipped_in LOG PRESET: one line per reason for which tests were skipped.
skipped_in() {
  [ -r "$1" ] || return 0
  awk '
    /: Skipped$/ { reason = ""; take = 1; next }
    /\[  SKIPPED \] .* \([0-9]+ ms\)/ {
      count[reason == "" ? "no reason given" : reason]++
      take = 0
      next
    }
    take && NF { reason = reason (reason == "" ? "" : " ") $0 }
    END { for (reason in count) printf "  skipped %d: %s\n", count[reason], reason }
  ' "$1" | sort >"build/log/$2-skipped.txt"
  cat "build/log/$2-skipped.txt"
}

start=$SECONDS
failed=()
if [ -n "$fuzz" ]; then
  scripts/setup.sh --fuzz || exit 1
  build_preset fuzz || exit 1
  heading "fuzzing, $fuzz s each"
  tests/fuzz/run.sh build/fuzz "$fuzz"
  exit
fi
scripts/setup.sh ${setup[@]+"${setup[@]}"} || exit 1
mkdir -p build/log
if [ -n "$packages" ]; then
  scripts/setup.sh --packing || exit 1
  heading "packages"
  tests/packages/packages_test.sh "$PWD"
  status=$?
  heading "the wheel"
  tests/packages/wheel_test.sh "$PWD"
  wheel=$?
  [ $wheel -eq 0 ] || [ $wheel -eq 77 ] || status=1
  heading "$((SECONDS - start)) s"
  exit $status
fi
if [ -n "$lint" ] && [[ " ${presets[*]} " == *" dev "* ]]; then
  heading "layout"
  if scripts/format.sh; then echo "  as .clang-format says"; else failed+=("layout"); fi
fi
for preset in "${presets[@]}"; do
  heading "$preset"
  build_preset "$preset" || {
    failed+=("build $preset")
    continue
  }
  run_tests "$preset" || failed+=("tests $preset")
  if [ "$preset" = dev ] && [ -n "$lint" ]; then
    heading "lint (at most $lint s)"
    scripts/tidy.sh "$lint" $lint_what || failed+=("lint")
  fi
done

heading "$((SECONDS - start)) s"
if [ ${#failed[@]} -gt 0 ]; then
  for what in "${failed[@]}"; do echo "FAILED: $what"; done
  exit 1
fi
echo "all passed: ${presets[*]}"
