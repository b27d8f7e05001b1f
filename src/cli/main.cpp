#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>

#include "base/exhausted.hpp"
#include "base/text/printable.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "command/command_line.hpp"

namespace chorus {
namespace {

constexpr std::array kSubcommands = {
    AddSubcommand{add_algorithms}, AddSubcommand{add_convert},  AddSubcommand{add_doctor},
    AddSubcommand{add_env},        AddSubcommand{add_explain},  AddSubcommand{add_flight},
    AddSubcommand{add_layout},     AddSubcommand{add_probe},    AddSubcommand{add_run},
    AddSubcommand{add_schedule},   AddSubcommand{add_simulate}, AddSubcommand{add_synth},
    AddSubcommand{add_topo},       AddSubcommand{add_verify},
};

/// A standard stream that is closed would give its number to the next file or socket, and what is
/// meant for people would go there. As it is left, reading and writing fail as if it were closed.
void keep_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest is free
  }
}

void describe(CLI::App& app, int& exit_code) {
  app.name("chorus");
  app.footer("chorus help COMMAND tells its options. Example: chorus topo --svg machine.svg");
  add_common_options(app);
  app.require_subcommand(1);
  for (const AddSubcommand add : kSubcommands) add(app, exit_code);
}

/// One line on standard error; if even that is full or closed, the exit code still tells.
void complain(const CLI::App& app, const std::exception& error) {
  const std::string line = printable(fmt::format("{}: {}\n", command_read(app), error.what()));
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

int run(CLI::App& app, int argc, char** argv) {
  int exit_code = exit_well;
  describe(app, exit_code);
  // Its name up to 0.1.
  if (argc > 1 && std::string_view(argv[1]) == "plan") {
    throw InputError("`chorus plan` is now `chorus layout`: a plan is what `chorus synth` writes");
  }
  const auto leave = read_command_line(app, argc, argv);  // runs the subcommand
  if (!leave) return exit_code;
  if (leave->exit_code == exit_well) {
    print(leave->text);
  } else {
    (void)std::fputs(printable(leave->text).c_str(), stderr);
  }
  return leave->exit_code;
}

/// Runs the command; what ends it early is told in one line.
int run_or_complain(CLI::App& app, int argc, char** argv) {
  try {
    return run(app, argc, argv);
  } catch (const InputError& error) {
    complain(app, error);
    return exit_bad_input;
  } catch (const Error& error) {
    complain(app, error);
    return exit_fault_found;
  } catch (const std::filesystem::filesystem_error& error) {  // a path given that is closed to us
    complain(app, InputError(fmt::format("{}: cannot be opened: {}", error.path1().string(),
                                         error.code().message())));
    return exit_bad_input;
  } catch (const std::bad_alloc&) {
    complain(app, InputError(kMemoryExhausted));
    return exit_bad_input;
  } catch (const std::exception& error) {
    complain(app, error);
    return exit_fault_found;
  }
}

}  // namespace
}  // namespace chorus

int main(int argc, char** argv) {
  chorus::keep_standard_streams();
  // A reader that has seen enough (`chorus topo | head`) is no error worth a message.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    CLI::App app(
        "Topology-aware collective communication.\n"
        "Exit code: 0 well, 1 a fault was found, 2 bad input or usage.");
    return chorus::run_or_complain(app, argc, argv);
  } catch (...) {  // not even the line could be written: memory is exhausted
    for (const char* const part : {"chorus: ", chorus::kMemoryExhausted, "\n"}) {
      (void)std::fputs(part, stderr);
    }
    return chorus::exit_bad_input;
  }
}
