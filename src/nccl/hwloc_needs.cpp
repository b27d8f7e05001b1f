// What hwloc needs when it is linked statically.
#include <cerrno>
#include <cstdio>

struct udev;
struct udev_device;

extern "C" {

// Its names for variables of the C library (CMakeLists.txt), set before anything can ask for them.
extern FILE* chorus_hwloc_stderr;
extern FILE* chorus_hwloc_stdout;
extern char* chorus_hwloc_program;
FILE* chorus_hwloc_stderr = nullptr;
FILE* chorus_hwloc_stdout = nullptr;
char* chorus_hwloc_program = nullptr;

[[gnu::constructor]] static void set_variables() {
  chorus_hwloc_stderr = stderr;
  chorus_hwloc_stdout = stdout;
  chorus_hwloc_program = program_invocation_name;
}

// In place of libudev, which there is no archive of. hwloc asks it what disks are called, and
// nobody here asks hwloc for disks.

udev* udev_new();
udev* udev_new() { return nullptr; }

udev* udev_unref(udev* all);
udev* udev_unref(udev* /*all*/) { return nullptr; }

udev_device* udev_device_new_from_subsystem_sysname(udev* all, const char* subsystem,
                                                    const char* name);
udev_device* udev_device_new_from_subsystem_sysname(udev* /*all*/, const char* /*subsystem*/,
                                                    const char* /*name*/) {
  return nullptr;
}

udev_device* udev_device_unref(udev_device* device);
udev_device* udev_device_unref(udev_device* /*device*/) { return nullptr; }

const char* udev_device_get_property_value(udev_device* device, const char* key);
const char* udev_device_get_property_value(udev_device* /*device*/, const char* /*key*/) {
  return nullptr;
}

}  // extern "C"
