#!/usr/bin/env bash
# Claim: `cmake --install` leaves a prefix in which every command does what its help says
# (tools_test.sh), after it has been moved, too.
#
#   installed_test.sh BUILD VERSION
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
[ -s "$work/prefix/share/doc/chorus/examples/01_all_reduce.cpp" ]
bash "$(dirname "$0")/tools_test.sh" "$work/prefix" "$2"
