#include "nccl/fault.hpp"

#include <cstdint>
#include <mutex>
#include <new>

#include "nccl/log.hpp"

namespace chorus::nccl {
namespace {

struct Last {
  std::mutex mutex;
  std::uint64_t failures = 0;
  std::string text;
  std::string background;           ///< of a thread of ours, which any of the program's may ask for
  std::uint64_t background_at = 0;  ///< which failure that was
};

/// What calls of this thread failed with.
struct Own {
  std::string text;
  std::uint64_t at = 0;
};
thread_local Own t_own;

/// Never destroyed: threads may still fail while the process ends.
Last& last() {
  static Last* const the_last = new Last;
  return *the_last;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

Outcome Outcome::of_failure(std::string_view sentence) {
  // Ranks that do different things are the program's mistake; everything else that ends a
  // communicator happened to another rank or on the way to it.
  const bool mismatch =
      contains(sentence, " as call ") || contains(sentence, "belongs to another call") ||
      contains(sentence, "among other ranks than") || contains(sentence, "of other ranks than") ||
      contains(sentence, "claim to be one rank") || contains(sentence, "joins a world of") ||
      contains(sentence, "has joined with this id before") ||
      contains(sentence, "install one version everywhere");
  return {mismatch ? ncclInvalidUsage : ncclRemoteError, std::string(sentence)};
}

Outcome Outcome::of_exception() {
  try {
    throw;
  } catch (const Fault& fault) {
    return {fault.code(), fault.what()};
  } catch (const InputError& error) {
    return {ncclInvalidArgument, error.what()};
  } catch (const BootstrapError& error) {
    const bool local = contains(error.what(), "cannot") || contains(error.what(), "must listen");
    return local ? Outcome{ncclSystemError, error.what()} : of_failure(error.what());
  } catch (const CollectiveError& error) {
    return of_failure(error.what());
  } catch (const LinkError& error) {
    return {ncclRemoteError, error.what()};
  } catch (const DeviceError& error) {
    return {ncclUnhandledCudaError, error.what()};
  } catch (const TopologyError& error) {
    return {ncclSystemError, error.what()};
  } catch (const std::bad_alloc&) {
    return {ncclSystemError, "out of memory: ask for less, or give the process more"};
  } catch (const std::exception& error) {
    return {ncclInternalError, error.what()};
  } catch (...) {
    return {ncclInternalError, "an exception of unknown type: please report this"};
  }
}

ncclResult_t report(const Outcome& outcome, std::string_view function) {
  if (outcome.code == ncclSuccess || outcome.code == ncclInProgress) return outcome.code;
  t_own.text = fmt::format("{}: {}", function, outcome.text);
  {
    const std::lock_guard lock(last().mutex);
    t_own.at = ++last().failures;
    last().text = t_own.text;
  }
  warn(t_own.text);
  return outcome.code;
}

void report_in_background(const Outcome& outcome) {
  const std::uint64_t before = t_own.at;
  static_cast<void>(report(outcome, "in the background"));
  if (t_own.at == before) return;  // it went well
  const std::lock_guard lock(last().mutex);
  last().background = t_own.text;
  last().background_at = t_own.at;
}

const char* last_error() {
  static thread_local std::string copy;
  const std::lock_guard lock(last().mutex);
  if (t_own.at > last().background_at) {
    copy = t_own.text;
  } else {
    copy = last().background_at > 0 ? last().background : last().text;
  }
  return copy.c_str();
}

}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" const char* pncclGetErrorString(ncclResult_t result) {
  switch (static_cast<int>(result)) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclTimeout:
      return "NCCL operation timed out";
    default:
      return "unknown result code";
  }
}
CHORUS_NCCL_EXPORT(GetErrorString);

extern "C" const char* pncclGetLastError(ncclComm_t /*comm*/) { return last_error(); }
CHORUS_NCCL_EXPORT(GetLastError);

extern "C" ncclResult_t pncclGetVersion(int* version) {
  return guarded("ncclGetVersion", [&] {
    if (version == nullptr) refuse(ncclInvalidArgument, "version is null");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(GetVersion);
