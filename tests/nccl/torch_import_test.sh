#!/usr/bin/env bash
# Claims: `import torch` of PyTorch's own wheels works with libnccl.so.2 of Chorus preloaded, bound to
# the last name, and what torch calls is then Chorus.
#
#   torch_import_test.sh LIBRARY [PYTHON...]
#
# Downloads nothing: it takes the Pythons named, or those of $TORCH_PYTHONS (paths, by spaces), for
# instance that of a virtual environment in which `pip install torch` was called; without any it is skipped.
set -euo pipefail
library=$(realpath "$1")
shift
# shellcheck disable=SC2086  # several, by spaces
[ $# -gt 0 ] || set -- ${TORCH_PYTHONS:-}
[ $# -gt 0 ] || { echo "skipped: TORCH_PYTHONS names no Python with torch"; exit 77; }
exported=$(nm -D --defined-only "$library" | awk '{print $NF}' | LC_ALL=C sort -u)
status=0 imported=0
for python in "$@"; do
  # Found without an import, which could fail for what is to be tested.
  if ! torch=$("$python" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("torch").origin))' \
      2>/dev/null); then
    echo "$python has no torch"
    status=1
    continue
  fi
  if [ ! -e "$torch/lib/libtorch_cuda.so" ]; then
    echo "$python: this torch was built without CUDA, so it loads no NCCL"
    continue
  fi
  missing=$(LC_ALL=C comm -23 <(nm -D --undefined-only "$torch/lib/libtorch_cuda.so" |
    awk '$NF ~ /^p?nccl/ {print $NF}' | LC_ALL=C sort -u) <(echo "$exported"))
  [ -z "$missing" ] || { echo "$python: libtorch_cuda.so needs, and $library has not: $missing"; status=1; }
  # dladdr() of the name that all libraries see says which library it is bound to.
  said=$(LD_BIND_NOW=1 LD_PRELOAD=$library "$python" - 2>&1 <<'END'
import ctypes
import torch

class Found(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]

program, found = ctypes.CDLL(None), Found()
program.dladdr(ctypes.cast(program.ncclCommInitRank, ctypes.c_void_p), ctypes.byref(found))
print("torch", torch.__version__, "calls", found.file.decode())
END
  ) || true
  echo "$python: $(tail -n 1 <<<"$said")"
  [[ $(tail -n 1 <<<"$said") == "torch "*" calls $library" ]] || { echo "$said"; status=1; }
  imported=1
done
[ $imported = 1 ] || [ $status = 1 ] || { echo "skipped: none of these has a torch with CUDA"; exit 77; }
exit $status
