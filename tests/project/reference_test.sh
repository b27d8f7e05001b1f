#!/usr/bin/env bash
# Claim: Doxygen makes the API reference of include/ without a warning, with a page for Communicator.
#
#   reference_test.sh SOURCES
set -uo pipefail
command -v doxygen >/dev/null || { echo "skipped: there is no doxygen (apt-get install doxygen)"; exit 77; }
CHORUS_REFERENCE=$(mktemp -d)
export CHORUS_REFERENCE
trap 'rm -rf "$CHORUS_REFERENCE"' EXIT
cd "$1" && doxygen docs/Doxyfile || exit 1
grep -q all_reduce "$CHORUS_REFERENCE/reference/classchorus_1_1Communicator.html"
