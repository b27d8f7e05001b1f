// From exceptions to NCCL's result codes and the text of ncclGetLastError().
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "chorus/error.hpp"
#include "chorus/nccl.h"

namespace chorus::nccl {

/// A call that is refused, with the code to return.
class Fault : public Error {
 public:
  Fault(ncclResult_t code, const std::string& what) : Error(what), code_(code) {}
  [[nodiscard]] ncclResult_t code() const { return code_; }

 private:
  ncclResult_t code_;
};

template <class... Args>
[[noreturn]] void refuse(ncclResult_t code, fmt::format_string<Args...> text, Args&&... args) {
  throw Fault(code, fmt::format(text, std::forward<Args>(args)...));
}

/// What went wrong, as NCCL's callers see it.
struct Outcome {
  ncclResult_t code = ncclSuccess;
  std::string text = {};

  /// Of the exception that is being handled.
  static Outcome of_exception();
  /// Of the sentence with which a communicator failed.
  static Outcome of_failure(std::string_view sentence);
};

/// Keeps the text for ncclGetLastError(), writes it to the log, and returns the code.
ncclResult_t report(const Outcome& outcome, std::string_view function);

/// The same for a thread that the library started.
void report_in_background(const Outcome& outcome);

/// The text of this thread's last failure, or of a later one in the background; else the last of
/// all. This thread's own copy; "" if there is none. (NCCL keeps one text per process, in which
/// ranks that are threads overwrite each other's.)
[[nodiscard]] const char* last_error();

/// What the thread's open group (if any) hears of a call that failed.
void spoil_group(const Outcome& outcome);

/// Runs the body of an API function: no exception leaves it.
template <class Body>
ncclResult_t guarded(std::string_view function, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    try {
      const Outcome outcome = Outcome::of_exception();
      spoil_group(outcome);
      return report(outcome, function);
    } catch (...) {  // out of memory while telling so
      return ncclSystemError;
    }
  }
}

}  // namespace chorus::nccl

/// After the definition of pncclName: makes ncclName its weak alias, so that a profiler's own
/// ncclName comes first.
#define CHORUS_NCCL_EXPORT(Name)                     \
  extern "C" [[gnu::weak, gnu::alias("pnccl" #Name), \
               gnu::visibility("default")]] decltype(pnccl##Name) nccl##Name
