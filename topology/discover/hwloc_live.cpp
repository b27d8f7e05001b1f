#include "topology/discover/hwloc_live.hpp"

#include <fmt/format.h>
#include <hwloc.h>
#include <hwloc/distances.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "chorus/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace chorus {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

/// An empty topology that will keep the I/O devices Chorus cares about.
Handle empty() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    throw TopologyError("hwloc cannot be initialised: is there memory left?");
  }
  Handle handle(topology);
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return handle;
}

/// False if hwloc refuses.
bool load(const Handle& topology) {
#if defined(__SANITIZE_ADDRESS__)
  // hwloc's PCI plugin (2.9.0) leaks 1016 bytes of libpciaccess in every load and is unloaded
  // afterwards, so that no suppression by name can meet it.
  const __lsan::ScopedDisabler not_ours;
#endif
  return hwloc_topology_load(topology.get()) == 0;
}

HwObject::Os os_of(hwloc_obj_osdev_type_t type) {
  switch (type) {
    case HWLOC_OBJ_OSDEV_COPROC:
      return HwObject::Os::compute;
    case HWLOC_OBJ_OSDEV_NETWORK:
      return HwObject::Os::network;
    case HWLOC_OBJ_OSDEV_OPENFABRICS:
      return HwObject::Os::infiniband;
    default:
      return HwObject::Os::other;
  }
}

void read_pci(const decltype(hwloc_obj_attr_u::pcidev)& pci, HwObject& object) {
  object.address = {pci.domain, pci.bus, pci.dev, pci.func};
  object.pci_class = pci.class_id;
  object.pci_vendor = pci.vendor_id;
  object.link_gb_s = pci.linkspeed;
}

void read_attributes(hwloc_obj_t source, HwObject& object) {
  switch (source->type) {
    case HWLOC_OBJ_PACKAGE:
      object.type = HwObject::Type::package;
      return;
    case HWLOC_OBJ_NUMANODE:
      object.type = HwObject::Type::numa;
      object.bytes = source->attr->numanode.local_memory;
      return;
    case HWLOC_OBJ_CORE:
      object.type = HwObject::Type::core;
      return;
    case HWLOC_OBJ_PU:
      object.type = HwObject::Type::pu;
      object.unit = static_cast<int>(source->os_index);
      return;
    case HWLOC_OBJ_BRIDGE:
      object.type = HwObject::Type::bridge;
      object.host_bridge = source->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
      if (!object.host_bridge) read_pci(source->attr->bridge.upstream.pci, object);
      return;
    case HWLOC_OBJ_PCI_DEVICE:
      object.type = HwObject::Type::pci;
      read_pci(source->attr->pcidev, object);
      return;
    case HWLOC_OBJ_OS_DEVICE:
      object.type = HwObject::Type::os_device;
      object.os = os_of(source->attr->osdev.type);
      return;
    default:
      if (hwloc_obj_type_is_dcache(source->type) == 0) return;
      object.type = HwObject::Type::cache;
      object.cache_level = static_cast<int>(source->attr->cache.depth);
      object.bytes = source->attr->cache.size;
  }
}

HwObject object_of(hwloc_obj_t source) {
  HwObject object;
  object.id = source->gp_index;
  if (source->name != nullptr) object.name = source->name;
  for (unsigned i = 0; i < source->infos_count; ++i) {
    object.info.emplace(source->infos[i].name, source->infos[i].value);
  }
  read_attributes(source, object);
  for (hwloc_obj_t first :
       {source->memory_first_child, source->first_child, source->io_first_child}) {
    for (hwloc_obj_t child = first; child != nullptr; child = child->next_sibling) {
      object.children.push_back(object_of(child));
    }
  }
  return object;
}

void read_matrix(hwloc_topology_t topology, const char* name, const char* type,
                 HwMachine& machine) {
  unsigned count = 1;
  hwloc_distances_s* distances = nullptr;
  if (hwloc_distances_get_by_name(topology, name, &count, &distances, 0) != 0 || count == 0) return;
  HwMatrix matrix;
  matrix.type = type;
  const std::size_t size = distances->nbobjs;
  for (std::size_t i = 0; i < size; ++i) {
    matrix.objects.push_back(distances->objs[i] == nullptr ? 0 : distances->objs[i]->gp_index);
  }
  matrix.mb_s.assign(distances->values, distances->values + size * size);
  hwloc_distances_release(topology, distances);
  machine.matrices.push_back(std::move(matrix));
}

HwMachine machine_of(hwloc_topology_t topology, std::string name) {
  HwMachine machine{std::move(name), object_of(hwloc_get_root_obj(topology)), {}};
  read_matrix(topology, "NVLinkBandwidth", "nvlink", machine);
  read_matrix(topology, "XGMIBandwidth", "xgmi", machine);
  return machine;
}

Handle this_machine() {
  Handle topology = empty();
  if (!load(topology)) {
    throw TopologyError(
        "hwloc cannot read this machine's topology: is /sys mounted, and does lstopo work?");
  }
  return topology;
}

}  // namespace

std::string hwloc_xml() {
  const Handle topology = this_machine();
  char* buffer = nullptr;
  int length = 0;
  if (hwloc_topology_export_xmlbuffer(topology.get(), &buffer, &length, 0) != 0) {
    throw TopologyError("hwloc cannot write this machine's topology as XML: is there memory left?");
  }
  std::string text(buffer, static_cast<std::size_t>(length));
  hwloc_free_xmlbuffer(topology.get(), buffer);
  if (const auto end = text.find('\0'); end != std::string::npos) text.resize(end);
  return text;
}

HwMachine hwloc_machine(std::string name, bool& is_here) {
  const Handle topology = this_machine();
  is_here = hwloc_topology_is_thissystem(topology.get()) != 0;
  return machine_of(topology.get(), std::move(name));
}

HwMachine hwloc_synthetic(const std::string& description, std::string name) {
  const Handle topology = empty();
  if (description.empty() ||
      hwloc_topology_set_synthetic(topology.get(), description.c_str()) != 0 || !load(topology)) {
    throw InputError(
        fmt::format("hwloc does not understand the synthetic topology \"{}\": write it as lstopo "
                    "does, as in hwloc:numa:2 core:4 pu:1",
                    description));
  }
  return machine_of(topology.get(), std::move(name));
}

}  // namespace chorus
