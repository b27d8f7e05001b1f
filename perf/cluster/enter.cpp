// chorus-perf-enter: runs a command on a host of an emulated cluster. Stands in for ssh under
// mpirun (Open MPI's plm_rsh_agent, MPICH's -launcher-exec) and is handy by hand:
//
//   chorus-perf-enter [options of ssh, ignored] HOST|ADDRESS COMMAND...
//
// As with ssh the words of the command are joined by blanks and given to a shell. The cluster is
// the one whose hosts file CHORUS_PERF_CLUSTER names.
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "perf/cluster/namespaces.hpp"

namespace {

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "chorus-perf-enter: %s\n", why.c_str());
  std::exit(255);  // what ssh returns when it fails itself
}

struct Host {
  std::string name, address, directory;
  pid_t keeper = -1;
};

Host find_host(const std::string& wanted) {
  const char* path = std::getenv("CHORUS_PERF_CLUSTER");
  if (path == nullptr) fail("CHORUS_PERF_CLUSTER is not set: chorus-perf cluster prints it");
  std::ifstream file(path);
  for (Host host; file >> host.name >> host.address >> host.keeper >> host.directory;) {
    if (host.name == wanted || host.address == wanted) return host;
  }
  fail(std::string(path) + " knows no host \"" + wanted + "\"");
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    if (std::strcmp(argv[i], "-l") == 0) ++i;  // the user
  }
  if (i + 1 >= argc) fail("usage: chorus-perf-enter HOST COMMAND...");
  const Host host = find_host(argv[i++]);
  std::string command;
  for (; i < argc; ++i) command += (command.empty() ? "" : " ") + std::string(argv[i]);
  char directory[4096];
  if (::getcwd(directory, sizeof directory) == nullptr) std::strcpy(directory, "/");
  if (!chorus::perf::enter_host(host.keeper, directory)) {
    fail(host.name + " cannot be entered: " + std::strerror(errno));
  }
  ::setenv("TMPDIR", host.directory.c_str(), 1);
  ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  fail(std::string("/bin/sh: ") + std::strerror(errno));
}
