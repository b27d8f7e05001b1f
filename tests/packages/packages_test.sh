#!/usr/bin/env bash
# Claim: the packages, installed in a Debian 12 on which nothing else is, take a newcomer through
# README from there to a measured all-reduce and a picture, by copying its shell blocks in their
# order; and every installed command does what its help says.
#
# The block that makes the packages is run here, where there is a compiler; all others in the bare
# root (bare_root.sh), as its root, for whom sudo has nothing to do.
#
#   packages_test.sh SOURCES [BUILD]    BUILD: packs what is built there, in place of the preset
set -uo pipefail
sources=$1 build=${2:-}
cd "$sources" || exit 1
version=$(sed -nE 's/^project\(chorus VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

tests/packages/bare_root.sh "$here" true || exit $?

# The blocks of README: shell blocks as commands, programs as the files they are to be saved as. What pip installs
# beside a torch of PyPI is wheel_test.sh's.
cp README.md "$here/"
awk -v q="'" '
  /^```sh$/ {
    getline
    shell = !/^pip /
    if (shell) print "echo; sed -n " q NR ",/^```/p" q " README.md | sed " q "/^```/d; s/^/$ /" q "\n" $0
    next
  }
  /^```cpp$/ { print "cat >mean.cpp <<" q "END OF THE PROGRAM" q; program = 1; next }
  /^```python$/ { print "cat >mean.py <<" q "END OF THE PROGRAM" q; program = 1; next }
  /^```$/ { if (program) print "END OF THE PROGRAM"; shell = program = 0; next }
  shell || program' README.md >"$here/blocks"
grep -qx 'scripts/package.sh' "$here/blocks" || fail "README no longer makes the packages"
sed -i '/^scripts\/package.sh$/d' "$here/blocks"
scripts/package.sh ${build:+"$build"} || fail "the packages could not be made"
mkdir -p "$here/build" && cp -r build/packages "$here/build/"
cp -r tests/project tests/cli "$here/"

cat >"$here/all" <<'END'
set -euo pipefail
sudo() { "$@"; }
start=$SECONDS
time_of() { echo "== $1 after $((SECONDS - start)) s"; }
END
# The first measured result and picture are those of the blocks before those with Python.
sed '/python3-chorus_/i time_of "a measured all-reduce and a picture"' "$here/blocks" >>"$here/all"
cat >>"$here/all" <<END
time_of "README's last block"
grep -q "</svg>" all_reduce.svg machine.svg
echo "== every command"
mkdir tests && mv project cli tests/
bash tests/project/tools_test.sh /usr $version
g++ -std=c++20 /usr/share/doc/chorus/examples/01_all_reduce.cpp -o first \$(pkg-config --cflags --libs chorus)
chorus run -n 2 -- ./first
echo "== removed without a trace"
apt-get remove -y 'libchorus*' 'chorus-*' 'python3-chorus*' >/dev/null
left=\$(find / -xdev -name '*chorus*' -not -path '/proc/*' -not -path '/here/*' -not -path '/root/*' -not -path '/tmp/*' -not -path '/var/*' | head)
[ -z "\$left" ] || { echo "left behind: \$left"; exit 1; }
END
tests/packages/bare_root.sh "$here" bash all 2>&1 | tee "$here/said" | grep -vE '^(Get:|Selecting |Preparing |Unpacking |Setting up |\(Reading)'
[ "${PIPESTATUS[0]}" -eq 0 ] || fail "see above"
grep -qx '2 ranks, mean 0.5' "$here/said" || fail "the program did not print its result"
grep -qxF '[1. 1. 1. 1.]' "$here/said" || fail "numpy did not print its result"
grep -qxF '[0.5, 0.5, 0.5, 0.5]' "$here/said" || fail "torch did not print its result"
echo "all held"
