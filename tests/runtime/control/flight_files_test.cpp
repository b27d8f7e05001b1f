// Flight records: nobody else can prepare or read them, and they do not pile up.
#include "runtime/options/flight_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "chorus/error.hpp"

namespace chorus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class FlightFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/chorus-flight-files-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    ::unsetenv("XDG_STATE_HOME");
    ::setenv("TMPDIR", root_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    fs::remove_all(root_);
  }
  [[nodiscard]] std::string private_folder() const {
    return fmt::format("{}/chorus-{}", root_.string(), ::geteuid());
  }
  static std::string complaint(const std::string& flight_dir) {
    try {
      return write_flight(flight_dir, kJob, "world", 0, "{}");
    } catch (const InputError& error) {
      return error.what();
    }
  }
  static std::string content(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static unsigned mode(const fs::path& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
  }
  static std::size_t count(const fs::path& folder) {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }

  static constexpr const char* kJob = "20261123T014209-9a401bc8";
  fs::path root_;
};

TEST_F(FlightFiles, AreTheOwnersAloneInAFolderOfItsOwn) {
  const std::string path = write_flight("auto", kJob, "world/0", 3, "{}");
  EXPECT_EQ(path, fmt::format("{}/chorus-flight-{}-world_0-3-{}.json", private_folder(), kJob,
                              ::getpid()));
  EXPECT_EQ(mode(path), 0600U);
  EXPECT_EQ(mode(private_folder()), 0700U);
  EXPECT_EQ(content(path), "{}");
}

TEST_F(FlightFiles, GoToTheStateFolderWhereThereIsOne) {
  ::setenv("XDG_STATE_HOME", (root_ / "not" / "yet").c_str(), 1);
  EXPECT_THAT(write_flight("auto", kJob, "world", 0, "{}"),
              HasSubstr((root_ / "not" / "yet" / "chorus").string()));
}

// Whatever stands where a record is to go: a link to a file or to nothing, a file, a pipe, a
// folder.
TEST_F(FlightFiles, NeverReplaceOrFollowWhatStandsThere) {
  const fs::path victim = root_ / "victim";
  std::ofstream(victim) << "precious";
  for (const bool automatic : {true, false}) {
    const std::string flight_dir = automatic ? "auto" : (root_ / "named").string();
    const fs::path record = write_flight(flight_dir, kJob, "world", 0, "{}");
    for (const std::string kind : {"link", "dangling", "hard link", "file", "pipe", "folder"}) {
      fs::remove_all(record);
      if (kind == "link") fs::create_symlink(victim, record);
      if (kind == "dangling") fs::create_symlink(root_ / "new", record);
      if (kind == "hard link") fs::create_hard_link(victim, record);
      if (kind == "file") std::ofstream(record) << "first";
      if (kind == "pipe") {
        ASSERT_EQ(::mkfifo(record.c_str(), 0600), 0);
      }
      if (kind == "folder") fs::create_directory(record);
      EXPECT_THAT(complaint(flight_dir), AllOf(HasSubstr(record.string()), HasSubstr("File exists"),
                                               HasSubstr("CHORUS_FLIGHT_DIR")))
          << kind;
      if (kind == "file") {
        EXPECT_EQ(content(record), "first");
      }
    }
    EXPECT_EQ(content(victim), "precious");
    EXPECT_FALSE(fs::exists(root_ / "new"));
  }
}

TEST_F(FlightFiles, AreNotWrittenThroughALinkInPlaceOfTheFolder) {
  fs::create_directory(root_ / "elsewhere");
  fs::create_directory_symlink(root_ / "elsewhere", private_folder());
  EXPECT_THAT(complaint("auto"), HasSubstr(private_folder()));
  EXPECT_EQ(count(root_ / "elsewhere"), 0U);
}

TEST_F(FlightFiles, AreNotWrittenIntoAFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a folder another user's";
  fs::create_directory(private_folder());
  ASSERT_EQ(::chown(private_folder().c_str(), 65534, 65534), 0);
  EXPECT_THAT(complaint("auto"), HasSubstr("belongs to user 65534, not to 0"));
  EXPECT_EQ(count(private_folder()), 0U);
}

TEST_F(FlightFiles, CloseAFolderThatIsOpenToOthers) {
  fs::create_directory(private_folder());
  ASSERT_EQ(::chmod(private_folder().c_str(), 0777), 0);
  (void)write_flight("auto", kJob, "world", 0, "{}");
  EXPECT_EQ(mode(private_folder()), 0700U);
}

TEST_F(FlightFiles, OfTheLatestJobsAreKept) {
  std::ofstream(root_ / "other") << "not ours";
  fs::create_directory(private_folder());
  fs::rename(root_ / "other", fs::path(private_folder()) / "notes.txt");
  for (std::size_t i = 0; i < 2 * kFlightJobs; ++i) {
    const std::string job = flight_job(1'800'000'000'000'000 + i * 1'000'000, "0123456789abcdef");
    for (const int rank : {0, 1}) (void)write_flight("auto", job, "world", rank, "{}");
    // As long ago as their names say: all were written within a second.
    for (const auto& entry : fs::directory_iterator(private_folder())) {
      fs::last_write_time(entry.path(),
                          fs::last_write_time(entry.path()) - std::chrono::seconds(1));
    }
  }
  EXPECT_EQ(count(private_folder()), 2 * kFlightJobs + 1);
  const auto latest = latest_flights(private_folder());
  ASSERT_EQ(latest.size(), 2U);
  EXPECT_THAT(latest[0], HasSubstr("chorus-flight-20270115T080031-01234567-world-0-"));
  EXPECT_TRUE(fs::exists(fs::path(private_folder()) / "notes.txt"));
}

TEST_F(FlightFiles, OfOneProcessOrOldAreNotKeptWithoutEnd) {
  for (std::size_t i = 0; i < 2 * kFlightsOfProcess; ++i) {
    (void)write_flight("auto", kJob, fmt::format("world.{}", i), 0, "{}");
  }
  EXPECT_EQ(count(private_folder()), kFlightsOfProcess);
  for (const auto& entry : fs::directory_iterator(private_folder())) {
    fs::last_write_time(entry.path(), fs::last_write_time(entry.path()) -
                                          std::chrono::hours(24 * (kFlightDays + 1)));
  }
  const std::string last = write_flight("auto", kJob, "last", 0, "{}");
  EXPECT_THAT(latest_flights(private_folder()), ElementsAre(last));
}

TEST_F(FlightFiles, InAFolderThatTheUserNamesAreTheUsersToRemove) {
  const std::string named = root_ / "named";
  for (std::size_t i = 0; i < 2 * kFlightsOfProcess; ++i) {
    (void)write_flight(named, kJob, fmt::format("world.{}", i), 0, "{}");
  }
  EXPECT_EQ(count(named), 2 * kFlightsOfProcess);
}

TEST_F(FlightFiles, ThatAreNotThereAreSaidToBeMissing) {
  try {
    (void)latest_flights(root_);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there are no flight records in " + root_.string()));
  }
}

}  // namespace
}  // namespace chorus
