#include "command/manual.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "command/arguments.hpp"
#include "command/command_line.hpp"

namespace chorus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Words that roff and both shells have their own use for.
struct Program {
  CLI::App app{"Does things.\nIt's 'quoted', [bracketed]: and $(not run).", "prog"};
  std::string file, mode, kind;
  int number = 0;

  Program() {
    add_common_options(app);
    app.footer("Example:\n  prog one --mode fast\n.not a request\n'nor this");
    app.require_subcommand(1);
    CLI::App* const one = app.add_subcommand("one", "The user's first; [costs] nothing: \\here");
    one->add_option("FILE", file, "what to read")->required();
    one->add_option("-m,--mode", mode, "how")->check(CLI::IsMember({"fast", "slow"}));
    one->add_option("--kind", kind, "which")->check(one_of({"alpha", "beta"}, "a kind"));
    one->add_option("-n", number, "how many");
    one->add_option("--hidden", number, "not shown")->group("");
    CLI::App* const two = app.add_subcommand("two", "Has subcommands");
    two->require_subcommand(1);
    two->add_subcommand("deep", "Below two")->add_flag("--here")->description("a flag");
  }
};

/// What a shell answers, with what it complains of.
std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  ::pclose(pipe);
  return text;
}

bool there_is(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null").c_str()) == 0;
}

std::string kept(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

/// What bash offers for the last of these words.
std::string offered(const std::string& words, int count) {
  Program program;
  const std::string script = kept("prog.bash", bash_completion(program.app));
  return output_of("bash -c '. " + script + "; COMP_WORDS=(" + words + "); COMP_CWORD=" +
                   std::to_string(count - 1) + "; _prog; printf \"%s \" \"${COMPREPLY[@]}\"'");
}

TEST(ManualPage, HoldsEveryOptionAndTheExamplesAsTheyAre) {
  Program program;
  const std::string page = manual_page(program.app);
  EXPECT_THAT(page, HasSubstr(".SH NAME\nprog \\- Does things\n"));
  EXPECT_THAT(page, HasSubstr(".SS prog one\n"));
  EXPECT_THAT(page, HasSubstr(".SS prog two deep\n"));
  EXPECT_THAT(page, HasSubstr("\\-m,\\-\\-mode"));
  EXPECT_THAT(page, HasSubstr("\n\\&.not a request\n\\&'nor this\n"));
  EXPECT_THAT(page, Not(HasSubstr("hidden")));
}

TEST(ManualPage, IsReadByManWithoutComplaint) {
  if (!there_is("man") || !there_is("groff")) GTEST_SKIP() << "there is no man or groff here";
  Program program;
  const std::string page = kept("prog.1", manual_page(program.app));
  const std::string shown =
      output_of("MANROFFSEQ= MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings -l " + page);
  EXPECT_THAT(shown, HasSubstr(".not a request"));
  EXPECT_THAT(shown, HasSubstr("prog one --mode fast"));
  EXPECT_THAT(shown, Not(HasSubstr("warning")));
}

TEST(BashCompletion, OffersCommandsOptionsAndValues) {
  EXPECT_EQ(offered("prog \"\"", 2), "one two ");
  EXPECT_EQ(offered("prog o", 2), "one ");
  EXPECT_THAT(offered("prog one -", 3), HasSubstr("--mode "));
  EXPECT_THAT(offered("prog one -", 3), Not(HasSubstr("--here")));
  EXPECT_EQ(offered("prog one --mode \"\"", 4), "fast slow ");
  EXPECT_EQ(offered("prog one -m f", 4), "fast ");
  EXPECT_EQ(offered("prog one --kind \"\"", 4), "alpha beta ");
  EXPECT_EQ(offered("prog one -n \"\"", 4), " ");
  EXPECT_EQ(offered("prog two \"\"", 3), "deep ");
  EXPECT_THAT(offered("prog two deep --h", 4), HasSubstr("--here "));
  EXPECT_THAT(offered("prog one /et", 3), HasSubstr("/etc "));
  EXPECT_THAT(offered("prog --completion \"\"", 3), HasSubstr("bash zsh"));
}

TEST(ZshCompletion, IsAScriptThatZshReads) {
  Program program;
  const std::string text = zsh_completion(program.app);
  EXPECT_THAT(text, HasSubstr("#compdef prog\n"));
  EXPECT_THAT(text, HasSubstr("--mode[how]:value:(fast slow)"));
  EXPECT_THAT(text, HasSubstr("user'\\''s first; \\[costs\\] nothing\\: \\\\here"));
  if (!there_is("zsh")) GTEST_SKIP() << "there is no zsh here";
  EXPECT_EQ(output_of("zsh -n " + kept("_prog", text)), "");
}

}  // namespace
}  // namespace chorus
