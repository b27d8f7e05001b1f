#!/usr/bin/env bash
# Claim: the program in README.md compiles as printed, with the installed library found by
# pkg-config, and the installed `chorus run` starts it on two ranks with the right result.
#
#   readme_test.sh SOURCES BUILD
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$2" --prefix "$work/prefix" >/dev/null
sed -n '/^```cpp$/,/^```$/p' "$1/README.md" | sed '/^```/d' >"$work/mean.cpp"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name chorus.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # several words on purpose
g++ -std=c++20 -Wall -Wextra -Werror "$work/mean.cpp" -o "$work/mean" \
  $(pkg-config --cflags --libs chorus)
said=$("$work/prefix/bin/chorus" run -n 2 -- "$work/mean")
echo "$said"
[ "$said" = "2 ranks, mean 0.5" ]
