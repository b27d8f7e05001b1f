#!/usr/bin/env bash
# Claims: libnccl.so.2 exports every name that PyTorch, CuPy, vLLM and XLA import (client_names.txt);
# and a program that imports all that it exports, bound when it is loaded (-z now), starts.
#
#   client_names_test.sh CC LIBRARY NAMES
set -euo pipefail
cc=$1 library=$2 names=$3
status=0

exported=$(nm -D --defined-only "$library" | awk '{print $NF}' | grep -E '^p?nccl' | LC_ALL=C sort -u)
wanted=$(awk '!/^#/ && NF {print $1}' "$names" | LC_ALL=C sort -u)
[ "$(wc -l <<<"$wanted")" -gt 50 ] || { echo "$names holds next to nothing"; exit 1; }
missing=$(LC_ALL=C comm -23 <(echo "$wanted") <(echo "$exported"))
if [ -n "$missing" ]; then
  echo "imported by programs, not exported:"
  awk 'NR == FNR {missing[$1] = 1; next} $1 in missing' <(echo "$missing") "$names"
  status=1
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
{
  echo '#include <stdio.h>'
  for name in $exported; do echo "extern void $name(void);"; done
  echo 'int main(int count, char** arguments) {'
  echo '  (void)arguments;'
  # Calls that are never made are imports all the same.
  for name in $exported; do echo "  if (count < 0) $name();"; done
  echo '  puts("started");'
  echo '}'
} >"$dir/all.c"
"$cc" -fno-builtin -O0 -Wl,-z,now -Wl,--no-as-needed "$dir/all.c" "$library" \
  -Wl,-rpath,"$(dirname "$library")" -o "$dir/all"
readelf -d "$dir/all" | grep -q BIND_NOW || readelf -d "$dir/all" | grep -q 'FLAGS.*NOW' ||
  { echo "the program is not bound when it is loaded"; status=1; }
[ "$("$dir/all")" = started ] || { echo "the program does not start"; status=1; }
exit $status
