#include "command/command_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "command/arguments.hpp"

namespace chorus {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A program with two subcommands, one of them with every kind of list.
struct Program {
  CLI::App app{"Does things.\nAt length.", "prog"};
  std::string topology;
  std::vector<std::uint64_t> sizes;
  std::vector<std::string> kinds;
  std::vector<int> levels;

  Program() {
    add_common_options(app);
    app.require_subcommand(1);
    CLI::App* const synth = app.add_subcommand("synth", "Makes schedules");
    synth->add_option("topology", topology, "what for");
    synth->add_option("-b,--bytes", sizes, "sizes")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->transform(byte_size());
    synth->add_option("-c,--collectives", kinds, "kinds")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(collective());
    synth->add_option("--levels", levels, "levels")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::PositiveNumber);
    app.add_subcommand("verify", "Proves schedules");
  }

  std::optional<Leave> read(std::vector<const char*> words) {
    words.insert(words.begin(), "prog");
    return read_command_line(app, static_cast<int>(words.size()), words.data());
  }
  /// The complaint about these words.
  std::string refused(const std::vector<const char*>& words) {
    const auto leave = read(words);
    if (!leave) return "accepted";
    EXPECT_EQ(leave->exit_code, 2) << leave->text;
    return leave->text;
  }
};

TEST(CommandLine, TakesListsByCommasByBlanksAndByBoth) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"synth", "-b", "1K,1M,4", "ring:4"},
        {"synth", "-b", "1K", "1M", "4", "ring:4"},
        {"synth", "--bytes=1K", "1M,4", "ring:4"},
        {"synth", "-b", "1K", "-b", "1M", "4", "ring:4"},
        {"synth", "ring:4", "--bytes", "1K", "1M", "4"}}) {
    Program program;
    EXPECT_FALSE(program.read(words));
    EXPECT_THAT(program.sizes, ElementsAre(1024, 1 << 20, 4));
    EXPECT_EQ(program.topology, "ring:4");
  }
  Program program;
  EXPECT_FALSE(
      program.read({"synth", "-c", "all_reduce", "all_gather", "--levels", "8", "4", "dgx1"}));
  EXPECT_THAT(program.kinds, ElementsAre("all_reduce", "all_gather"));
  EXPECT_THAT(program.levels, ElementsAre(8, 4));
  EXPECT_EQ(program.topology, "dgx1");
}

TEST(CommandLine, EndsAListAtTheFirstWordOfAnotherKind) {
  Program program;
  EXPECT_THAT(program.refused({"synth", "ring:4", "-b", "1K", "1Q"}),
              HasSubstr("'1Q' is not expected"));
  EXPECT_THAT(Program().refused({"synth", "-b", "1Q"}), HasSubstr("\"1Q\" is not a size"));
  // A value that is missing is not the next option.
  EXPECT_THAT(Program().refused({"synth", "-b", "-c", "all_reduce"}), HasSubstr("prog synth: "));
}

TEST(CommandLine, NamesTheCommandInEveryUsageError) {
  EXPECT_EQ(Program().refused({"synth", "--byte", "4"}),
            "prog synth: there is no option --byte; did you mean --bytes? See prog synth --help\n");
  EXPECT_THAT(Program().refused({"synth", "-b", "x"}), HasSubstr("prog synth: "));
  EXPECT_THAT(Program().refused({"synth", "--byte=4"}), HasSubstr("did you mean --bytes?"));
  EXPECT_THAT(Program().refused({"--frobnicate"}), HasSubstr("prog: there is no option"));
  EXPECT_THAT(Program().refused({}), HasSubstr("see prog --help"));
}

TEST(CommandLine, SaysWhatWasMeantInAnyCase) {
  for (const char* word : {"verfiy", "Verify", "verifyy", "VERIFI"}) {
    EXPECT_EQ(Program().refused({word}), "prog: there is no command '" + std::string(word) +
                                             "'; did you mean verify? See prog --help\n");
  }
  EXPECT_THAT(Program().refused({"qqqqqqqqqq"}), HasSubstr("use synth, verify"));
  for (const char* word : {"allreduce", "AllReduce", "all-reduce"}) {
    EXPECT_THAT(Program().refused({"synth", "-c", word}), HasSubstr("did you mean all_reduce?"));
  }
}

TEST(CommandLine, AnswersHelpAndVersionAsWordsAndAsOptions) {
  const auto help = Program().read({"--help"});
  ASSERT_TRUE(help);
  EXPECT_EQ(help->exit_code, 0);
  EXPECT_EQ(Program().read({"help"})->text, help->text);
  const auto synth = Program().read({"synth", "--help"});
  EXPECT_THAT(synth->text, HasSubstr("--bytes"));
  EXPECT_EQ(Program().read({"help", "synth"})->text, synth->text);
  EXPECT_THAT(Program().refused({"help", "sinth"}), HasSubstr("did you mean synth?"));
  EXPECT_THAT(Program().read({"--version"})->text,
              ContainsRegex("^prog [0-9]+[.][0-9]+[.][0-9]+\n$"));
}

TEST(Sizes, AreReadWithTheirUnits) {
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("512B"), 512U);
  EXPECT_EQ(parse_size("64K"), 65536U);
  EXPECT_EQ(parse_size("64k"), 65536U);
  EXPECT_EQ(parse_size("1MiB"), 1U << 20);
  EXPECT_EQ(parse_size("2G"), 2ULL << 30);
  EXPECT_EQ(parse_size("1T"), 1ULL << 40);
  for (const char* bad :
       {"", "K", "-1", "1.5M", "1KB", "1 K", "99999999999999999999", "2000000G", "2T", "0x10"}) {
    EXPECT_THROW((void)parse_size(bad), InputError) << bad;
  }
}

}  // namespace
}  // namespace chorus
