#include "base/files/draft.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace chorus {
namespace {

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAre;

class Drafts : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/chorus-drafts-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    gone_ = std::to_string(child);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void make(const std::string& name, std::chrono::minutes age) const {
    std::ofstream(folder_ / name) << "half";
    fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - age);
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_))
      all.push_back(entry.path().filename());
    return all;
  }

  fs::path folder_;
  std::string gone_;  ///< a process that has ended
};

TEST_F(Drafts, OfKilledWritersAreRemovedAndNothingElse) {
  using std::chrono::minutes;
  const std::string alive = std::to_string(::getpid());
  make("plan.json." + gone_, minutes(90));
  const std::vector<std::string> kept = {"plan.json",      "plan.json." + alive, "plan.json.old",
                                         "plan.json.12x4", "other." + gone_,     "plan.json.",
                                         "plan.json.-7"};
  for (const std::string& name : kept) make(name, minutes(90));
  remove_stale_drafts(folder_ / "plan.json");
  EXPECT_THAT(names(), testing::UnorderedElementsAreArray(kept));
}

TEST_F(Drafts, ThatAreYoungMayBeAnotherHosts) {
  make("plan.json." + gone_, std::chrono::minutes(1));
  remove_stale_drafts(folder_ / "plan.json");
  EXPECT_THAT(names(), UnorderedElementsAre("plan.json." + gone_));
}

TEST_F(Drafts, AFolderThatIsNotThereHasNone) {
  remove_stale_drafts(folder_ / "none" / "plan.json");
  EXPECT_THAT(names(), UnorderedElementsAre());
}

}  // namespace
}  // namespace chorus
