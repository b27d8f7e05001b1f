#!/usr/bin/env bash
# Makes Debian packages of Chorus and puts them into build/packages.
#
#   scripts/package.sh          builds the preset `package`, and packs that
#   scripts/package.sh BUILD    packs what the folder BUILD holds, as it is
#
# Which packages there are, and what for: cmake/ChorusPackages.cmake. Logs: build/log/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
case ${1:-}:$# in
  :0)
    scripts/setup.sh --no-guest && scripts/setup.sh --packing && build_preset package || exit 1
    build=build/package
    sed -n 's/^-- chorus: GPU/  GPU/p' build/log/package-configure.log
    ;;
  -*:1)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
    ;;
  *:1) build=$1 ;;
  *) fail "too many arguments; see --help" ;;
esac
[ -e "$build/CPackConfig.cmake" ] || fail "$build: nothing is built there, or not on Debian"

made=$(mktemp -d) || exit 1
trap 'rm -rf "$made"' EXIT
quietly build/log/pack.log "pack" cpack --config "$build/CPackConfig.cmake" -B "$made" || exit 1
rm -rf build/packages && mkdir -p build/packages &&
  find "$made" -maxdepth 2 -name '*.deb' -not -path '*/_CPack_Packages/*' \
    -exec mv -t build/packages {} + || exit 1
(cd build/packages && du -h -- *.deb | sed 's/^/  /')
