#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <sstream>
#include <string>

#include "chorus/error.hpp"
#include "cli/cli.hpp"

namespace chorus {
namespace {

constexpr std::array kSubcommands = {
    AddSubcommand{add_algorithms}, AddSubcommand{add_convert}, AddSubcommand{add_doctor},
    AddSubcommand{add_explain},    AddSubcommand{add_flight},  AddSubcommand{add_plan},
    AddSubcommand{add_probe},      AddSubcommand{add_run},     AddSubcommand{add_schedule},
    AddSubcommand{add_simulate},   AddSubcommand{add_synth},   AddSubcommand{add_topo},
    AddSubcommand{add_verify},
};

/// A standard stream that is closed would give its number to the next file or socket, and what is
/// meant for people would go there. As it is left, reading and writing fail as if it were closed.
void keep_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest is free
  }
}

int run(int argc, char** argv) {
  CLI::App app(
      "Topology-aware collective communication.\n"
      "Exit code: 0 well, 1 a fault was found, 2 bad input or usage.");
  app.name("chorus");
  app.set_version_flag("--version", "chorus " CHORUS_VERSION);
  app.require_subcommand(1);
  int exit_code = exit_well;
  for (const AddSubcommand add : kSubcommands) add(app, exit_code);
  const auto asked = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(asked).empty()) {
    throw InputError(
        fmt::format("there is no command '{:.40}': chorus --help lists them", argv[1]));
  }
  try {
    app.parse(argc, argv);                 // runs the subcommand
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    app.exit(success, text);
    print(text.str());
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return exit_bad_input;
  }
  return exit_code;
}

/// One line on standard error; if even that is full or closed, the exit code still tells.
void complain(const std::exception& error) {
  const std::string line = printable(fmt::format("chorus: {}\n", error.what()));
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace
}  // namespace chorus

int main(int argc, char** argv) {
  chorus::keep_standard_streams();
  // A reader that has seen enough (`chorus topo | head`) is no error worth a message.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    return chorus::run(argc, argv);
  } catch (const chorus::InputError& error) {
    chorus::complain(error);
    return chorus::exit_bad_input;
  } catch (const chorus::Error& error) {
    chorus::complain(error);
    return chorus::exit_fault_found;
  } catch (const std::filesystem::filesystem_error& error) {  // a path given that is closed to us
    chorus::complain(chorus::InputError(
        fmt::format("{}: cannot be opened: {}", error.path1().string(), error.code().message())));
    return chorus::exit_bad_input;
  } catch (const std::exception& error) {
    chorus::complain(error);
    return chorus::exit_fault_found;
  }
}
