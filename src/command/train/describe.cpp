// Prints the trainer's manual page or a completion, which `train` itself, a program on Chorus'
// public API alone, cannot.
//   describe-train --man | --completion bash | --completion zsh
#include <cstdio>
#include <exception>
#include <string_view>

#include "arguments.hpp"
#include "command/manual.hpp"

int main(int argc, char** argv) try {
  trainer::Arguments arguments;
  const auto app = trainer::make_app(arguments);
  app->set_version_flag("--version", "train " CHORUS_VERSION);
  const std::string_view form = argc > 1 ? argv[argc - 1] : "";
  std::string text;
  if (form == "--man") text = chorus::manual_page(*app);
  if (form == "bash") text = chorus::bash_completion(*app);
  if (form == "zsh") text = chorus::zsh_completion(*app);
  if (text.empty()) return 2;
  return std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0;
} catch (const std::exception& error) {
  (void)std::fprintf(stderr, "describe-train: %s\n", error.what());
  return 2;
}
