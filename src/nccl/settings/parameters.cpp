// ncclParam… of 2.30: what the variables that have an effect here are set to, as text or number.
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "nccl/fault.hpp"
#include "nccl/log.hpp"
#include "nccl/newer.h"
#include "nccl/settings/environment.hpp"

namespace chorus::nccl {
namespace {

/// Handles are names that are never given back.
const std::map<std::string, std::unique_ptr<std::string>, std::less<>>& keys() {
  static const auto* const all = [] {
    auto* made = new std::map<std::string, std::unique_ptr<std::string>, std::less<>>;
    for (const std::string& name : honoured_names()) {
      made->emplace(name, std::make_unique<std::string>(name));
    }
    return made;
  }();
  return *all;
}

const std::string& key_of(const char* key) {
  if (key == nullptr) refuse(ncclInvalidArgument, "the parameter's name is null");
  const auto found = keys().find(std::string_view(key));
  if (found == keys().end()) {
    refuse(ncclInvalidArgument, "{} is no parameter that has an effect in Chorus", key);
  }
  return *found->second;
}

const std::string& key_of(ncclParamHandle_t handle) {
  for (const auto& [name, key] : keys()) {
    if (key.get() == handle) return *key;
  }
  refuse(ncclInvalidArgument, "{} is no parameter's handle", handle);
}

const std::string& text_of(const std::string& key) {
  static thread_local std::string text;
  text = value_of(key).value_or("");
  return text;
}

template <class Number>
ncclResult_t number(const char* function, ncclParamHandle_t handle, Number* out) {
  return guarded(function, [&] {
    if (out == nullptr) refuse(ncclInvalidArgument, "the place for the value is null");
    const std::string& key = key_of(handle);
    const std::string& text = text_of(key);
    Number value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      refuse(ncclInvalidArgument, "{}='{}' is no number of this type", key, text);
    }
    *out = value;
    return ncclSuccess;
  });
}

}  // namespace
}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclParamBind(ncclParamHandle_t* handle, const char* key) {
  return guarded("ncclParamBind", [&] {
    if (handle == nullptr) refuse(ncclInvalidArgument, "the place for the handle is null");
    *handle = const_cast<std::string*>(&key_of(key));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(ParamBind);

// NOLINTBEGIN(bugprone-macro-parentheses): types take none
#define CHORUS_NCCL_PARAM(Name, Type)                                                \
  extern "C" ncclResult_t pncclParamGet##Name(ncclParamHandle_t handle, Type* out) { \
    return number("ncclParamGet" #Name, handle, out);                                \
  }                                                                                  \
  CHORUS_NCCL_EXPORT(ParamGet##Name)
// NOLINTEND(bugprone-macro-parentheses)
CHORUS_NCCL_PARAM(I8, int8_t);
CHORUS_NCCL_PARAM(I16, int16_t);
CHORUS_NCCL_PARAM(I32, int32_t);
CHORUS_NCCL_PARAM(I64, int64_t);
CHORUS_NCCL_PARAM(U8, uint8_t);
CHORUS_NCCL_PARAM(U16, uint16_t);
CHORUS_NCCL_PARAM(U32, uint32_t);
CHORUS_NCCL_PARAM(U64, uint64_t);
#undef CHORUS_NCCL_PARAM

extern "C" ncclResult_t pncclParamGetStr(ncclParamHandle_t handle, const char** out) {
  return guarded("ncclParamGetStr", [&] {
    if (out == nullptr) refuse(ncclInvalidArgument, "the place for the value is null");
    *out = text_of(key_of(handle)).c_str();
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(ParamGetStr);

extern "C" ncclResult_t pncclParamGet(ncclParamHandle_t handle, void* out, int max_bytes,
                                      int* bytes) {
  return guarded("ncclParamGet", [&] {
    const std::string& text = text_of(key_of(handle));
    const int needed = static_cast<int>(text.size()) + 1;
    if (bytes != nullptr) *bytes = needed;
    if (out == nullptr || max_bytes < needed) {
      refuse(ncclInvalidArgument, "the value needs {} bytes, {} are given", needed,
             out == nullptr ? 0 : max_bytes);
    }
    std::memcpy(out, text.c_str(), static_cast<std::size_t>(needed));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(ParamGet);

extern "C" ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* length) {
  return guarded("ncclParamGetParameter", [&] {
    if (value == nullptr || length == nullptr) {
      refuse(ncclInvalidArgument, "the places for value and length must be given");
    }
    const std::string& text = text_of(key_of(key));
    *value = text.c_str();
    *length = static_cast<int>(text.size());
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(ParamGetParameter);

extern "C" ncclResult_t pncclParamGetAllParameterKeys(const char*** table, int* count) {
  return guarded("ncclParamGetAllParameterKeys", [&] {
    if (table == nullptr || count == nullptr) {
      refuse(ncclInvalidArgument, "the places for table and count must be given");
    }
    static thread_local std::vector<const char*> names;
    names.clear();
    for (const auto& [name, key] : keys()) names.push_back(key->c_str());
    *table = names.data();
    *count = static_cast<int>(names.size());
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(ParamGetAllParameterKeys);

extern "C" void pncclParamDumpAll() {
  (void)guarded("ncclParamDumpAll", [] {
    for (const auto& [name, key] : keys()) info(Subsystem::env, name + "=" + text_of(name));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(ParamDumpAll);
