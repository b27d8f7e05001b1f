#!/usr/bin/env bash
# Claim: every relative link in the documents leads to a file, and docs/README.md lists every page of
# docs/.
#
#   documents_test.sh SOURCES
set -uo pipefail
cd "$1" || exit 1
status=0
while read -r page; do
  while read -r target; do
    [ -e "$(dirname "$page")/${target%%#*}" ] || { echo "$page: $target leads nowhere"; status=1; }
  done < <(grep -oE '\]\([^)]+\)' "$page" | sed -E 's/^\]\((.*)\)$/\1/' | grep -vE '^(https?:|#)')
done < <(find . -name '*.md' -not -path './build/*' -not -path './.git/*')
while read -r page; do
  [ "$page" = README.md ] || grep -qF "($page)" docs/README.md ||
    { echo "docs/README.md does not list $page"; status=1; }
done < <(cd docs && find . -name '*.md' | cut -c3-)
exit $status
