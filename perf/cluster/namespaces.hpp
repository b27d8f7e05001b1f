// How a process comes to live on a host of an emulated cluster.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

namespace chorus::perf {

/// Makes the network, name and mounts of `keeper` this process's own and `directory` its working
/// directory. False, with errno, where that cannot be. Allocates nothing: callers may have forked.
inline bool enter_host(pid_t keeper, const char* directory) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/root", static_cast<int>(keeper));
  // With other mounts come their own root and working directory: in a chroot, not the keeper's.
  const int root = ::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  const auto host = static_cast<int>(::syscall(SYS_pidfd_open, keeper, 0));
  return root >= 0 && host >= 0 && ::setns(host, CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) == 0 &&
         ::fchdir(root) == 0 && ::chroot(".") == 0 && ::chdir(directory) == 0;
}

}  // namespace chorus::perf
