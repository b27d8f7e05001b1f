// Files that a run leaves behind are whole or not there, and what cannot be written is known
// before.
#include "report/outputs.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "chorus/error.hpp"

namespace trainer::testing {
namespace {

namespace fs = std::filesystem;

class Outputs : public ::testing::Test {
 protected:
  Outputs() {
    std::string name = (fs::temp_directory_path() / "outputs-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Outputs() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string at(const char* name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string said(const std::function<void()>& what) {
    try {
      what();
    } catch (const chorus::InputError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

/// No file may be longer while this lives: a full disk, for files alone.
class Limit {
 public:
  explicit Limit(rlim_t bytes) : ignored_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  ~Limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, ignored_);
  }

 private:
  rlimit before_{};
  void (*ignored_)(int);
};

TEST_F(Outputs, AreReplacedWholeOrStay) {
  const std::string path = at("report.json");
  write_output(path, "before");
  EXPECT_EQ(read(path), "before");
  {
    const Limit limit(1000);
    EXPECT_EQ(said([&] { write_output(path, std::string(5000, 'x')); }),
              "cannot write " + path + ": File too large");
  }
  EXPECT_EQ(read(path), "before");
  EXPECT_EQ(files(), 1);
  write_output(path, "after");
  EXPECT_EQ(read(path), "after");
  EXPECT_EQ(files(), 1);
}

TEST_F(Outputs, GoWhereALinkPoints) {
  write_output(at("file"), "before");
  fs::create_symlink(at("file"), at("link"));
  write_output(at("link"), "after");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(read(at("file")), "after");
  fs::create_symlink("/dev/full", at("full"));
  EXPECT_EQ(said([&] { write_output(at("full"), "x"); }),
            "cannot write " + at("full") + ": No space left on device");
  EXPECT_TRUE(fs::is_symlink(at("full")));
}

TEST_F(Outputs, AreCheckedBeforeTheyAreMade) {
  EXPECT_EQ(said([&] { check_output(at("new.json")); }), "");
  EXPECT_EQ(files(), 0);
  EXPECT_EQ(said([&] { check_output(at("absent/new.json")); }),
            "cannot write " + at("absent/new.json") + ": there is no directory " + at("absent"));
  EXPECT_EQ(said([&] { check_output(folder_.string()); }),
            "cannot write " + folder_.string() + ": it is a directory");
}

TEST_F(Outputs, HaveAFileEach) {
  EXPECT_EQ(said([&] { check_outputs({at("a.json"), "", at("b.json"), ""}); }), "");
  const std::string other_name = (folder_ / "." / "a.json").string();
  const std::string why = ": it is given for two outputs; take another file for one of them";
  EXPECT_EQ(said([&] {
              check_outputs({at("a.json"), other_name});
            }),
            "cannot write " + other_name + why);
  write_output(at("a.json"), "before");
  EXPECT_EQ(said([&] {
              check_outputs({at("a.json"), at("b.json"), at("a.json")});
            }),
            "cannot write " + at("a.json") + why);
  EXPECT_EQ(said([] { check_outputs({"/dev/null", "/dev/null"}); }), "");
  EXPECT_EQ(said([&] { check_outputs({at("absent/a.json")}); }),
            "cannot write " + at("absent/a.json") + ": there is no directory " + at("absent"));
}

TEST_F(Outputs, OfTimelinesHaveAPictureBeside) {
  EXPECT_EQ(picture_of("a.json"), "a.svg");
  EXPECT_EQ(picture_of("run.1/trace"), "run.1/trace.svg");
  EXPECT_EQ(said([] { static_cast<void>(picture_of("x/a.svg")); }),
            "--trace x/a.svg is the name of its picture; take another for the timeline, say "
            "x/a.json");
}

}  // namespace
}  // namespace trainer::testing
