#!/usr/bin/env bash
# Writes a text to train on: the King James Bible (4.4 MB, public domain outside the United Kingdom)
# from Debian's packages bible-kjv and bible-kjv-text, which it installs if they are missing.
#
#   examples/trainer/get_text.sh [FILE]      default: build/kjv.txt
#
# `train --data` takes any other file of bytes as well, enwik8 for example.
set -euo pipefail
file=${1:-build/kjv.txt}
fail() {
  printf 'get_text: %s\n' "$*" >&2
  exit 1
}

if ! command -v bible >/dev/null; then
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo; as root: apt-get install bible-kjv"
    as_root=sudo
  fi
  $as_root apt-get -qqy install --no-install-recommends bible-kjv bible-kjv-text >/dev/null ||
    fail "apt-get could not install bible-kjv; give --data another text"
fi
mkdir -p "$(dirname "$file")"
bible -f -l 10000 gen1:1-rev22:21 >"$file.part"
bytes=$(wc -c <"$file.part")
[ "$bytes" -gt 4000000 ] || fail "bible wrote only $bytes bytes"
mv "$file.part" "$file"
printf '%s: %d bytes\n' "$file" "$bytes"
