// chorus layout: the best layouts of a training run, by the trainer's planner.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "cli/cli.hpp"

namespace chorus {
namespace {

namespace fs = std::filesystem;

struct LayoutArguments {
  std::string topology;
  std::vector<std::string> rest;
};

/// Beside this command as installed, where the build leaves it, else on the PATH.
std::string trainer() {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& path : {here / "train", here.parent_path() / "examples/trainer/train"}) {
    if (fs::is_regular_file(path, error)) return path;
  }
  return "train";
}

/// The planner knows the model's arithmetic, which the library does not: it belongs to the trainer.
/// Becomes that process.
void run_layout(const LayoutArguments& arguments) {
  const std::string program = trainer();
  std::vector<std::string> words{program, "--plan", arguments.topology};
  words.insert(words.end(), arguments.rest.begin(), arguments.rest.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(program.c_str(), argv.data());
  throw InputError(
      "chorus layout needs the bundled trainer, `train`, next to it or on the PATH: install "
      "chorus-trainer, or build it (libopenblas-dev)");
}

}  // namespace

void add_layout(CLI::App& app, int& /*exit_code*/) {
  auto arguments = std::make_shared<LayoutArguments>();
  CLI::App* command = app.add_subcommand(
      "layout", "Find the fastest parallel layout of a model's training on a topology");
  command->add_option("TOPOLOGY", arguments->topology,
                      "A file of Chorus JSON or a name (chorus topo --list); this machine if \"\"");
  command->prefix_command();
  command->footer(
      "What follows TOPOLOGY goes to the trainer: the model, --sequences per step, --gflops and\n"
      "--memory-gb of a rank (train --help).\n"
      "Example: chorus layout '2*dgx-a100' --preset 13B --gflops 150000 --memory-gb 80");
  command->callback([command, arguments] {
    arguments->rest = command->remaining();
    run_layout(*arguments);
  });
}

}  // namespace chorus
