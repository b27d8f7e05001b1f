#!/usr/bin/env bash
# Claims about the documents:
# - every relative link leads to a file, and to a heading of it where it names one;
# - where a link to a source file is followed by names, "[file](file): `name`", the file has them;
# - every path of this tree in backticks exists;
# - docs/README.md lists every page of docs/;
# - the glossary has at most 60 terms, of which at most 15 are our own, and none twice.
#
#   documents_test.sh SOURCES
set -uo pipefail
cd "$1" || exit 1
status=0
fail() {
  echo "$1"
  status=1
}

# As GitHub names the heading in a link.
anchors_of() {
  sed '/^```/,/^```/d' "$1" | grep -E '^#+ ' | sed -E 's/^#+ //; s/[^[:alnum:] _-]//g; s/ /-/g' |
    tr '[:upper:]' '[:lower:]'
}

check_links() {
  local page=$1 target file
  while read -r target; do
    file=${target%%#*}
    [ -z "$file" ] && file=$page || file=$(dirname "$page")/$file
    [ -e "$file" ] || { fail "$page: $target leads nowhere" && continue; }
    [[ $target != *'#'* || $file != *.md ]] || anchors_of "$file" | grep -qxF "${target#*#}" ||
      fail "$page: $target: there is no such heading"
  done < <(grep -oE '\]\([^) ]+\)' "$page" | sed -E 's/^\]\((.*)\)$/\1/' | grep -vE '^https?:')
}

check_names() {
  local page=$1 found file name
  while IFS= read -r found; do
    file=$(dirname "$page")/$(sed -E 's/^\]\(([^)]*)\).*/\1/' <<<"$found")
    while read -r name; do
      grep -qwF -- "$name" "$file" || fail "$page: $file has no $name"
    done < <(grep -oE '`[^`]+`' <<<"$found" | tr -d '`()' | sed 's/::/\n/g')
  done < <(tr '\n' ' ' <"$page" | grep -oE '\]\([^)#]+\):( `[^`]+`,?)+')
}

check_paths() {
  local page=$1 path
  while read -r path; do
    [ -e "$path" ] || [ -e "$(dirname "$page")/$path" ] || fail "$page: there is no $path"
  done < <(grep -oE '`(include|src|topology|synth|transports|collectives|perf|tests|examples|scripts|cmake|docs)/[A-Za-z0-9_./-]+`' "$page" |
    tr -d '`')
}

while read -r page; do
  check_links "$page"
  check_names "$page"
  # A change may tell of what is no longer there.
  [ "$page" = ./CHANGELOG.md ] || check_paths "$page"
done < <(git ls-files -co --exclude-standard '*.md' 2>/dev/null | sed 's|^|./|' | grep . ||
  find . -name '*.md' -not -path './build/*' -not -path './.git/*')
while read -r page; do
  [ "$page" = README.md ] || grep -qF "($page)" docs/README.md ||
    fail "docs/README.md does not list $page"
done < <(cd docs && find . -name '*.md' | cut -c3-)

terms=$(sed -nE '/^\| (term|---) /d; s/^\| ([^|]*) \| .*/\1/p' docs/glossary.md)
[ "$(wc -l <<<"$terms")" -le 60 ] || fail "docs/glossary.md has more than 60 terms"
[ "$(grep -c '\*$' <<<"$terms")" -le 15 ] || fail "more than 15 terms of docs/glossary.md are our own"
twice=$(sort <<<"$terms" | uniq -d)
[ -z "$twice" ] || fail "docs/glossary.md has twice: $twice"
exit $status
