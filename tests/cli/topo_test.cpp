// chorus topo as a shell sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace chorus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Result {
  int exit_code = -1;
  std::string output;  // both streams
};

/// Runs "chorus ARGUMENTS" in a shell; `environment` are assignments before it.
Result chorus(const std::string& arguments, const std::string& environment = "") {
  Result result;
  const std::string line = environment + " '" CHORUS_COMMAND "' " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) {
    result.output.append(buffer, got);
  }
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

class TopoCommand : public ::testing::Test {
 protected:
  TopoCommand() {
    std::string pattern = (std::filesystem::temp_directory_path() / "chorus-topo-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~TopoCommand() override { std::filesystem::remove_all(directory_); }
  std::string file(const std::string& name) const { return (directory_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
    return file(name);
  }

  std::filesystem::path directory_;
};

TEST_F(TopoCommand, PrintsTheTreeAndTheLinks) {
  const Result result = chorus("topo '2*ndv2'");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("16 ranks"), HasSubstr("├─ host0/cpu0"),
                                   HasSubstr("infiniband"), HasSubstr("host1/nic0 out")));
}

TEST_F(TopoCommand, DiscoversThisMachineByDefault) {
  const Result result = chorus("topo");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("numa0"));
}

TEST_F(TopoCommand, ARecordIsReadAsTheMachineItWasMadeOn) {
  const std::string record = file("record");
  const Result made = chorus("topo --record " + record);
  EXPECT_EQ(made.exit_code, 0) << made.output;
  const Result here = chorus("topo --json");
  const Result read = chorus("topo " + record + " --json");
  EXPECT_EQ(read.exit_code, 0);
  EXPECT_EQ(read.output, here.output);
  std::filesystem::remove(record + "/nvml.json");  // a record made by hand, with lstopo
  std::filesystem::remove(record + "/host.json");
  EXPECT_EQ(chorus("topo " + record).exit_code, 0);
  std::filesystem::remove(record + "/hwloc.xml");
  const Result empty = chorus("topo " + record);
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.output, HasSubstr("holds no hwloc.xml"));
  EXPECT_EQ(chorus("topo --record " + write("occupied", "")).exit_code, 2);
}

TEST_F(TopoCommand, JsonComesBackAsItWent) {
  const Result first = chorus("topo mi250 --json");
  EXPECT_EQ(first.exit_code, 0);
  const std::string path = write("mi250.json", first.output);
  EXPECT_EQ(chorus("topo " + path + " --json").output, first.output);
  EXPECT_EQ(chorus("topo - --json < " + path).output, first.output);
}

TEST_F(TopoCommand, ListsTheCatalog) {
  const Result result = chorus("topo --list");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("dgx-a100"), HasSubstr("dragonfly")));
}

TEST_F(TopoCommand, BadInputIsCodeTwoAndOneSentence) {
  const std::string kBad[] = {"dgx-a10",
                              "nowhere.json",
                              "/nowhere/at/all",
                              "ring:8,rate=fast",
                              write("broken.json", "{"),
                              write("empty.xml", ""),
                              write("graph.xml", "<graphs version=\"1\"/>"),
                              directory_.string(),
                              "- < /dev/null"};
  for (const std::string& source : kBad) {
    const std::string arguments = "topo " + source;
    const Result result = chorus(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_THAT(result.output, StartsWith("chorus topo: ")) << arguments;
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  }
  EXPECT_THAT(chorus("topo dgx-a10").output, HasSubstr("did you mean dgx-a100?"));
}

TEST_F(TopoCommand, BadUsageIsCodeTwo) {
  EXPECT_EQ(chorus("").exit_code, 2);
  EXPECT_EQ(chorus("topography").exit_code, 2);
  EXPECT_EQ(chorus("topo --colour").exit_code, 2);
  EXPECT_EQ(chorus("topo dgx1 dgx2").exit_code, 2);
}

TEST_F(TopoCommand, HelpHasAnExample) {
  const Result result = chorus("topo --help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("Examples:"));
  EXPECT_THAT(chorus("--version").output, StartsWith("chorus "));
}

TEST_F(TopoCommand, DrawsWhatItKnows) {
  if (std::system("dot -V > /dev/null 2>&1") != 0) GTEST_SKIP() << "graphviz is not installed";
  for (const char* name : {"dgx1", "'2*dgx-a100'", "''", "z52", "'2*ndv2'", "cpu:2x4", "pcie8",
                           "torus:3x3", "dragonfly:3x2x2", "fat-tree:2x2x2", "ring:1", "nvl72"}) {
    const std::string path = file("picture.svg");
    const Result result = chorus(std::string("topo ") + name + " --svg " + path);
    EXPECT_EQ(result.exit_code, 0) << name << result.output;
    std::ifstream svg(path);
    const std::string text{std::istreambuf_iterator<char>(svg), {}};
    EXPECT_THAT(text, AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), HasSubstr("rank 0"))) << name;
    std::filesystem::remove(path);
  }
}

TEST_F(TopoCommand, NamesWithMarkupAreDrawnAsText) {
  if (std::system("dot -V > /dev/null 2>&1") != 0) GTEST_SKIP() << "graphviz is not installed";
  std::string json = chorus("topo ring:2 --json").output;
  const std::string evil = "<b>&\\\"\\\\ ];";
  json.replace(json.find("ring:2"), 6, evil);
  json.replace(json.find("\"link\""), 6, "\"" + evil + "\"");
  const std::string path = write("evil.json", json);
  const Result result = chorus("topo " + path + " --svg -");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("&lt;b&gt;"));
}

TEST_F(TopoCommand, WithoutGraphvizItSaysSo) {
  const Result result = chorus("topo dgx1 --svg " + file("x.svg"), "PATH=/nowhere");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, AllOf(HasSubstr("graphviz"), HasSubstr("install")));
}

TEST_F(TopoCommand, RefusesPicturesNobodyCouldRead) {
  const Result result = chorus("topo ring:2000 --svg " + file("x.svg"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("too many for a picture"));
}

TEST_F(TopoCommand, AFullDiskIsNoticed) {
  for (const char* what : {"topo dgx1", "topo dgx1 --json", "topo --list", "--help"}) {
    const Result result = chorus(std::string(what) + " 3>&1 > /dev/full 2>&3 #");
    EXPECT_EQ(result.exit_code, 2) << what;
    EXPECT_THAT(result.output, HasSubstr("standard output cannot be written: No space left"));
  }
}

TEST_F(TopoCommand, APictureThatDoesNotFitLeavesNoFile) {
  if (std::system("dot -V > /dev/null 2>&1") != 0) GTEST_SKIP() << "graphviz is not installed";
  const Result result =
      chorus("topo dgx1 --svg " + file("x.svg"), "trap '' XFSZ; ulimit -f 4; exec");
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_TRUE(std::filesystem::is_empty(directory_)) << result.output;
}

// Names of nodes have slashes, as paths have.
TEST_F(TopoCommand, EveryExampleOfItsPageIsUnderstood) {
  std::ifstream page(CHORUS_DOCS "/topologies.md");
  const std::string prompt = "chorus topo ";
  int examples = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with(prompt)) continue;
    const Result result = chorus(line.substr(prompt.find(' ') + 1));
    EXPECT_EQ(result.exit_code, 0) << line << ": " << result.output;
    ++examples;
  }
  EXPECT_GE(examples, 10);
  EXPECT_EQ(chorus("synth 2*dgx1,slow=host0/nic0:0.5 --only classic -o " + file("p")).exit_code, 0);
  EXPECT_THAT(chorus("topo no/such,file").output, HasSubstr("cannot be opened"));
  EXPECT_THAT(chorus("topo 2*dgx1,without=host1/gpu9").output, HasSubstr("column"));
}

// What a file calls its parts must not draw on the terminal.
TEST_F(TopoCommand, NamesStayOnTheirLineAndInTheirDirection) {
  std::string json = chorus("topo ring:2 --json").output;
  json.replace(json.find("ring:2"), 6, "two\\nlines\\u202e\xe2\x80\xaeturned\\u009b");
  const std::string path = write("names.json", json);
  for (const std::string command : {"topo ", "explain all_reduce 1K -t ", "topo --svg - "}) {
    const Result result = chorus(command + path);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("two\\nlines\\u202e\\u202eturned\\u009b")) << command;
  }
}

// Memory that is exhausted is named, whoever asked for it. Sanitizers reserve more than all of it.
TEST_F(TopoCommand, ExhaustedMemoryIsASentence) {
  if (std::system("ldd '" CHORUS_COMMAND "' | grep -qE 'lib(asan|tsan|ubsan)'") == 0) {
    GTEST_SKIP() << "a sanitizer reserves memory of its own";
  }
  const Result result =
      chorus("schedule ring all_reduce -n 4096 3>&1 > /dev/null 2>&3 #", "ulimit -v 400000; exec");
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("memory is exhausted"));
}

}  // namespace
}  // namespace chorus
