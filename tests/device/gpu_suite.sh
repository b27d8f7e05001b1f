#!/bin/bash
# Everything about collectives over GPU memory that needs a GPU, in one go: builds, tests (every
# collective × type × operation × 1 to 8 ranks on one GPU, processes, groups, graphs, aborts; before all
# that a small set under compute-sanitizer, racecheck first), measures against what the GPU can do in the same run, and writes JSON
# into perf/results. Then the bundled trainer on that GPU: every layout's loss beside the cpu
# backend's, and the share of the peak that training the 125M model reaches. And CUDA tensors through
# torch.distributed, where PYTHON has a torch with CUDA.
#
#   gpu_suite.sh                   build here, run here
#   gpu_suite.sh pack DIRECTORY    build here; put programs and the libraries they need there
#   gpu_suite.sh run DIRECTORY     run what was packed (on a machine without Chorus's dependencies)
#
# Environment: OUT (where results go; perf/results/gpu, or DIRECTORY/results), LARGEST (bytes; 1 GiB),
# QUICK=1 (fewer ranks), ARCH (compute capability to build for; 90), PYTHON (python3: whose torch to build
# for and to test).
# Exit status: 0 all well, 1 something failed, 77 there is no GPU (or, to build, no nvcc).
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
tests="gpu_device_world_test gpu_device_rules_test gpu_device_contexts_test gpu_device_streams_test gpu_device_sharing_test gpu_device_failure_test"
programs="$tests device_bench"
trainer="chorus train"  # where OpenBLAS is, and cuBLASLt for the cuda backend

build() {
  command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || { echo "there is no nvcc to build the kernels with"; exit 77; }
  cmake -S "$root" -B "$root/build/gpu" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCHORUS_CUDA=ON \
        -DCHORUS_CUDA_ARCHITECTURES="${ARCH:-90}" -DCHORUS_PYTHON="${PYTHON:-}" \
        -DCHORUS_BUILD_TESTS=ON >/dev/null || exit 1
  # shellcheck disable=SC2086
  ninja -C "$root/build/gpu" $programs || exit 1
  # shellcheck disable=SC2086
  ninja -C "$root/build/gpu" $trainer || echo "skipped: the trainer is not built"
  ninja -C "$root/build/gpu" chorus_torch || echo "skipped: the backend of torch.distributed is not built"
}

pack() {
  local to=$1
  mkdir -p "$to/lib"
  for program in $programs $trainer; do
    local file
    file=$(find "$root/build/gpu" -name "$program" -type f -perm -u+x | head -1)
    [ -n "$file" ] || continue
    strip -o "$to/$program" "$file"
    # What every system has stays: the C library, and the driver, which comes with the GPU.
    ldd "$file" | awk '$3 ~ /^\// {print $3}' |
      grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda)\.so' |
      xargs -r cp -Lt "$to/lib"
  done
  if [ -d "$root/build/gpu/python/chorus_torch" ]; then
    mkdir -p "$to/torch"
    cp -r "$root/build/gpu/python/chorus_torch" "$to/torch"
    cp -L "$root"/build/gpu/src/libchorus.so.?.? "$to/torch/chorus_torch"
    cp "$root"/tests/torch/{cuda_test,gpus,operations_test,ranks}.py "$to/torch"
  fi
  cp "$0" "$to/gpu_suite.sh"
  cp "$root/tests/trainer/gpu_train.sh" "$to"
  # Its cuBLASLt is too large to be carried: that of the machine, out of LD_LIBRARY_PATH.
  local module=$root/build/gpu/examples/trainer/libchorus_trainer_cuda.so
  [ ! -e "$module" ] || cp "$module" "$to"
}

# Races and barriers of the kernels: cheap, and what they find explains most of what else may fail.
sanitize() {
  local at=$1 out=$2 failed=0
  command -v compute-sanitizer >/dev/null || {
    echo "skipped: compute-sanitizer is not installed"
    return 0
  }
  for tool in racecheck synccheck memcheck; do
    if timeout 400 compute-sanitizer --tool $tool --error-exitcode 9 "$at/gpu_device_world_test" \
        --gtest_filter='*Words2:*Slots2:*Direct2' >"$out/$tool.log" 2>&1; then
      echo "passed: compute-sanitizer $tool"
    else
      failed=1
      echo "FAILED: compute-sanitizer $tool"
      grep '=========' "$out/$tool.log" | head -20
    fi
  done
  return $failed
}

run() {
  local at=$1 failed=0
  export LD_LIBRARY_PATH=$at/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  "$at/device_bench" 4096 0 >/dev/null 2>"$at/why" || {
    local status=$?
    cat "$at/why"
    exit "$status"
  }
  local out=${OUT:-$at/results}
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
  sanitize "$at" "$out" || failed=1
  for test in $tests; do
    local filter='*'
    [ "${QUICK:-0}" = 1 ] && filter='*2:*3:DeviceStreams.*:DeviceFailure.*'
    if timeout 400 "$at/$test" --gtest_filter="$filter" --gtest_brief=1 >"$out/$test.log" 2>&1; then
      echo "passed: $test: $(grep -c . "$out/$test.log") lines in its log"
    else
      failed=1
      echo "FAILED: $test"
      grep -E 'Failure|FAILED|rank' -A4 "$out/$test.log" | head -40
    fi
  done
  if timeout 500 "$at/device_bench" "${LARGEST:-1073741824}" 8 >"$out/device.json"; then
    echo "measured: $out/device.json"
    grep -E '"floors"|"bytes": (8|65536|268435456),' "$out/device.json"
  else
    failed=1
    echo "FAILED: device_bench"
  fi
  tensors "$at" "$out" || failed=1
  train "$at" "$out" || failed=1
  return $failed
}

# CUDA tensors through torch.distributed.
tensors() {
  local at=$1 log=$2/torch.log python=${PYTHON:-python3} status=77
  echo "the backend of torch.distributed was not built" >"$log"
  if [ -d "$at/torch" ]; then
    local -x PYTHONPATH=$at/torch OMP_NUM_THREADS=1
    if "$python" -c 'import chorus_torch' >"$log" 2>&1; then  # no torch, or another one
      timeout 600 "$python" -B "$at/torch/cuda_test.py" >"$log" 2>&1
      status=$?
    fi
  fi
  case $status in
    0) echo "passed: CUDA tensors of torch: $(grep -E '^Ran' "$log")" ;;
    77) echo "skipped: CUDA tensors of torch: $(tail -1 "$log" | sed 's/^skipped: //')" ;;
    *) echo "FAILED: CUDA tensors of torch" && grep -E '^(FAIL|ERROR|[A-Za-z]*Error)' "$log" | head -20 && return 1 ;;
  esac
}

train() {
  local at=$1 out=$2 status=77
  if [ -x "$at/train" ]; then
    MEASURE=$((1 - ${QUICK:-0})) timeout 600 "$at/gpu_train.sh" "$at/chorus" "$at/train" \
      >"$out/trainer.log" 2>&1
    status=$?
  fi
  case $status in
    0) echo "passed: the trainer" && sed -n 's/^125M: step/&/p' "$out/trainer.log" | tail -1 ;;
    77) echo "skipped: the trainer's cuda backend: $(tail -1 "$out/trainer.log" 2>/dev/null)" ;;
    *) echo "FAILED: the trainer" && grep -A3 FAIL "$out/trainer.log" | head -20 && return 1 ;;
  esac
}

has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ]; }

case "${1:-here}" in
  pack)
    build
    pack "${2:?a directory to put programs into}"
    ;;
  run)
    run "${2:?the directory that programs were packed into}"
    ;;
  here)
    has_gpu || { echo "there is no GPU here (no /dev/nvidia0)"; exit 77; }
    build
    there=$(mktemp -d)
    trap 'rm -rf "$there"' EXIT
    pack "$there"
    OUT=${OUT:-$root/perf/results/gpu}
    run "$there"
    ;;
  *)
    sed -n '2,14p' "$0"
    exit 2
    ;;
esac
