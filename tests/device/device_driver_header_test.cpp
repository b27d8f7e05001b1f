// Our declarations of the driver are those of the toolkit's header: checked by the compiler, name
// by name. The types differ by name only, so parameters are compared by what they are.
#include <cuda.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "device/driver/driver_api.hpp"

namespace chorus::cuda {
namespace {

/// Ours for theirs: an enumeration is an int, a handle structure its bytes.
template <class T>
struct Plain {
  using type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <>
struct Plain<CUuuid> {
  using type = Uuid;
};
template <>
struct Plain<CUipcMemHandle> {
  using type = IpcHandle;
};
template <>
struct Plain<CUdeviceptr> {
  using type = Address;
};
template <class T>
struct Plain<T*> {
  using type = typename Plain<T>::type*;
};
template <class T>
struct Plain<const T> {
  using type = const typename Plain<T>::type;
};
/// Enumerations of ours are int or unsigned: compare sizes of integers, and types of all else.
template <class Ours, class Theirs>
constexpr bool alike() {
  using Known = typename Plain<Theirs>::type;
  if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Known>) {
    return sizeof(Ours) == sizeof(Known);
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Known>) {
    return alike<std::remove_pointer_t<Ours>, std::remove_pointer_t<Known>>();
  } else {
    return std::is_same_v<Ours, Known>;
  }
}
template <class Ours, class Theirs>
struct Same : std::false_type {};
template <class... Ours, class... Theirs>
struct Same<int (*)(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<sizeof...(Ours) == sizeof...(Theirs)> {};
template <class... Ours, class... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct Same<int (*)(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<(alike<Ours, Theirs>() && ...)> {
};

// The header renames functions to their current versions by macros: so must the names here be.
#define CHORUS_CUDA_COMPARE(member, symbol, parameters) \
  static_assert(Same<decltype(Api::member), decltype(&::symbol)>::value, #symbol);
CHORUS_CUDA_FUNCTIONS(CHORUS_CUDA_COMPARE)
CHORUS_CUDA_LATER_FUNCTIONS(CHORUS_CUDA_COMPARE)

static_assert(kSuccess == CUDA_SUCCESS && kNotReady == CUDA_ERROR_NOT_READY &&
              kInvalidValue == CUDA_ERROR_INVALID_VALUE &&
              kInvalidImage == CUDA_ERROR_INVALID_IMAGE &&
              kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU &&
              kUnsupportedPtx == CUDA_ERROR_UNSUPPORTED_PTX_VERSION &&
              kPeerAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(kMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT &&
              kComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              kComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              kEventDisableTiming == CU_EVENT_DISABLE_TIMING &&
              kEventExternal == CU_EVENT_RECORD_EXTERNAL &&
              kEventExternal == CU_EVENT_WAIT_EXTERNAL &&
              kHostMapped == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) &&
              kIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(kCaptureModeGlobal == CU_STREAM_CAPTURE_MODE_GLOBAL &&
              kCaptureModeThreadLocal == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
              kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED &&
              kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
              kPointerIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED &&
              kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
              kPointerBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID &&
              kPointerIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
              kPointerRangeStart == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR &&
              kPointerRangeSize == CU_POINTER_ATTRIBUTE_RANGE_SIZE &&
              kMemoryHost == CU_MEMORYTYPE_HOST && kMemoryDevice == CU_MEMORYTYPE_DEVICE);

static_assert(kFlushWritesOptions == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS &&
              kWritesOrdering == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING &&
              kDmabufSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED &&
              kFlushByHost == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST &&
              kOrderedForOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER &&
              kFlushCurrentContext == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
              kFlushToOwner == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
              kRangeDmabuf == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);

TEST(DriverHeader, AgreesWithOurDeclarations) {
  SUCCEED() << "the compiler has compared " << sizeof(Api) / sizeof(void*) << " functions";
}

}  // namespace
}  // namespace chorus::cuda
