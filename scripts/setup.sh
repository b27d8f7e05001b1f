#!/usr/bin/env bash
# Installs what Chorus is built, tested and compared with, from Debian 12's own packages.
#
#   scripts/setup.sh             install what is missing; nothing, in no time, if all is there
#   scripts/setup.sh --check     only say what is missing; exit status 1 if anything is
#   scripts/setup.sh --no-guest  without the emulator and the kernel of the RDMA tests (100 MB to fetch)
#   scripts/setup.sh --lean      nor PyTorch (200 MB to fetch, 1 GB on disk): what the demo needs
#   scripts/setup.sh --fuzz      what ./test.sh --fuzz needs besides: Clang and libFuzzer
#   scripts/setup.sh --packing   only what scripts/package.sh and ./test.sh --packages need besides
#
# Needs root or sudo only where something is missing. On another system than Debian 12 it says what
# is expected there and goes on if the essential tools can be found.
set -euo pipefail

build="g++ cmake ninja-build ccache pkg-config git"
libraries="libhwloc-dev nlohmann-json3-dev libcli11-dev libpugixml-dev libfmt-dev libhwy-dev
           coinor-libclp-dev libz3-dev libpmix-dev libibverbs-dev libopenblas-dev libdnnl-dev"
peers="openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev"
tests="libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy"
pictures="graphviz gnuplot-nox librsvg2-bin"
tools="procps iproute2"
torch="python3-torch libtorch-dev pybind11-dev python3-dev python3-setuptools"
fuzz="clang-14 libclang-rt-14-dev"
packing="dpkg-dev file debootstrap python3-venv"
guest="qemu-system-x86 busybox-static cpio xz-utils iproute2 ibverbs-providers perftest libucx0"

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# The packages among $@ that are not installed, one line.
missing_of() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p') || true
  printf '%s\n' "$@" | grep -vxF -f <(printf '%s\n' "$installed") | tr '\n' ' ' || true
}

other_system() {
  local tool absent=""
  say "this is ${PRETTY_NAME:-an unknown system}; the packages are named as in Debian 12:"
  printf '  %s\n' $build $libraries $peers $tests $pictures $tools $torch | paste -sd' ' | fold -sw 96
  for tool in g++ cmake ninja pkg-config; do
    command -v "$tool" >/dev/null || absent+=" $tool"
  done
  [ -z "$absent" ] || fail "install the equivalents by hand; not even these tools were found:$absent"
  say "the essential tools are here: going on with them"
  exit 0
}

install() {
  local attempt as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "not root and no sudo here; as root: apt-get install --no-install-recommends $*"
    as_root="sudo"
  fi
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  say "installing $# packages:"
  printf '%s ' "$@" | fold -sw 90 | sed 's/^/  /'
  echo
  # The second attempt is for package lists that are absent or out of date.
  for attempt in 1 2; do
    if [ "$attempt" = 2 ]; then
      $as_root apt-get -q -o DPkg::Lock::Timeout=300 update >>"$log" 2>&1 || {
        tail -n 3 "$log" >&2
        fail "apt-get update failed (above): is there a network, and a Debian mirror in /etc/apt?"
      }
    fi
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 \
      install --no-install-recommends "$@" >>"$log" 2>&1 && break
  done
}

if [ -r /etc/os-release ]; then . /etc/os-release; fi
[ "${ID:-} ${VERSION_ID:-}" = "debian 12" ] || other_system

wanted="$build $libraries $peers $tests $pictures $tools"
with_guest=yes
case ${1:-} in
  --lean) with_guest="" ;;
  --no-guest) with_guest="" wanted+=" $torch" ;;
  --packing) with_guest="" wanted=$packing ;;
  --fuzz) with_guest="" wanted+=" $fuzz" ;;
  "" | --check) wanted+=" $torch $guest" ;;
  *) fail "unknown option $1: see the head of $0" ;;
esac
missing=$(missing_of $wanted)
# The kernel that the guest boots is kept in the user's cache. Where there can be no guest (77), its
# tests say so again.
fetch_kernel() {
  [ -z "$with_guest" ] || "$(dirname "$0")/../tests/rdma/guest.sh" --prepare || [ $? -eq 77 ]
}
if [ -z "$missing" ]; then
  [ "${1:-}" = --check ] || fetch_kernel
  exit 0
fi
[ "${1:-}" != --check ] || fail "missing: $missing"

start=$SECONDS
install $missing || true
still=$(missing_of $missing)
[ -z "$still" ] || {
  grep -E '^(E|Err|W):' "$log" | tail -n 3 >&2 || true
  fail "apt-get could not install: ${still% }"
}
fetch_kernel
say "done in $((SECONDS - start)) s"
