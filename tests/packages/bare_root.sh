#!/usr/bin/env bash
# Runs a command as on a Debian 12 machine on which nothing is installed: in a minimal root made by
# debootstrap, kept in the user's cache, under an overlay that is thrown away. Of this machine it
# sees the network, /dev, /proc and /sys, and the folder given, as its current one.
#
#   bare_root.sh FOLDER COMMAND [ARG...]
#
# The exit status is the command's; 77, and why, where there is no such root to be had.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
skip() { echo "skipped: $*"; exit 77; }

[ "$(id -u)" -eq 0 ] || skip "a bare root is made by root only"
command -v debootstrap >/dev/null || skip "there is no debootstrap (scripts/setup.sh --packing)"
unshare --mount true 2>/dev/null || skip "this root may not mount (a container?)"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/chorus
base=$cache/bare-root-bookworm
mkdir -p "$cache" || exit 1
exec 9>"$base.lock" && flock 9
if [ ! -e "$base/made" ]; then
  rm -rf "$base"
  mirror=$(sed -nE 's/^(URIs:|deb) +(\[[^]]*\] +)?(https?:[^ ]+).*/\3/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1)
  debootstrap --variant=minbase bookworm "$base" "${mirror:-http://deb.debian.org/debian}" \
    >"$base.log" 2>&1 || skip "debootstrap failed: $(tail -n 1 "$base.log")"
  # This machine's way to its mirror, whatever that is.
  cp -rL /etc/apt/apt.conf.d /etc/apt/sources.list.d "$base/etc/apt/" 2>/dev/null
  rm -f "$base"/etc/apt/apt.conf.d/*docker*
  [ ! -e "$base/etc/apt/sources.list.d/debian.sources" ] || rm -f "$base/etc/apt/sources.list"
  touch "$base/made"
fi
flock -u 9

run=$(mktemp -d) || exit 1
trap 'rm -rf "$run"' EXIT
mkdir "$run/up" "$run/work" "$run/root"
export base run folder=$1
shift
unshare --mount --propagation private bash -euc '
  mount -t overlay overlay -o "lowerdir=$base,upperdir=$run/up,workdir=$run/work" "$run/root"
  for special in proc sys dev; do mount --rbind "/$special" "$run/root/$special"; done
  mount -t tmpfs tmpfs "$run/root/dev/shm"
  cp /etc/resolv.conf "$run/root/etc/resolv.conf"
  mkdir "$run/root/here"
  mount --bind "$folder" "$run/root/here"
  exec chroot "$run/root" env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -c "cd /here && exec \"\$@\"" sh "$@"' sh "$@"
