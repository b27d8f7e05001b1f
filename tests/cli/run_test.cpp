// chorus run: what it starts, what it says, and that it leaves nothing behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "base/files/fd.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path();
}
std::string chorus_command() { return build_folder() + "/bin/chorus"; }
std::string probe() { return build_folder() + "/tests/runtime/launch_probe"; }

std::string collectives() { return build_folder() + "/examples/02_collectives"; }

/// Output (both streams) and exit status of a shell's command.
std::pair<std::string, int> shell(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  const int status = ::pclose(pipe);
  return {output, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

/// The same of `chorus run` with these arguments, in a shell that ran `before`.
std::pair<std::string, int> run(const std::string& arguments, const std::string& before = "true") {
  return shell(
      fmt::format("{}; exec {} run {} 2>&1 </dev/null", before, chorus_command(), arguments));
}

/// A time to sleep that no other test's processes have on their command line, also where two runs
/// of this test go on side by side.
std::string own_sleep(const std::string& seconds) { return seconds + std::to_string(::getpid()); }

/// Processes with this word on their command line.
int count_processes(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::stringstream text;
    if (file) text << file.rdbuf();
    if (text.str().find(word) != std::string::npos) ++count;
  }
  return count;
}

template <typename Condition>
bool within(milliseconds limit, Condition condition) {
  for (const auto end = Clock::now() + limit; Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return condition();
}

// Not at rank 700, with 699 that have to be ended.
TEST(Run, StartsNothingWhereFilesOrProcessesAreTooFew) {
  const std::string started =
      std::filesystem::temp_directory_path() / fmt::format("chorus-run-test-{}", ::getpid());
  const std::string touch = fmt::format("-n 700 -- touch {}", started);
  const auto [files, files_status] = run(touch, "ulimit -n 600");
  EXPECT_EQ(files_status, 2);
  EXPECT_THAT(files, HasSubstr("700 ranks need 732 open files in the launcher, and its hard limit "
                               "is 600: raise it (ulimit -Hn 732), or start fewer; nothing was"));
  const auto [more, more_status] = run("--rank-prefix " + touch, "ulimit -n 1100");
  EXPECT_EQ(more_status, 2);
  EXPECT_THAT(more, HasSubstr("700 ranks need 2132 open files in the launcher"));
  if (::geteuid() != 0) {  // no such limit holds for root
    const auto [processes, status] = run(touch, "ulimit -u 500");
    EXPECT_EQ(status, 2);
    EXPECT_THAT(processes,
                HasSubstr("700 ranks need as many processes, and this user may have 500"));
  }
  EXPECT_FALSE(std::filesystem::exists(started));
}

TEST(Run, StartsRanksThatMeet) {
  const auto [output, status] = run("-n 5 -- " + probe());
  EXPECT_EQ(status, 0) << output;
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_THAT(output, HasSubstr(fmt::format(
                            "launcher chorus rank {} of 5 local {} of 5 sums 15 15", rank, rank)));
  }
}

TEST(Run, PrefixesLinesAndSetsVariables) {
  const auto [output, status] =
      run("-n 3 --rank-prefix -x WORD=hello -x OTHER=a=b -- sh -c "
          "'echo $WORD $OTHER; echo two >&2; printf unfinished'");
  EXPECT_EQ(status, 0) << output;
  for (int rank = 0; rank < 3; ++rank) {
    for (const char* line : {"hello a=b", "two", "unfinished"}) {
      EXPECT_THAT(output, HasSubstr(fmt::format("[{}] {}\n", rank, line)));
    }
  }
}

TEST(Run, OptionsOfTheProgramAreItsOwn) {
  EXPECT_THAT(run("-n 1 echo -n --ranks 5").first, HasSubstr("--ranks 5"));
  EXPECT_THAT(run("-n 1 -- echo -x --timeout").first, HasSubstr("-x --timeout"));
  EXPECT_THAT(run("-n 1 -x A=1 -x B=2 sh -c 'echo $A-$B $0' -n").first, HasSubstr("1-2 -n"));
}

TEST(Run, GivesTheStatusOfTheFirstRankThatFailed) {
  EXPECT_EQ(run("-n 3 -- sh -c 'sleep $CHORUS_RANK; exit $((CHORUS_RANK * 10))'").second, 10);
  EXPECT_EQ(run("-n 2 -- true").second, 0);
  EXPECT_EQ(run("-n 2 -- false").second, 1);
}

TEST(Run, StartsRanksThatFailAnewAsOftenAsItIsTold) {
  // For what $D/done tells, and until whoever has left a process number there has been reaped: only
  // then does the launcher know.
  const std::string waits =
      "while [ ! -e $D/done ]; do sleep 0.01; done; "
      "while kill -0 $(cat $D/done) 2>/dev/null; do sleep 0.01; done; rm -r $D";
  const auto job = [&](const std::string& options, const std::string& rank_1) {
    return run(fmt::format("-n 2 {} -- sh -c 'if [ $CHORUS_RANK = 0 ]; then {}; exit 0; fi; {}'",
                           options, waits, rank_1),
               "export D=$(mktemp -d)");
  };
  const std::string dies = "[ -z \"$CHORUS_REJOIN\" ] && kill -9 $$; ";
  const auto [once, well] = job("--respawn 1", dies + "echo life $CHORUS_REJOIN; touch $D/done");
  EXPECT_EQ(well, 0) << once;
  EXPECT_THAT(once, AllOf(HasSubstr("killed by signal 9 (SIGKILL); started anew (1 of 1)"),
                          HasSubstr("life 1")));
  const auto [never, without] =
      job("--respawn 0", "echo $$ >$D/number; mv $D/number $D/done; kill -9 $$");
  EXPECT_EQ(without, 0) << never;
  EXPECT_THAT(never, HasSubstr("killed by signal 9 (SIGKILL); the others go on"));
  // One that ends by itself with an error fails again: the job ends by it.
  const auto [again, status] = job("--respawn 2", "exit 7");
  EXPECT_EQ(status, 7) << again;
  EXPECT_THAT(again, AllOf(HasSubstr("(2 of 2)"), Not(HasSubstr("(3 of"))));
  EXPECT_EQ(job("", "kill -9 $$").second, 137);
}

TEST(Run, BadUsageIsExplainedWithStatusTwo) {
  const auto expect = [](const std::string& arguments, const std::string& sentence) {
    const auto [output, status] = run(arguments);
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(output, HasSubstr(sentence));
  };
  expect("-n 0 -- true", "0 not in range 1 to 4096");
  expect("-n 4097 -- true", "not in range 1 to 4096");
  expect("-n 2", "PROGRAM is required");
  expect("-- true", "--ranks is required");
  expect("-n 2 -x WORD -- true", "-x WORD: must be NAME=VALUE");
  expect("-n 3 -- /no/such/program", "cannot start '/no/such/program': No such file or directory");
  expect("-n 3 -- /etc", "cannot start '/etc': it is a directory");
  expect("-n 3 -- /etc/passwd", "cannot start '/etc/passwd': Permission denied: chmod +x");
  expect("-n 3 -- no-such-program", "cannot start 'no-such-program': it is not in PATH");
  const auto [output, status] = run("-n 2 -- uname", "cd /bin; PATH=/none");
  EXPECT_THAT(output, HasSubstr("'uname': it is not in PATH; is it ./uname ?"));
}

// The limit that the sentence asks for is enough, and no lower one starts a rank in vain.
TEST(Run, AskForAsManyOpenFilesAsTheRanksNeed) {
  const std::string job = fmt::format("-n 12 -- sh -c 'sleep 0.3; exec {}'", probe());
  for (const int limit : {16, 30, 43}) {
    const auto [output, status] = run(job, fmt::format("ulimit -n {}", limit));
    EXPECT_EQ(status, 2) << output;
    EXPECT_THAT(output, HasSubstr("12 ranks need 44 open files in the launcher"));
    EXPECT_THAT(output, HasSubstr("nothing was started"));
  }
  const auto [output, status] = run(job, "ulimit -n 44");
  EXPECT_EQ(status, 0) << output;
}

TEST(Run, SocketsThatCannotBeOpenedAreToldAtOnceUnlessTheLimitCanBeRaised) {
  const std::string many = "-n 4 -x CHORUS_TRANSPORTS=tcp -x CHORUS_TCP_SOCKETS=16 -- ";
  const auto [output, status] = run(many + collectives(), "ulimit -n 48");
  EXPECT_EQ(status, 1) << output;
  EXPECT_THAT(output, AllOf(HasSubstr("tcp: no socket for "), HasSubstr("this process may have 48"),
                            HasSubstr("4 of 4 ranks failed")));
  const auto [raised, good] = run(many + collectives(), "ulimit -S -n 48");
  EXPECT_EQ(good, 0) << raised;
}

TEST(Run, WhyARankLeftAtOnceIsToldToTheOthers) {
  const std::string alone = "test $CHORUS_RANK = 1 && export CHORUS_PLAN=/no/such.json; exec ";
  const auto [output, status] = run("-n 3 --rank-prefix -- sh -c '" + alone + collectives() + "'");
  EXPECT_EQ(status, 1) << output;
  for (const int rank : {0, 2}) {
    EXPECT_THAT(
        output,
        ContainsRegex(fmt::format(
            "\\[{}\\] .*rank 1 \\(pid .* left.*: cannot read /no/such.json: No such", rank)));
  }
  EXPECT_THAT(output, Not(HasSubstr("has left")));
}

// Shared memory counts as a file, and who makes too large a one is killed.
TEST(Run, ALimitOfFilesIsToldUnlessItCanBeRaised) {
  const std::string two = "-n 2 -- " + collectives();
  const auto [output, status] = run(two, "ulimit -f 10");
  EXPECT_EQ(status, 1) << output;
  EXPECT_THAT(output, AllOf(HasSubstr("is more than a file may have: raise the limit (ulimit -f"),
                            HasSubstr("2 of 2 ranks failed")));
  const auto [raised, good] = run(two, "ulimit -S -f 10");
  EXPECT_EQ(good, 0) << raised;
}

TEST(Run, WithoutLoopbackEveryRankSaysSoAtOnce) {
  if (std::system("unshare -rn true 2>/dev/null") != 0) GTEST_SKIP() << "no network of its own";
  const auto start = Clock::now();
  const auto [output, status] = shell(
      fmt::format("exec unshare -rn {} run -n 2 -- {} 2>&1 </dev/null", chorus_command(), probe()));
  EXPECT_NE(status, 0);
  EXPECT_THAT(output, HasSubstr("the loopback interface is down (ip link set lo up)"));
  EXPECT_LT(Clock::now() - start, milliseconds(10'000));
}

TEST(Run, EveryRankLearnsWhoWasKilledAndHow) {
  const auto start = Clock::now();
  const auto [output, status] = run(fmt::format("-n 4 --rank-prefix -- {} die 2", probe()));
  EXPECT_EQ(status, 128 + SIGKILL) << output;
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(output, HasSubstr(fmt::format("[{0}] rank {0} heard: rank 2 (pid ", rank)));
  }
  EXPECT_THAT(
      output,
      AllOf(HasSubstr("died: killed by signal 9 (SIGKILL)"), HasSubstr("chorus run: rank 2 (pid "),
            HasSubstr("chorus run: 4 of 4 ranks failed"), Not(HasSubstr("its connection closed"))));
  EXPECT_LT(Clock::now() - start, milliseconds(4'000)) << "they did not end by themselves";
}

TEST(Run, AStubbornRankIsKilledAfterItsGrace) {
  const std::string word = own_sleep("987.125");
  const auto start = Clock::now();
  const auto [output, status] =
      run("-n 2 -- sh -c '[ $CHORUS_RANK = 0 ] && exit 9; trap \"\" TERM; sleep " + word + "'");
  const auto took = Clock::now() - start;
  EXPECT_EQ(status, 9) << output;
  EXPECT_GE(took, milliseconds(2'000));
  EXPECT_LT(took, milliseconds(9'000));
  EXPECT_EQ(count_processes(word), 0);
}

TEST(Run, ATimeoutEndsAllWithItsOwnStatus) {
  const std::string word = own_sleep("987.25");
  const auto [output, status] = run("-n 2 --timeout 0.3 -- sleep " + word);
  EXPECT_EQ(status, 124);
  EXPECT_THAT(output, HasSubstr("not finished after 0.3 s"));
  EXPECT_EQ(count_processes(word), 0);
}

TEST(Run, ARankThatIsStoppedIsNamedAndEndsWithTheOthers) {
  const auto [output, status] =
      run("-n 2 --timeout 0.5 -- sh -c '[ $CHORUS_RANK = 0 ] || kill -STOP $$; sleep 987.0625'");
  EXPECT_EQ(status, 124);
  EXPECT_THAT(output, ContainsRegex("rank 1 \\(pid [0-9]+\\) is stopped by signal 19 "
                                    "\\(SIGSTOP\\): kill -CONT [0-9]+ resumes it"));
  EXPECT_THAT(output, Not(HasSubstr("killing"))) << "SIGTERM ends it";
}

/// `chorus run` in the background, as a shell starts it: in a process group of its own.
pid_t start_run(const std::string& arguments, int out = STDOUT_FILENO, int err = STDERR_FILENO) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    const int kept = ::dup(err);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(kept, STDERR_FILENO);
    ::close(kept);
    const std::string command = "exec " + chorus_command() + " run " + arguments;
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  return pid;
}

TEST(Run, SignalsReachTheRanks) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string word = own_sleep("987.375");
    const pid_t pid = start_run(fmt::format("-n 3 -- sh -c 'sleep {}; true'", word));
    ASSERT_TRUE(within(milliseconds(5'000), [&] { return count_processes(word) >= 6; }));
    ::kill(pid, signal);
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    EXPECT_TRUE(within(milliseconds(500), [&] { return count_processes(word) == 0; }));
  }
}

TEST(Run, SignalsOfUsersReachTheRanksAndEndNothing) {
  const std::string word = own_sleep("987.75");
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const pid_t pid =
        start_run(fmt::format("-n 2 -- sh -c 'trap \"exit 33\" USR1 USR2; sleep {} & wait'", word));
    // The launcher, its guard, two shells, and their sleeps, which begin after the trap is set.
    ASSERT_TRUE(within(milliseconds(5'000), [&] { return count_processes(word) >= 6; }));
    ::kill(pid, signal);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 33);
  }
}

/// Processes with this word on their command line that are stopped.
int count_stopped(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream command(entry.path() / "cmdline", std::ios::binary);
    std::ifstream stat(entry.path() / "stat");
    std::stringstream text, state;
    if (command && stat) text << command.rdbuf(), state << stat.rdbuf();
    if (text.str().find(word) != std::string::npos && state.str().find(") T ") != std::string::npos)
      ++count;
  }
  return count;
}

TEST(Run, CtrlZStopsTheRanksWithTheLauncherAndTheyGoOnTogether) {
  const std::string word = own_sleep("987.625");
  const pid_t pid = start_run("-n 2 --timeout 60 -- sleep " + word);
  // The launcher, its guard, and the ranks; the guard never stops.
  ASSERT_TRUE(within(milliseconds(5'000), [&] { return count_processes(word) == 4; }));
  for (int again = 0; again < 2; ++again) {
    ::kill(pid, SIGTSTP);
    EXPECT_TRUE(within(milliseconds(5'000), [&] { return count_stopped(word) == 3; }));
    ::kill(pid, SIGCONT);
    EXPECT_TRUE(within(milliseconds(5'000), [&] { return count_stopped(word) == 0; }));
  }
  EXPECT_EQ(count_processes(word), 4);
  ::kill(pid, SIGTERM);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

/// Two ends of a way for output, which nobody reads unless a test does.
struct Way {
  explicit Way(const std::string& kind) {
    int ends[2] = {-1, -1};
    const bool made = kind == "pipe" ? ::pipe2(ends, O_CLOEXEC) == 0
                      : kind == "socket"
                          ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0
                          : ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) == 0;
    EXPECT_TRUE(made) << kind;
    for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
  }

  /// All that comes until nobody holds the other end.
  std::string read_all() {
    write_end.reset();
    std::string all;
    std::array<char, 4096> buffer;
    for (ssize_t got; (got = ::read(read_end.get(), buffer.data(), buffer.size())) > 0;) {
      all.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return all;
  }

  Fd read_end, write_end;
};

/// The exit status, or -1 if it has not ended within `limit` (then it is killed).
int status_within(milliseconds limit, pid_t pid) {
  int status = 0;
  if (!within(limit, [&] { return ::waitpid(pid, &status, WNOHANG) == pid; })) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Run, AFailedRankEndsTheJobThoughNobodyReadsItsOutput) {
  struct Stuck {
    const char* kind;
    Way out{kind}, err{"pipe"};
    pid_t pid = start_run(
        "-n 2 --rank-prefix -- sh -c '[ $CHORUS_RANK = 1 ] && exec yes; sleep 0.3; exit 9'",
        out.write_end.get(), err.write_end.get());
  };
  const auto start = Clock::now();
  Stuck pipe{"pipe"}, socket{"socket"}, terminal{"terminal"};
  for (Stuck* stuck : {&pipe, &socket, &terminal}) {
    EXPECT_EQ(status_within(milliseconds(15'000), stuck->pid), 9) << stuck->kind;
    EXPECT_GE(Clock::now() - start, milliseconds(4'000)) << "rank 1 was to have its grace";
    EXPECT_THAT(stuck->err.read_all(),
                AllOf(ContainsRegex("rank 0 \\(pid [0-9]+\\) exited with status 9"),
                      HasSubstr("output of the ranks is lost: nobody reads it"),
                      HasSubstr("2 of 2 ranks failed")))
        << stuck->kind;
  }
}

TEST(Run, SignalsAndTimeoutsEndTheJobThoughNobodyReadsAnything) {
  for (const std::string more : {"--rank-prefix", "--timeout 1", "--rank-prefix --timeout 1"}) {
    Way both("pipe");
    const std::string word = own_sleep("987.875");
    const pid_t pid = start_run(fmt::format("-n 2 {} -- sh -c 'yes {}'", more, word),
                                both.write_end.get(), both.write_end.get());
    ASSERT_TRUE(within(milliseconds(5'000), [&] { return count_processes(word) >= 4; })) << more;
    const bool timeout = more.find("timeout") != std::string::npos;
    if (!timeout) {
      std::this_thread::sleep_for(milliseconds(300));  // both pipes are full
      ::kill(pid, SIGINT);
    }
    EXPECT_EQ(status_within(milliseconds(5'000), pid), timeout ? 124 : 130) << more;
    EXPECT_TRUE(within(milliseconds(500), [&] { return count_processes(word) == 0; })) << more;
  }
}

TEST(Run, RanksPrintNoFasterThanTheirReaderReadsAndNothingIsLost) {
  constexpr int kLines = 100'000;
  for (const char* kind : {"pipe", "socket"}) {
    Way out(kind);
    const std::string done = own_sleep(::testing::TempDir() + "printed.");
    const pid_t pid =
        start_run(fmt::format("-n 1 --rank-prefix -- sh -c 'seq {}; touch {}'", kLines, done),
                  out.write_end.get());
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_FALSE(std::filesystem::exists(done)) << kind << ": somebody hoards the output";
    const std::string all = out.read_all();
    EXPECT_EQ(status_within(milliseconds(5'000), pid), 0);
    EXPECT_TRUE(std::filesystem::remove(done));
    std::istringstream lines(all);
    int expected = 1;
    for (std::string line; std::getline(lines, line); ++expected) {
      ASSERT_EQ(line, fmt::format("[0] {}", expected)) << kind;
    }
    EXPECT_EQ(expected, kLines + 1) << kind;
  }
}

TEST(Run, AChildThatStaysWithTheOutputIsNotWaitedFor) {
  const auto start = Clock::now();
  const auto [output, status] =
      run("-n 1 --rank-prefix -- sh -c 'setsid sleep 8 & sleep 0.3; printf end'");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(output, "[0] end\n");
  EXPECT_LT(Clock::now() - start, milliseconds(6'000));
}

TEST(Run, AKilledLauncherLeavesNothingBehind) {
  // The shells are its children, the sleeps their children. At any moment of their start.
  const std::string word = own_sleep("987.5");
  for (int trial = 0; trial < 30; ++trial) {
    const pid_t pid = start_run(fmt::format("-n 3 -- sh -c 'sleep {}; true'", word));
    ASSERT_TRUE(
        within(milliseconds(9'000), [&] { return count_processes(word) >= 1 + trial % 8; }));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    EXPECT_TRUE(within(milliseconds(2'000), [&] { return count_processes(word) == 0; }));
  }
}

}  // namespace
}  // namespace chorus
