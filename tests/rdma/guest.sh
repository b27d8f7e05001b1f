#!/usr/bin/env bash
# Runs a command where there are RDMA devices: in an emulated machine that boots Debian's kernel with
# Soft-RoCE on this machine's own file system, read-only. True verbs, no hardware, no root.
#
#   guest.sh [-d DEVICES] [-t SECONDS] [-o DIRECTORY] [--] COMMAND [ARG...]
#   guest.sh --prepare     fetches the kernel (70 MB, once) and leaves the guest ready to boot
#
#   -d 2     devices rxe0, rxe1, … on interfaces e0, e1, …, which share one switch
#   -t 240   for boot and command together; past it the status is 124
#   -o DIR   a directory that the command may write to; all else it writes is lost
#
# The status is the command's; 77, with a reason, where the guest cannot be had. What is fetched
# stays in $CHORUS_TEST_GUEST_DIR (~/.cache/chorus-guest). RDMA_GUEST_VERBOSE=1 shows the console.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

# In the words of a skipped test, so that who sums up tests can tell.
skip() {
  printf 'guest.sh: Skipped\nno guest with RDMA devices: %s\n[  SKIPPED ] guest (0 ms)\n' "$*"
  exit 77
}

devices=2 seconds=240 output="" prepare=""
while [ $# -gt 0 ]; do
  case $1 in
    -d) devices=$2 && shift 2 ;;
    -t) seconds=$2 && shift 2 ;;
    -o) output=$(readlink -f "$2") && shift 2 ;;
    --prepare) prepare=1 && shift ;;
    --) shift && break ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || [ -n "$prepare" ] || { sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2; }

[ "$(uname -m)" = x86_64 ] || skip "only written for x86_64"
for tool in qemu-system-x86_64 busybox cpio ip rdma xz dpkg apt-get timeout python3; do
  command -v "$tool" >/dev/null || skip "no $tool here (scripts/setup.sh installs what is needed)"
done
compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so' >/dev/null ||
  skip "no Soft-RoCE driver of libibverbs here (scripts/setup.sh installs it)"
cache=${CHORUS_TEST_GUEST_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/chorus-guest}
mkdir -p "$cache" 2>/dev/null || skip "cannot write to $cache"
work=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf "$work"' EXIT

# ---- the kernel, its image and its modules ----

modules="virtio_pci virtio_console 9p 9pnet_virtio overlay veth bridge sch_netem crc32_generic
         rdma_rxe"

# extract_image VMLINUZ: the ELF inside, which boots without unpacking itself under emulation.
extract_image() {
  local at
  for at in $(LC_ALL=C grep -abo $'\xfd7zXZ' "$1" | cut -d: -f1); do
    tail -c +$((at + 1)) "$1" | xz -dcq >"$work/vmlinux" 2>/dev/null || true # more follows it
    [ "$(head -c 4 "$work/vmlinux")" != $'\x7fELF' ] || return 0
  done
  cp "$1" "$work/vmlinux"
}

# in_load_order MODULES_DEP NAME...: paths of the modules with all they need, each after its needs.
in_load_order() {
  local dep=$1
  shift
  awk -v wanted="$*" '
    function name(path) { sub(/.*\//, "", path); sub(/\.ko.*/, "", path); gsub(/-/, "_", path)
                          return path }
    function visit(module,   n, i, list) {
      if (!(module in path) || module in seen) return
      seen[module] = 1
      n = split(needs[module], list, " ")
      for (i = 1; i <= n; i++) visit(name(list[i]))
      print path[module]
    }
    { file = $1; sub(/:$/, "", file); $1 = ""; path[name(file)] = file; needs[name(file)] = $0 }
    END { n = split(wanted, all, " "); for (i = 1; i <= n; i++) visit(all[i]) }' "$dep"
}

make_init() {
  cat <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sysfs /sys; $b mount -t devtmpfs dev /dev
for m in /modules/*.ko; do $b insmod $m || $b echo "insmod $m failed"; done
how=trans=virtio,version=9p2000.L,msize=512000
die() { $b echo "guest: $1"; $b reboot -f; }
$b mount -t 9p -o $how,ro,cache=loose,noatime host /lower || die "no root"
$b mount -t tmpfs tmpfs /upper; $b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work,redirect_dir=off,index=off,metacopy=off,xino=off overlay /root || die "no overlay"
for d in proc sys dev; do $b mkdir -p /root/$d; $b mount --move /$d /root/$d; done
for d in run dev/shm dev/pts run/guest; do $b mkdir -p /root/$d; done
$b mount -t tmpfs tmpfs /root/run; $b mount -t tmpfs tmpfs /root/dev/shm
$b mount -t devpts -o ptmxmode=666 devpts /root/dev/pts
$b mkdir -p /root/run/guest
$b mount -t 9p -o $how,cache=none run /root/run/guest || die "no run directory"
exec $b switch_root /root /bin/sh /run/guest/start
INIT
}

fetch_kernel() {
  local package version file number=100
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" {print $2; exit}')
  [ -n "$package" ] || skip "apt knows no linux-image-amd64"
  echo "guest.sh: fetching $package (70 MB, once)" >&2
  (cd "$work" && apt-get -qq download "$package" >/dev/null 2>&1 && dpkg -x "$package"_*.deb kernel) ||
    skip "$package cannot be fetched"
  version=$(basename "$work"/kernel/lib/modules/*)
  local tree=$work/kernel/lib/modules/$version root=$work/initramfs
  extract_image "$work/kernel/boot/vmlinuz-$version"
  mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,root}
  cp "$(command -v busybox)" "$root/bin/busybox"
  make_init >"$root/init" && chmod +x "$root/init"
  busybox depmod -n -b "$work/kernel" "$version" 2>/dev/null | sed -n '/\.ko[^ ]*:/p' >"$work/dep"
  while read -r file; do
    number=$((number + 1))
    case $file in
      *.xz) xz -dc "$tree/$file" >"$root/modules/$number.ko" ;;
      *) cp "$tree/$file" "$root/modules/$number.ko" ;;
    esac
  done < <(in_load_order "$work/dep" $modules)
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
  mv "$work/vmlinux" "$cache/vmlinux" && mv "$work/initrd" "$cache/initrd"
  cksum "$0" >"$cache/made-by"
  rm -rf "$work/kernel" "$root" "$work"/*.deb
}

exec 9>"$cache/lock" && flock 9
[ -s "$cache/initrd" ] && [ "$(cut -d' ' -f1 "$cache/made-by")" = "$(cksum "$0" | cut -d' ' -f1)" ] ||
  fetch_kernel
exec 9>&-
[ -z "$prepare" ] || exit 0

# ---- what the guest does ----

{
  # shellcheck disable=SC2013
  for name in $(compgen -e | grep -E '^(PATH|HOME|LANG|LD_LIBRARY_PATH|GTEST_.*|CHORUS_.*|UCX_.*|OMPI_.*|[AUT]SAN_OPTIONS)$'); do
    printf 'export %s=%q\n' "$name" "${!name}"
  done
  printf 'cd %q || exit 125\nexec' "$PWD"
  printf ' %q' "$@"
  echo
} >"$work/command"
printf 'devices=%q\noutput=%q\n' "$devices" "$output" >"$work/settings"
cat >"$work/start" <<'START'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /run/guest/settings
end() { echo "$1" > /run/guest/status; sync; echo b > /proc/sysrq-trigger; sleep 60; }
for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name)" = out ] && port=/dev/${p##*/}; done
hostname rdma-guest
[ -z "$output" ] || { mkdir -p "$output"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none output "$output" || end 125; }
# Each device on an end of its own wire into a bridge. That addresses of one machine reach each
# other over the wire, and not past it, takes the settings below.
for k in all default; do
  c=/proc/sys/net/ipv4/conf/$k
  echo 1 > $c/accept_local; echo 1 > $c/arp_ignore; echo 2 > $c/arp_announce; echo 0 > $c/rp_filter
done
{
  echo "link set lo up"; echo "link add br0 type bridge"; echo "link set br0 up"
  i=0; while [ $i -lt $devices ]; do
    # A RoCE packet of 4096 bytes has some 60 of headers.
    echo "link add e$i mtu 4200 type veth peer name p$i mtu 4200"
    echo "link set p$i master br0"; echo "link set p$i up"
    echo "addr add 10.77.0.$((i + 1))/24 dev e$i"; echo "link set e$i up"
    i=$((i + 1))
  done
} | ip -batch - || end 125
i=0; while [ $i -lt $devices ]; do echo "link add rxe$i type rxe netdev e$i"; i=$((i + 1)); done |
  rdma -b - || end 125
ulimit -l unlimited
cat /proc/uptime > /run/guest/started
mkfifo /run/out; cat /run/out > $port & cat=$!
bash /run/guest/command < /dev/null > /run/out 2>&1; status=$?
t=0; while kill -0 $cat 2>/dev/null && [ $t -lt 20 ]; do sleep 0.1; t=$((t + 1)); done
cat /proc/uptime > /run/guest/stopped
end $status
START

# ---- boot ----

share() {
  printf '%s ' -fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3" \
    -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
}
# counter_khz: how often this machine's time stamp counter counts in a millisecond.
counter_khz() {
  python3 - <<'PYTHON'
import ctypes, mmap, time

code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
# rdtsc; shl rdx, 32; or rax, rdx; ret
code.write(bytes.fromhex("0f3148c1e2204809d0c3"))
counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))


def both():
    """The counter beside the clock, from the closest of some tries: no other process came between."""
    tries = []
    for _ in range(100):
        before = time.monotonic_ns()
        count = counter()
        after = time.monotonic_ns()
        tries.append((after - before, count, before))
    return min(tries)[1:]


count, at = both()
time.sleep(0.1)
later, end = both()
print(round((later - count) * 1e6 / (end - at)))
PYTHON
}

# The emulator hands every processor the host's counter, one for all, which Linux does not believe of
# processors of this kind: it would ask the HPET, a microsecond and a lock of the emulator's each time.
# Nor may the guest find out by itself how fast the counter is: when the emulator was held up in those
# few milliseconds, its clock has been seen to run thirty times too fast, and every time-out with it.
clock=""
[ "$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" != tsc ] ||
  clock="tsc=reliable tsc_early_khz=$(counter_khz)"
machine=(qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none
  -machine pc -accel tcg,thread=multi,tb-size=512 -cpu max,-erms,-fsrm -smp 2 -m 2048
  -kernel "$cache/vmlinux" -initrd "$cache/initrd"
  -append "console=ttyS0 quiet panic=-1 reboot=t mitigations=off nokaslr nopti no_timer_check $clock audit=0 cryptomgr.notests"
  -chardev "file,id=console,path=$work/console" -serial chardev:console
  -device virtio-serial-pci -chardev "file,id=out,path=$work/out"
  -device virtserialport,chardev=out,name=out
  $(share host / ,readonly=on) $(share run "$work" ""))
[ -z "$output" ] || machine+=($(share output "$output" ""))
mkfifo "$work/out"
cat "$work/out" &
reader=$!
status=0
timeout -k 5 "$seconds" "${machine[@]}" </dev/null || status=$?
[ $status = 0 ] || : 3<>"$work/out" # never opened, perhaps: let the reader see an end
wait $reader || true
[ -z "${RDMA_GUEST_VERBOSE:-}" ] || sed 's/\r$//;s/^/console: /' "$work/console" >&2
case $status in
  124 | 137)
    echo "guest.sh: not done within $seconds s" >&2
    exit 124
    ;;
esac
[ -s "$work/status" ] || {
  tail -n 20 "$work/console" >&2
  echo "guest.sh: the guest ended without a status (qemu: $status)" >&2
  exit 125
}
# The files were written at times of this machine's clock and say those of the guest's.
awk -v here="$(($(stat -c %Y "$work/stopped") - $(stat -c %Y "$work/started")))" \
  'NR == FNR { start = $1; next } { there = $1 - start }
   END { exit there > 1.5 * here + 5 || here > 1.5 * there + 5 }' "$work/started" "$work/stopped" || {
  echo "guest.sh: the guest's clock did not go as this machine's does: started at" \
    "$(cut -d' ' -f1 "$work/started") s, ended at $(cut -d' ' -f1 "$work/stopped") s" >&2
  exit 125
}
exit "$(cat "$work/status")"
