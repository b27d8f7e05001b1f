// How much of the cores control groups leave.
#include "runtime/engine/cpu_quota.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace chorus {
namespace {

class CpuQuota : public ::testing::Test {
 protected:
  ~CpuQuota() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root_ = ::testing::TempDir() + "chorus-quota-" + std::to_string(::getpid());
};

TEST_F(CpuQuota, OfVersion2IsTheLeastOfTheGroupAndThoseAroundIt) {
  write("/proc/self/cgroup", "0::/pod/box\n");
  write("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root_), 0);
  write("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root_), 2.5);
  write("/sys/fs/cgroup/pod/box/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root_), 0.5);
  write("/sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root_), 0.2) << "a container sees its own group as the root";
}

TEST_F(CpuQuota, OfVersion1IsReadWhereTheControllerIs) {
  write("/proc/self/cgroup", "12:memory:/a\n4:cpu,cpuacct:/a\n0::/\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), 0);
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root_), 4);
}

TEST_F(CpuQuota, WhatMakesNoSenseIsNoLimit) {
  EXPECT_EQ(cpu_quota(root_), 0) << "no such files";
  for (const char* group : {"", "0:", "rubbish", "0::relative", "::::", "0::/a"}) {
    for (const char* text : {"", "max", "1", "x y", "-5 100000", "100000 0", "nan nan"}) {
      write("/proc/self/cgroup", group);
      write("/sys/fs/cgroup/a/cpu.max", text);
      EXPECT_EQ(cpu_quota(root_), 0) << group << ", " << text;
    }
  }
}

}  // namespace
}  // namespace chorus
