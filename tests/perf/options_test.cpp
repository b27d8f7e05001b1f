#include "perf/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "chorus/error.hpp"

namespace chorus::perf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Library> kAvailable = {{"chorus", "/x/c"}, {"openmpi", "/x/o"}};

CommandLine parse(std::vector<const char*> words) {
  words.insert(words.begin(), "chorus-perf");
  return parse_options(static_cast<int>(words.size()), words.data(), kAvailable);
}

Settings settings(const std::vector<const char*>& words) {
  const CommandLine parsed = parse(words);
  if (const auto* leave = std::get_if<Leave>(&parsed)) ADD_FAILURE() << leave->text;
  return std::get<MeasureOptions>(parsed).settings;
}

/// The complaint about bad arguments.
std::string refused(const std::vector<const char*>& words) {
  const CommandLine parsed = parse(words);
  const auto* leave = std::get_if<Leave>(&parsed);
  if (leave == nullptr) return "accepted";
  EXPECT_EQ(leave->exit_code, 2);
  return leave->text;
}

TEST(Options, MeasureAllReduceOfAllLibrariesByDefault) {
  const Settings s = settings({});
  EXPECT_EQ(s.kinds, std::vector<Kind>{Kind::all_reduce});
  EXPECT_EQ(s.libraries.size(), 2U);
  EXPECT_EQ(s.ranks, 2);
  EXPECT_EQ(s.rounds, 3);
  EXPECT_EQ(s.sizes.front(), 4U);
  EXPECT_EQ(s.sizes.back(), 256U << 20);
  EXPECT_EQ(s.sizes.size(), 14U);
}

TEST(Options, TakeBenchmarksTypesAndSizes) {
  const Settings s = settings({"all_gather", "latency", "-n",       "4",       "-d", "float64",
                               "-o",         "max",     "-b",       "1K",      "-e", "1M",
                               "-f",         "2",       "-t",       "shm,tcp", "-l", "openmpi",
                               "--in-place", "--dirty", "--offset", "16"});
  EXPECT_EQ(s.kinds, (std::vector<Kind>{Kind::all_gather, Kind::latency}));
  EXPECT_EQ(s.type, DataType::float64);
  EXPECT_EQ(s.op, ReduceOp::max);
  EXPECT_EQ(s.sizes.size(), 11U);
  EXPECT_EQ(s.transports, (std::vector<std::string>{"shm", "tcp"}));
  ASSERT_EQ(s.libraries.size(), 1U);
  EXPECT_EQ(s.libraries[0].worker, "/x/o");
  EXPECT_TRUE(s.in_place && s.dirty);
  EXPECT_EQ(s.offset_bytes, 16);
}

TEST(Options, AllMeansEveryBenchmarkOnce) {
  EXPECT_EQ(settings({"latency", "all"}).kinds.size(), benchmarks().size());
}

TEST(Options, TakeFurtherWorkers) {
  const Settings s = settings({"--worker", "mine=/bin/mine", "-l", "mine,chorus"});
  ASSERT_EQ(s.libraries.size(), 2U);
  EXPECT_EQ(s.libraries[0].name, "mine");
  EXPECT_EQ(s.libraries[0].worker, "/bin/mine");
}

TEST(Options, QuickCoversEverythingOverBothTransports) {
  const Settings s = settings({"--quick"});
  EXPECT_EQ(s.kinds.size(), benchmarks().size());
  EXPECT_EQ(s.transports.size(), 2U);
  EXPECT_LE(s.sizes.size(), 3U);
  EXPECT_EQ(settings({"--quick", "broadcast"}).kinds, std::vector<Kind>{Kind::broadcast});
}

TEST(Options, MeasureOnGpusWhatCanUseThem) {
  const auto names = [](const CommandLine& parsed) {
    std::vector<std::string> result;
    for (const Library& library : std::get<MeasureOptions>(parsed).settings.libraries) {
      result.push_back(library.name);
    }
    return result;
  };
  const std::vector<Library> available = {{"chorus", "/x/c"}, {"openmpi", "/x/o"}, {"nccl", "/n"}};
  const auto with = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "chorus-perf");
    return parse_options(static_cast<int>(words.size()), words.data(), available);
  };
  EXPECT_THAT(names(with({})), ElementsAre("chorus", "openmpi"));
  EXPECT_THAT(names(with({"-t", "gpu"})), ElementsAre("chorus", "nccl"));
  EXPECT_THAT(names(with({"-t", "shm,gpu"})), ElementsAre("chorus", "openmpi", "nccl"));
  const CommandLine named = with({"-l", "nccl", "--nccl", "/y/libnccl.so.2"});
  EXPECT_THAT(std::get<MeasureOptions>(named).settings.libraries.at(0).settings,
              ElementsAre("--nccl", "/y/libnccl.so.2"));
}

TEST(Options, TheFormOfNcclTestsHasBothPlacements) {
  const CommandLine parsed = parse({"--format", "nccl-tests"});
  EXPECT_TRUE(std::get<MeasureOptions>(parsed).nccl_tests);
  EXPECT_FALSE(std::get<MeasureOptions>(parse({})).nccl_tests);
  EXPECT_THAT(refused({"--format", "nccl-tests", "--in-place"}), HasSubstr("--in-place"));
  EXPECT_THAT(refused({"--format", "nccl-tests", "--json", "r"}), HasSubstr("--json"));
  EXPECT_THAT(refused({"barrier", "--format", "nccl-tests"}), HasSubstr("no such test as barrier"));
  EXPECT_THAT(refused({"--format", "csv"}), HasSubstr("csv"));
}

TEST(Options, ExplainTakesWhatSchedulesDependOn) {
  const CommandLine parsed = parse({"all_gather", "-n", "4", "-t", "shm,tcp", "--explain"});
  const auto* options = std::get_if<ExplainOptions>(&parsed);
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->kinds, std::vector<Kind>{Kind::all_gather});
  EXPECT_EQ(options->ranks, 4);
  EXPECT_THAT(options->transports, ElementsAre("shm", "tcp"));
  EXPECT_EQ(options->sizes.back(), 16U << 20);
  EXPECT_THAT(refused({"--explain", "-l", "chorus"}), HasSubstr("excludes"));
  EXPECT_THAT(refused({"--explain", "--cluster", "homo"}), HasSubstr("excludes"));
  EXPECT_THAT(refused({"--explain", "-t", "shm,tcp", "--json", "x"}), HasSubstr("one transport"));
}

TEST(Options, VariantsAreNamedLikeLibraries) {
  const Settings s = settings({"-l", "chorus,chorus-allocated,openmpi-ring", "--host"});
  std::vector<std::string> names;
  for (const Library& library : s.libraries) names.push_back(library.name);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"chorus", "chorus-allocated", "openmpi-ring"}));
  EXPECT_EQ(std::count(names.begin(), names.end(), "chorus-allocated"), 1);
}

TEST(Options, NameWhatIsWrong) {
  EXPECT_THAT(refused({"all_pizzas"}), HasSubstr("all_pizzas"));
  EXPECT_THAT(refused({"-d", "float33"}), HasSubstr("float33"));
  EXPECT_THAT(refused({"--sizes", "16M", "--svg", "x.svg"}), HasSubstr("at least two sizes"));
  EXPECT_THAT(refused({"-o", "xor"}), HasSubstr("xor"));
  EXPECT_THAT(refused({"-b", "12X"}), HasSubstr("12X"));
  EXPECT_THAT(refused({"-b", "8", "-e", "4"}), HasSubstr("sizes from 8 to 4"));
  EXPECT_THAT(refused({"-f", "1"}), HasSubstr("--factor"));
  EXPECT_THAT(refused({"-l", "nccl"}), HasSubstr("nccl"));
  EXPECT_THAT(refused({"-t", "pigeon"}), HasSubstr("pigeon"));
  EXPECT_THAT(refused({"-n", "1"}), HasSubstr("--ranks"));
  EXPECT_THAT(refused({"--worker", "nameless"}), HasSubstr("NAME=PATH"));
  EXPECT_THAT(refused({"--no-such-option"}), HasSubstr("--no-such-option"));
}

TEST(Options, HelpShowsExamplesAndIsNoError) {
  const CommandLine parsed = parse({"--help"});
  const auto& leave = std::get<Leave>(parsed);
  EXPECT_EQ(leave.exit_code, 0);
  EXPECT_THAT(leave.text, HasSubstr("Examples:"));
  EXPECT_THAT(leave.text, HasSubstr("Exit code"));
}

TEST(Options, CompareTakesTwoFiles) {
  const CommandLine parsed = parse({"compare", "a.json", "b.json", "--fail-above", "1.1"});
  const auto& compare = std::get<CompareOptions>(parsed);
  EXPECT_EQ(compare.a, "a.json");
  EXPECT_EQ(compare.b, "b.json");
  EXPECT_EQ(compare.fail_above, 1.1);
  EXPECT_NE(refused({"compare", "a.json"}), "accepted");
}

TEST(Options, ShowTakesAFile) {
  const CommandLine parsed = parse({"show", "a.json", "--markdown", "--brief"});
  const auto& show = std::get<ShowOptions>(parsed);
  EXPECT_EQ(show.file, "a.json");
  EXPECT_EQ(show.style, Style::markdown);
  EXPECT_FALSE(show.details);
}

TEST(Options, TakeListsByBlanksAsByCommas) {
  const Settings s = settings({"-t", "shm", "tcp", "-l", "openmpi", "chorus", "all_gather",
                               "--sizes", "4", "64K", "-n", "4"});
  EXPECT_EQ(s.transports, (std::vector<std::string>{"shm", "tcp"}));
  EXPECT_EQ(s.libraries.size(), 2U);
  EXPECT_EQ(s.kinds, std::vector<Kind>{Kind::all_gather});
  EXPECT_EQ(s.sizes, (std::vector<std::uint64_t>{4, 65536}));
  EXPECT_EQ(settings({"all_gather,latency"}).kinds.size(), 2U);
  const CommandLine run = parse({"cluster", "check", "pairs", "--order", "0", "2", "1", "3"});
  EXPECT_EQ(std::get<ClusterOptions>(run).order, (std::vector<int>{0, 2, 1, 3}));
}

TEST(Options, SayWhatWasMeant) {
  EXPECT_THAT(refused({"allreduce"}), HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(refused({"All-To-All"}), HasSubstr("did you mean all_to_all?"));
  EXPECT_THAT(refused({"comapre", "a", "b"}), HasSubstr("did you mean compare?"));
  EXPECT_THAT(refused({"cluster", "chekc"}), HasSubstr("did you mean check?"));
  EXPECT_THAT(refused({"-t", "tpc"}), HasSubstr("did you mean tcp?"));
  EXPECT_THAT(refused({"--budgetms", "4"}), HasSubstr("did you mean --budget-ms?"));
}

TEST(Options, AnswerTheVersionAndHelp) {
  for (const char* word : {"--version", "--help", "help", "--man"}) {
    const CommandLine parsed = parse({word});
    const auto* leave = std::get_if<Leave>(&parsed);
    ASSERT_NE(leave, nullptr) << word;
    EXPECT_EQ(leave->exit_code, 0);
    EXPECT_THAT(leave->text, HasSubstr("chorus")) << word;
  }
}

TEST(Sizes, GrowByTheFactorUpToTheEnd) {
  EXPECT_EQ(sizes_between(4, 100, 4), (std::vector<std::uint64_t>{4, 16, 64}));
  EXPECT_EQ(sizes_between(4, 4, 2), std::vector<std::uint64_t>{4});
  EXPECT_EQ(sizes_between(4, 9, 1.5), (std::vector<std::uint64_t>{4, 6, 9}));
}

TEST(Sizes, AreRoundedToWholeBlocksWithoutRepeats) {
  Settings s;
  s.ranks = 4;
  s.sizes = {4, 8, 16, 64, 100};
  EXPECT_EQ(real_sizes(s, Kind::all_gather, s.ranks), (std::vector<std::uint64_t>{16, 64, 96}));
  EXPECT_EQ(real_sizes(s, Kind::all_reduce, s.ranks), s.sizes);
  EXPECT_EQ(real_sizes(s, Kind::barrier, s.ranks), std::vector<std::uint64_t>{0});
}

TEST(Options, SizesAreNamedInWholeElements) {
  EXPECT_THAT(refused({"--sizes", "4,3"}),
              HasSubstr("--sizes 3: no whole number of float32 elements of 4 bytes"));
  EXPECT_THAT(refused({"--sizes", "4", "-d", "float64"}), HasSubstr("float64 elements of 8"));
  EXPECT_EQ(settings({"--sizes", "3", "-d", "uint8"}).sizes, std::vector<std::uint64_t>{3});
  EXPECT_EQ(settings({"--cluster-table", "-d", "float64"}).sizes.front(), 4U) << "not the user's";
}

TEST(Options, ClusterHasItsOwnCommands) {
  const CommandLine run = parse({"cluster", "run", "pairs", "--order", "0,2,1,3", "--launcher",
                                 "openmpi", "--", "prog", "--flag"});
  const auto& options = std::get<ClusterOptions>(run);
  EXPECT_EQ(options.action, ClusterOptions::Action::run);
  EXPECT_EQ(options.launcher, ClusterOptions::Launcher::openmpi);
  EXPECT_EQ(options.topology, "pairs");
  EXPECT_EQ(options.order, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(options.program, (std::vector<std::string>{"prog", "--flag"}));
  const CommandLine check = parse({"cluster", "check", "homo", "--mtu", "9000"});
  EXPECT_EQ(std::get<ClusterOptions>(check).action, ClusterOptions::Action::check);
  EXPECT_EQ(std::get<ClusterOptions>(check).cables.mtu, 9000);
  EXPECT_THAT(refused({"cluster"}), HasSubstr("subcommand"));
  EXPECT_THAT(refused({"cluster", "run", "pairs"}), HasSubstr("PROGRAM"));
  for (const char* wrong : {"0,2,x", "-1,0", "-"}) {
    EXPECT_THAT(refused({"cluster", "check", "pairs", "--order", wrong}), HasSubstr("0,2,1,3"));
  }
}

TEST(Options, ARangeOfSeedsIsOneClusterEach) {
  const Settings range = settings({"--cluster", "random:9..11,rate=0.1", "--undescribed"});
  ASSERT_EQ(range.clusters.size(), 3U);
  EXPECT_EQ(range.clusters[0].topology, "random:9,rate=0.1");
  EXPECT_EQ(range.clusters[2].name(), "random:11,rate=0.1");
  EXPECT_FALSE(range.clusters[1].described);
  EXPECT_FALSE(range.cores);
  EXPECT_THAT(refused({"--cluster", "random:3..1"}),
              AllOf(HasSubstr("column 11"), HasSubstr("from 3 to 1002, not 1")));
  EXPECT_THAT(refused({"--cluster", "random:1..9999"}), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(refused({"--cluster", "random:0..3"}), HasSubstr("column 8"));
  EXPECT_THAT(refused({"--cluster", "random-lan:2..x,rate=1"}), HasSubstr("column 15"));
}

TEST(Options, TheRandomClustersAreThirtyUndescribedAndTellCoresApart) {
  const Settings all = settings({"--random-clusters"});
  EXPECT_EQ(all.clusters.size(), 30U);
  EXPECT_EQ(all.kinds.size(), 4U);
  EXPECT_THAT(all.sizes, ElementsAre(16U << 20));
  EXPECT_TRUE(all.cores);
  EXPECT_FALSE(all.clusters.front().described);
  EXPECT_EQ(settings({"--random-clusters", "--cluster", "random:2..4"}).clusters.size(), 3U);
  EXPECT_THAT(refused({"--continue"}), HasSubstr("--json"));
  EXPECT_THAT(refused({"--cores"}), HasSubstr("--cluster"));
}

TEST(Options, AShownClusterNeedsNoMore) {
  const CommandLine show = parse({"cluster", "show", "random:7", "--json", "t.json"});
  const auto& options = std::get<ClusterOptions>(show);
  EXPECT_EQ(options.action, ClusterOptions::Action::show);
  EXPECT_EQ(options.topology, "random:7");
  EXPECT_EQ(options.json, "t.json");
}

}  // namespace
}  // namespace chorus::perf
