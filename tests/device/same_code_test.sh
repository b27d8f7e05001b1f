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
echo "$count folds, the same in both"
