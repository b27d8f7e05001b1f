#!/bin/sh
# The compilers of host and device instantiate the same folds: every (type, operation, form) that is
# in one object is in the other. Arguments: the cubin, the library with the twin.
set -eu
names() {
  c++filt | sed -n 's/.*\(fold_[a-z]*\)<(chorus::DataType)\([0-9]*\), (chorus::ReduceOp)\([0-9]*\), \([a-z]*\).*/\1 \2 \3 \4/p' |
    sort -u
}
host=$(nm "$2" 2>/dev/null | awk '{print $NF}' | names)
device=$(readelf -sW "$1" | awk '$4 == "FUNC" {print $8}' | sed 's/^\$[^$]*\$//' | names)
count=$(echo "$host" | wc -l)
test "$count" -ge 100 || { echo "only $count folds on the host"; exit 1; }
if [ "$host" != "$device" ]; then
  echo "on the host (above), on the device (below):"
  printf '%s\n\n%s\n' "$host" "$device"
  exit 1
fi
# What the host asks the driver for by name.
for name in chorus_layout chorus_run_few chorus_run_many chorus_ping; do
  readelf -sW "$1" | awk -v name="$name" '$5 == "GLOBAL" && $NF == name' | grep -q . ||
    { echo "the device's object has no global $name"; exit 1; }
done
echo "$count folds, the same in both"
