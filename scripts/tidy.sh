#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy: few checks, every one fatal) on the sources of build/dev, tests left
# out, and src/torch: Debian's clang cannot read the headers of Debian's torch as C++20. What passed
# before and has not changed since, its headers included, is not looked at again.
#
#   scripts/tidy.sh [SECONDS [changed]]    stop taking new files after SECONDS (default: no limit);
#                changed files come first, and what was left out is said; with "changed" only those
#                that differ from origin/main
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/dev
passed=build/tidy
deadline=$((${1:-100000} + SECONDS))
mkdir -p "$passed"

# One line "SOURCE HASH" for each compiled source in git: the hash covers the source, every header
# of the project that it includes, and the checks; in a unity build also the sources beside it.
sources_with_hashes() {
  ninja -C "$build" -t deps |
    awk -v root="$PWD/" '
      function tell(source, file) {
        for (source in sources) for (file in files) print source, file
        delete sources
        delete files
      }
      /: #deps/ { tell(); next }
      NF == 1 {
        file = $1
        if (index(file, root) == 1) file = substr(file, length(root) + 1)
        sub(/^\.\.\/\.\.\//, "", file)  # as ccache may write it, from the folder of the build
        if (file ~ /^(\/|\.\.|build\/)/) next
        if (file ~ /\.(cpp|c|cu)$/) sources[file]
        files[file]
      }
      END { tell() }' | sort -u |
    while read -r source file; do
      [ -f "$file" ] || continue
      printf '%s %s\n' "$source" "${file_hash[$file]:-}"
    done |
    awk '{ all[$1] = all[$1] $2 } END { for (source in all) print source, all[source] }' |
    while read -r source hashes; do
      printf '%s %s\n' "$source" "$(printf '%s' "$source$hashes$config" | sha256sum | cut -c1-32)"
    done
}

declare -A file_hash=()
config=$(git ls-files "*.clang-tidy" | xargs sha256sum | sha256sum)
while read -r hash file; do file_hash[$file]=$hash; done < <(
  git ls-files -- '*.cpp' '*.hpp' '*.h' | xargs sha256sum | sed 's/  / /')

base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse -q --verify HEAD~1 || true)
changed=$(git diff --name-only ${base:+"$base"} 2>/dev/null || true)

first=() later=() total=0
while read -r source hash; do
  [ -n "${file_hash[$source]:-}" ] && [[ $source != tests/* && $source != src/torch/* ]] || continue
  total=$((total + 1))
  [ ! -e "$passed/$hash" ] || continue
  if grep -qxF -- "$source" <<<"$changed"; then
    first+=("$source $hash")
  else
    later+=("$source $hash")
  fi
done < <(sources_with_hashes | sort)
if [ "${2:-}" = changed ]; then
  total=${#first[@]}
  later=()
fi

# The commands of a build of the same options in which each source is compiled alone, by what Clang
# understands: so a source that names not all it includes is noticed.
cmake --preset dev -B "$passed/alone" -DCMAKE_UNITY_BUILD=OFF -DCHORUS_PRECOMPILE=OFF >"$passed/alone.log" 2>&1 ||
  { cat "$passed/alone.log"; exit 1; }
sed "s#/$passed/alone#/$build#g; s/ -Wno-maybe-uninitialized//" "$passed/alone/compile_commands.json" \
  >"$passed/compile_commands.json"

judge() { # SOURCE HASH
  [ "$(date +%s)" -lt "$tidy_until" ] || exit 0
  if clang-tidy -p "$tidy_passed" --quiet "$1" 2>/dev/null >"$tidy_passed/$2.log"; then
    mv "$tidy_passed/$2.log" "$tidy_passed/$2"
  else
    cat "$tidy_passed/$2.log"
    mv "$tidy_passed/$2.log" "$tidy_passed/$2.faults"
    exit 1
  fi
}
export -f judge
export tidy_passed=$passed tidy_until=$(($(date +%s) + deadline - SECONDS))
rm -f "$passed"/*.faults "$passed"/*.log
waiting=$((${#first[@]} + ${#later[@]}))
status=0
[ "$waiting" = 0 ] || printf '%s\n' ${first[@]+"${first[@]}"} ${later[@]+"${later[@]}"} |
  xargs -P "$(nproc)" -L 1 bash -c 'judge "$@"' judge || status=1

left=0
for entry in ${first[@]+"${first[@]}"} ${later[@]+"${later[@]}"}; do
  hash=${entry##* }
  [ -e "$passed/$hash" ] || [ -e "$passed/$hash.faults" ] || left=$((left + 1))
done
echo "tidy: $total files, $((total - waiting)) unchanged since they passed, $left left out for time"
[ "$status" = 0 ] || { echo "tidy: faults found (above)" >&2; exit 1; }
