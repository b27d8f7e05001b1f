#!/usr/bin/env bash
# Claim: the wheel of the Python module, and any others given, install by pip in a Debian 12 on which nothing
# but Python is, without a network or a compiler, and two ranks started by their variables alone
# reduce there.
#
#   wheel_test.sh SOURCES [WHEEL...]    WHEEL: of chorus-torch; tried where SITE, a folder with its torch
#                                       in a file system that this one can link into, is given
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
$python -m venv "$here/builds" && mkdir "$here/dist" &&
  "$here/builds/bin/pip" wheel -q --no-deps -w "$here/dist" "$sources/src/python" || fail "no wheel"
rm -rf "$here/builds"
[ -z "${SITE:-}" ] || cp -al "$SITE" "$here/site" || fail "$SITE cannot be linked into $here"

cat >"$here/ranks" <<'END'
# ranks SCRIPT: two ranks, by variables alone.
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=29411 $PYTHON "$1" &
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
# README's lines for torch, but for how the ranks meet: there is no chorus run here.
sed -n "/^import torch, torch.distributed/,/^if dist.get_rank/p" "$sources/README.md" |
  sed "s/, init_method=\"chorus:\/\/\"//; s/'\$//; s/, chorus_torch//" >"$here/readme.py"
grep -q 'init_process_group("chorus")' "$here/readme.py" || fail "README no longer has its lines for torch"
cat >"$here/all" <<'END'
set -euo pipefail
apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
! command -v gcc
! ls /usr/lib/*/libhwloc.so* 2>/dev/null
python3 -m venv /module
/module/bin/pip install -q --no-index dist/chorus_python-*.whl
PYTHON=/module/bin/python bash ranks module.py
[ -d site ] || exit 0
for wheel in chorus_torch*.whl; do
  rm -rf /torch && python3 -m venv /torch
  echo /here/site >/torch/lib/python3.11/site-packages/site.pth
  /torch/bin/pip uninstall -q -y setuptools  # the older one of Debian hides that of SITE
  /torch/bin/pip install -q --no-index "$wheel"
  PYTHON=/torch/bin/python bash ranks readme.py
  PYTHON=/torch/bin/python bash ranks module.py
done
END
times=1
if [ -d "$here/site" ]; then
  cp "$@" "$here/" || exit 1
  times=$(($# + 1))
fi
bare bash all 2>&1 | tee "$here/said"
[ "${PIPESTATUS[0]}" -eq 0 ] || fail "see above"
[ "$(grep -c '^rank [01] has \[3.0\]$' "$here/said")" -eq $((2 * times)) ] || fail "ranks did not print their sum"
[ "$(grep -cxF '[0.5, 0.5, 0.5, 0.5]' "$here/said")" -eq $((times - 1)) ] || fail "torch did not print its result"
echo "all held"
