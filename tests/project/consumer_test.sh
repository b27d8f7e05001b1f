#!/usr/bin/env bash
# Claim: a separate project can use Chorus as CMake package, by pkg-config and as a subdirectory, and
# what is installed works after its prefix has been moved.
#
#   consumer_test.sh SOURCES BUILD package|pkg-config|subdirectory
set -euo pipefail
sources=$1 build=$2 way=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "$way" != subdirectory ]; then
  cmake --install "$build" --prefix "$work/first" >/dev/null
  mv "$work/first" "$work/prefix"
fi
case $way in
  package)
    cmake -G Ninja -S "$sources/tests/consumer" -B "$work/build" \
      -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
    cmake --build "$work/build"
    ;;
  subdirectory)
    # All of the library is compiled once more, so as quickly as can be.
    cmake -G Ninja -S "$sources/tests/consumer" -B "$work/build" -DCHORUS_SOURCES="$sources" \
      -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_UNITY_BUILD=ON -DCHORUS_PRECOMPILE=ON \
      -DCHORUS_CUDA=OFF >/dev/null
    cmake --build "$work/build" -j "$(nproc)"
    ;;
  pkg-config)
    PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name chorus.pc)")
    export PKG_CONFIG_PATH
    mkdir "$work/build"
    # shellcheck disable=SC2046 # several words on purpose
    g++ -std=c++20 "$sources/tests/consumer/main.cpp" -o "$work/build/consumer" \
      $(pkg-config --cflags --libs chorus)
    ;;
esac
"$work/build/consumer"
