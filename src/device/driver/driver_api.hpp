// The part of CUDA's driver API that Chorus uses, declared from its documentation: so that one
// binary is built without the toolkit and runs with and without a GPU. Where the toolkit is, a test
// compares every line with its header (tests/device/driver_header_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace chorus::cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  ///< of device memory
using Context = CUctx_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;
using GraphNode = CUgraphNode_st*;
struct Uuid {
  char bytes[16];
};
struct IpcHandle {
  char reserved[64];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kUnsupportedPtx = 222;
inline constexpr Result kNotReady = 600;
inline constexpr Result kPeerAlreadyEnabled = 704;
inline constexpr int kMultiprocessorCount = 16;  ///< of cuDeviceGetAttribute
inline constexpr int kComputeMajor = 75;
inline constexpr int kComputeMinor = 76;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
/// Of cuEventRecordWithFlags and cuStreamWaitEvent: a node of the graph, in place of a dependency.
inline constexpr unsigned kEventExternal = 1;
inline constexpr unsigned kHostMapped =
    0x02 | 0x01;  ///< portable, mapped; of cuMemHostRegister, too
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kCaptureModeThreadLocal = 1;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureNone = 0;        ///< of cuStreamIsCapturing
inline constexpr int kPointerMemoryType = 2;  ///< of cuPointerGetAttributes
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerBufferId = 7;
inline constexpr int kPointerIpcCapable =
    10;  ///< "legacy": of cuMemAlloc, not of pools or cuMemMap
inline constexpr int kPointerRangeStart = 11;  ///< of the allocation
inline constexpr int kPointerRangeSize = 12;
// Handles of streams that are the current context's; the last is the calling thread's own, too.
inline constexpr std::uintptr_t kStreamLegacy = 1;  ///< as null
inline constexpr std::uintptr_t kStreamPerThread = 2;
[[nodiscard]] inline bool is_default(StreamHandle stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= kStreamPerThread;
}
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;
// GPUDirect RDMA.
inline constexpr int kFlushWritesOptions = 117;  ///< of cuDeviceGetAttribute: a bit mask
inline constexpr int kWritesOrdering = 118;      ///< of cuDeviceGetAttribute
inline constexpr int kDmabufSupported = 124;     ///< of cuDeviceGetAttribute
inline constexpr int kFlushByHost = 1;           ///< of kFlushWritesOptions
inline constexpr int kOrderedForOwner = 100;     ///< of kWritesOrdering, this or more
inline constexpr int kFlushCurrentContext = 0;   ///< of cuFlushGPUDirectRDMAWrites
inline constexpr int kFlushToOwner = 100;        ///< of cuFlushGPUDirectRDMAWrites
inline constexpr int kRangeDmabuf = 1;           ///< of cuMemGetHandleForAddressRange

// X(member, symbol, parameters)
#define CHORUS_CUDA_FUNCTIONS(X)                                                                   \
  X(init, cuInit, (unsigned))                                                                      \
  X(driver_version, cuDriverGetVersion, (int*))                                                    \
  X(error_name, cuGetErrorName, (Result, const char**))                                            \
  X(error_string, cuGetErrorString, (Result, const char**))                                        \
  X(device_count, cuDeviceGetCount, (int*))                                                        \
  X(device_get, cuDeviceGet, (Device*, int))                                                       \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, Device))                                   \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid*, Device))                                              \
  X(device_name, cuDeviceGetName, (char*, int, Device))                                            \
  X(can_access_peer, cuDeviceCanAccessPeer, (int*, Device, Device))                                \
  X(primary_retain, cuDevicePrimaryCtxRetain, (Context*, Device))                                  \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (Device))                                       \
  X(context_push, cuCtxPushCurrent_v2, (Context))                                                  \
  X(context_pop, cuCtxPopCurrent_v2, (Context*))                                                   \
  X(context_current, cuCtxGetCurrent, (Context*))                                                  \
  X(context_device, cuCtxGetDevice, (Device*))                                                     \
  X(enable_peer, cuCtxEnablePeerAccess, (Context, unsigned))                                       \
  X(module_load, cuModuleLoadData, (Module*, const void*))                                         \
  X(module_unload, cuModuleUnload, (Module))                                                       \
  X(module_function, cuModuleGetFunction, (Function*, Module, const char*))                        \
  X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int*, Function, int, std::size_t))    \
  X(launch, cuLaunchKernel,                                                                        \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle, \
     void**, void**))                                                                              \
  X(alloc, cuMemAlloc_v2, (Address*, std::size_t))                                                 \
  X(free, cuMemFree_v2, (Address))                                                                 \
  X(address_range, cuMemGetAddressRange_v2, (Address*, std::size_t*, Address))                     \
  X(host_alloc, cuMemHostAlloc, (void**, std::size_t, unsigned))                                   \
  X(host_free, cuMemFreeHost, (void*))                                                             \
  X(host_register, cuMemHostRegister_v2, (void*, std::size_t, unsigned))                           \
  X(host_unregister, cuMemHostUnregister, (void*))                                                 \
  X(host_address, cuMemHostGetDevicePointer_v2, (Address*, void*, unsigned))                       \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (Address, const void*, std::size_t, StreamHandle))       \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void*, Address, std::size_t, StreamHandle))               \
  X(copy, cuMemcpyDtoDAsync_v2, (Address, Address, std::size_t, StreamHandle))                     \
  X(set_bytes, cuMemsetD8Async, (Address, unsigned char, std::size_t, StreamHandle))               \
  X(pointer_attributes, cuPointerGetAttributes, (unsigned, int*, void**, Address))                 \
  X(ipc_export, cuIpcGetMemHandle, (IpcHandle*, Address))                                          \
  X(ipc_open, cuIpcOpenMemHandle_v2, (Address*, IpcHandle, unsigned))                              \
  X(ipc_close, cuIpcCloseMemHandle, (Address))                                                     \
  X(stream_create, cuStreamCreate, (StreamHandle*, unsigned))                                      \
  X(stream_destroy, cuStreamDestroy_v2, (StreamHandle))                                            \
  X(stream_synchronize, cuStreamSynchronize, (StreamHandle))                                       \
  X(stream_query, cuStreamQuery, (StreamHandle))                                                   \
  X(stream_wait, cuStreamWaitEvent, (StreamHandle, EventHandle, unsigned))                         \
  X(stream_is_capturing, cuStreamIsCapturing, (StreamHandle, int*))                                \
  X(capture_begin, cuStreamBeginCapture_v2, (StreamHandle, int))                                   \
  X(capture_end, cuStreamEndCapture, (StreamHandle, Graph*))                                       \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*))                              \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (GraphExec*, Graph, unsigned long long))       \
  X(graph_launch, cuGraphLaunch, (GraphExec, StreamHandle))                                        \
  X(graph_destroy, cuGraphDestroy, (Graph))                                                        \
  X(graph_exec_destroy, cuGraphExecDestroy, (GraphExec))                                           \
  X(event_create, cuEventCreate, (EventHandle*, unsigned))                                         \
  X(event_destroy, cuEventDestroy_v2, (EventHandle))                                               \
  X(event_record, cuEventRecord, (EventHandle, StreamHandle))                                      \
  X(event_record_with, cuEventRecordWithFlags, (EventHandle, StreamHandle, unsigned))              \
  X(event_query, cuEventQuery, (EventHandle))                                                      \
  X(event_synchronize, cuEventSynchronize, (EventHandle))                                          \
  X(event_elapsed, cuEventElapsedTime, (float*, EventHandle, EventHandle))

// Superseded: newer headers give the name to another function, drivers have both.
#define CHORUS_CUDA_OLDER_FUNCTIONS(X)       \
  X(capture_info, cuStreamGetCaptureInfo_v2, \
    (StreamHandle, int*, unsigned long long*, Graph*, const GraphNode**, std::size_t*))

// Null where the driver has them not: 11.2, 11.3, 11.7, 12.0.
#define CHORUS_CUDA_LATER_FUNCTIONS(X)                                   \
  X(alloc_async, cuMemAllocAsync, (Address*, std::size_t, StreamHandle)) \
  X(context_id, cuCtxGetId, (Context, unsigned long long*))              \
  X(flush_writes, cuFlushGPUDirectRDMAWrites, (int, int))                \
  X(range_handle, cuMemGetHandleForAddressRange,                         \
    (void*, Address, std::size_t, int, unsigned long long))

/// The functions as found in libcuda.so.1.
struct Api {
// A declarator and its parameters cannot stand in parentheses.
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define CHORUS_CUDA_MEMBER(member, symbol, parameters) Result(*member) parameters;
  CHORUS_CUDA_FUNCTIONS(CHORUS_CUDA_MEMBER)
  CHORUS_CUDA_OLDER_FUNCTIONS(CHORUS_CUDA_MEMBER)
  CHORUS_CUDA_LATER_FUNCTIONS(CHORUS_CUDA_MEMBER)
#undef CHORUS_CUDA_MEMBER
};

}  // namespace chorus::cuda
