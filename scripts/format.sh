#!/usr/bin/env bash
# Judges (or with --fix mends) the layout of every C++ file in git by .clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
git ls-files -z -- '*.cpp' '*.hpp' '*.h' | xargs -0r clang-format "${mode[@]}" || {
  echo "format: mend it with scripts/format.sh --fix" >&2
  exit 1
}
