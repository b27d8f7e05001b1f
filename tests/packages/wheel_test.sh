#!/usr/bin/env bash
# Claim: the wheels of the Python module and of chorus-torch install by pip in a Debian 12 on which nothing but Python and
# torch is, without a network or a compiler, and README's lines for torch run there as printed.
#
#   wheel_test.sh SOURCES [PYTHON...]   PYTHON: has a torch of PyPI, in a file system that this one's temporary files can
#                                       link into; unless told, those that tests/torch/upstream/table.py made. Debian's
#                                       torch is tried where this machine's has one, its ranks started by variables
#                                       alone (its torchrun ends in Python 3.11: docs/pytorch.md).
set -uo pipefail
sources=$(realpath "$1")
shift
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
bare() { "$sources/tests/packages/bare_root.sh" "$here" "$@"; }
bare true || exit $?
python=/usr/bin/python3
$python -c 'import ensurepip, venv' 2>/dev/null || { echo "skipped: $python makes no venv (python3-venv)"; exit 77; }

# wheel_for PYTHON FOLDER: chorus-torch for that Python's torch, in FOLDER/dist.
wheel_for() {
  PATH=$(dirname "$1"):$PATH "$1" -m pip wheel -q --no-build-isolation --no-deps -w "$2/dist" "$sources/src/torch" ||
    fail "no wheel for the torch of $1"
}

shopt -s nullglob
[ $# -gt 0 ] || set -- "$sources"/build/upstream/*/venv/bin/python
number=0
for other; do
  folder=$here/torch-$((++number))
  site=$("$other" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') && mkdir "$folder" &&
    cp -al "$(realpath "$site")" "$folder/site" || fail "the packages of $other cannot be linked into $here"
  rm -rf "$folder"/site/{,_}chorus*
  wheel_for "$other" "$folder"
done
$python -m venv --system-site-packages "$here/builds" && mkdir "$here/module" &&
  "$here/builds/bin/pip" wheel -q --no-deps -w "$here/module" "$sources/src/python" || fail "no wheel of the module"
if "$here/builds/bin/python" -c 'import torch' 2>/dev/null; then
  "$here/builds/bin/pip" install -q 'setuptools>=70.1' || fail "no setuptools to build with"
  wheel_for "$here/builds/bin/python" "$here/debian"
else
  echo "left out: Debian's torch, which $python has not (python3-torch)"
fi
rm -rf "$here/builds"

cat >"$here/ranks" <<'END'
# ranks SCRIPT: two ranks, by variables alone.
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=29411 python "$1" &
  pids="${pids:-} $!"
done
for pid in $pids; do wait "$pid" || exit 1; done
END
cat >"$here/module.py" <<'END'
import array, chorus
x = array.array("d", [1 + chorus.COMM_WORLD.rank])
chorus.COMM_WORLD.Allreduce(chorus.IN_PLACE, x)
print("rank", chorus.COMM_WORLD.rank, "has", list(x))
END
sed -n '/^```python$/,/^```$/p' "$sources/README.md" | sed '/^```/d' >"$here/mean.py"
awk '/^```sh$/ { getline; take = /^pip / } /^```$/ { take = 0 } take' "$sources/README.md" >"$here/lines"
grep -q 'init_process_group("chorus"' "$here/mean.py" && grep -q 'mean.py' "$here/lines" ||
  fail "README no longer has its lines for torch"
cat >"$here/torchrun" <<'END'
import sys
from torch.distributed.run import main
sys.exit(main())
END
cat >"$here/all" <<'END'
set -euo pipefail
shopt -s nullglob
export PIP_NO_INDEX=1 PIP_QUIET=1
# environment [OPTION]: another one of the same path.
environment() {
  rm -rf /torch
  python3 -m venv "$@" /torch
  PATH=/torch/bin:${PATH#/torch/bin:}
}
apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
if command -v gcc || compgen -G '/usr/lib/*/libhwloc.so*'; then exit 1; fi
environment
pip install module/chorus_python-*.whl
bash ranks module.py
for folder in torch-*; do
  environment
  echo "/here/$folder/site" >/torch/lib/python3.11/site-packages/site.pth
  pip uninstall -y setuptools  # the older one of Debian hides that of the folder
  (echo '#!/torch/bin/python' && cat torchrun) >/torch/bin/torchrun && chmod +x /torch/bin/torchrun  # pip's
  cp mean.py ranks module.py lines "$folder"
  (cd "$folder" && cat lines && bash -e lines && bash ranks module.py)
done
if [ -d debian ]; then
  apt-get install -y -qq --no-install-recommends python3-torch >/dev/null
  environment --system-site-packages
  pip install debian/dist/chorus_torch-*.whl
  bash ranks mean.py
  bash ranks module.py
fi
END
bare bash all 2>&1 | tee "$here/said"
[ "${PIPESTATUS[0]}" -eq 0 ] || fail "see above"
torches=$((number + $([ ! -d "$here/debian" ]; echo $?)))
[ "$(grep -c '^rank [01] has \[3.0\]$' "$here/said")" -eq $((2 * torches + 2)) ] || fail "ranks did not print their sum"
[ "$(grep -cxF '[0.5, 0.5, 0.5, 0.5]' "$here/said")" -eq $torches ] || fail "torch did not print its result"
echo "all held"
