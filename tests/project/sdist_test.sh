#!/usr/bin/env bash
# Claim: the archives of sources that src/torch and src/python make have all that their build needs, and pip
# is sent from their top to the folder of the package.
#
#   sdist_test.sh SOURCES
set -euo pipefail
sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "sdist_test: $*" >&2
  exit 1
}
python=/usr/bin/python3
"$python" -c 'import setuptools' 2>/dev/null || {
  echo "skipped: $python has no setuptools"
  exit 77
}

for package in torch python; do
  (cd "$sources/src/$package" && "$python" setup.py -q sdist -d "$work") >"$work/log" 2>&1 ||
    fail "$package: $(cat "$work/log")"
  tar xzf "$work/chorus-$package"-*.tar.gz -C "$work"
  tree=$(find "$work" -maxdepth 1 -type d -name "chorus-$package-*")
  grep -qx "Name: chorus-$package" "$tree/PKG-INFO" || fail "$package: PKG-INFO"
  (cd "$tree" && "$python" -c '
import os, build_in_folder
assert os.path.isfile("setup.py"), os.getcwd()
assert callable(build_in_folder.build_wheel)') || fail "$package: its top leads nowhere"
done
# Every source is named in some CMakeLists.txt, whose absence would show here.
cmake -G Ninja -S "$tree" -B "$work/build" -DCHORUS_BUILD_TESTS=OFF -DCHORUS_BUILD_TOOLS=OFF \
  -DCHORUS_CUDA=OFF -DCHORUS_TORCH=OFF >"$work/log" 2>&1 || fail "$(cat "$work/log")"
diff <(cd "$work" && tar tzf chorus-torch-*.tar.gz | sed 's,[^/]*/,,' | sort) \
  <(cd "$work" && tar tzf chorus-python-*.tar.gz | sed 's,[^/]*/,,' | sort) ||
  fail "the two have not the same sources"
