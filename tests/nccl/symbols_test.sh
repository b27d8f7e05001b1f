#!/usr/bin/env bash
# Claim: libnccl.so.2 exports NCCL's names (of 2.28.9, then of 2.29 to 2.32) and nothing else, nccl…
# weak, pnccl… strong; its SONAME is NVIDIA's; it needs the C library alone, not even a C++ library or
# hwloc (but for one that was built without libhwloc.a).
#
#   symbols_test.sh LIBRARY [sanitized | shared-hwloc]
set -euo pipefail
status=0

names='AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount CommCuDevice CommDeregister
CommDestroy CommFinalize CommGetAsyncError CommInitAll CommInitRank CommInitRankConfig
CommInitRankScalable CommRegister CommRevoke CommShrink CommSplit CommUserRank CommWindowDeregister
CommWindowRegister DevCommCreate DevCommDestroy Gather GetErrorString GetLastError GetUniqueId
GetVersion GinBarrierCreateRequirement GroupEnd GroupSimulateEnd GroupStart LLA2ACalcSlots
LLA2ACreateRequirement LsaBarrierCreateRequirement MemAlloc MemFree Recv RedOpCreatePreMulSum
RedOpDestroy Reduce ReduceScatter ResetDebugInit Scatter Send TeamLsa TeamRail TeamRankToLsa
TeamRankToWorld TeamWorld'
newest='AllGatherConfig AllReduceConfig AlltoAllConfig BroadcastConfig GatherConfig
GetCftDeviceLeInfo GetLsaDevicePointer GetLsaMultimemDevicePointer GetMultimemDeviceLeInfo
GetMultimemDevicePointer GetPeerDeviceLeInfo GetPeerDevicePointer GinInboxA2ACreateRequirement
GinOutboxCreateRequirement ReduceConfig ReduceScatterConfig ScatterConfig SetEncryption TeamCft
TeamCftMultimem'
newer='CommGetUniqueId CommGrow CommMemStats CommQueryProperties CommResume CommSuspend ParamBind
ParamDumpAll ParamGet ParamGetAllParameterKeys ParamGetI16 ParamGetI32 ParamGetI64 ParamGetI8
ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32 ParamGetU64 ParamGetU8 PutSignal Signal
WaitSignal WinGetUserPtr'
[ "$(wc -w <<<"$names")" = 52 ] || { echo "the list of 2.28.9 has not 52 names"; status=1; }

expected=$({
  for name in $names $newer $newest; do
    echo "W nccl$name"
    echo "T pnccl$name"
  done
  echo "T ncclResetDebugInitInternal"
} | LC_ALL=C sort)
found=$(nm -D --defined-only "$1" | awk '{print $(NF - 1), $NF}' | LC_ALL=C sort)
if [ "$expected" != "$found" ]; then
  echo "missing (<) and not expected (>):"
  diff <(echo "$expected") <(echo "$found") || true
  status=1
fi

soname=$(readelf -d "$1" | sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p')
[ "$soname" = libnccl.so.2 ] || { echo "SONAME is $soname"; status=1; }
if [ "${2:-}" != sanitized ]; then
  allowed='libc libm libpthread libdl ld-linux-x86-64 ld-linux-aarch64'
  [ -z "${2:-}" ] || allowed+=' libhwloc'
  for needed in $(readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'); do
    [[ " $allowed " == *" ${needed%%.so*} "* ]] || { echo "needs $needed"; status=1; }
  done
fi
exit $status
