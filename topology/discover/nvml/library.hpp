// NVML, opened at run time.
#pragma once

#include <memory>
#include <string>

#include "topology/discover/nvml/abi.hpp"

namespace chorus::nvml {

/// The library and its functions. Those marked optional are null in drivers that lack them.
class Library {
 public:
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  /// False if the library, the driver or a function is missing; `why` then says so, unless it is
  /// just that this machine has no driver.
  bool open(std::string& why);

  /// NVML's words for an error.
  [[nodiscard]] std::string words(Return result) const;

  GetCount count = nullptr;
  GetHandle handle = nullptr;
  GetPciInfo pci = nullptr;
  // Optional.
  ErrorString error_string = nullptr;
  GetVersion driver_version = nullptr;
  GetText name = nullptr;
  GetText uuid = nullptr;
  GetMemory memory = nullptr;
  GetCapability capability = nullptr;
  GetNumber pcie_generation = nullptr;
  GetNumber pcie_most_width = nullptr;
  GetNumber pcie_width = nullptr;
  GetAffinity memory_affinity = nullptr;
  GetMigMode mig_mode = nullptr;
  GetNumber mig_most = nullptr;
  GetMigDevice mig_device = nullptr;
  GetLinkState link_state = nullptr;
  GetLinkNumber link_version = nullptr;
  GetLinkRemote link_remote = nullptr;
  GetLinkType link_type = nullptr;
  GetFields fields = nullptr;
  GetAncestor ancestor = nullptr;
  GetP2p p2p = nullptr;

 private:
  struct Close {
    void operator()(void* library) const;
  };
  template <class Function>
  bool find(const char* symbol, Function& function);
  bool find_all();

  std::unique_ptr<void, Close> library_;
  Init init_ = nullptr;
  Shutdown shutdown_ = nullptr;
  bool running_ = false;
};

}  // namespace chorus::nvml
