// chorus plan: the best layouts of a training run, by the trainer's planner.
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

struct PlanOptions {
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
void run_plan(const PlanOptions& options) {
  const std::string program = trainer();
  std::vector<std::string> words{program, "--plan", options.topology};
  words.insert(words.end(), options.rest.begin(), options.rest.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(program.c_str(), arguments.data());
  throw InputError(
      "chorus plan needs the bundled trainer, `train`, beside it or on the PATH: build it "
      "(libopenblas-dev)");
}

}  // namespace

void add_plan(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Find the fastest way to lay a model's training out over the ranks of a topology");
  command->add_option("TOPOLOGY", options->topology,
                      "A file of Chorus JSON or a name (chorus topo --list); this machine if \"\"");
  command->prefix_command();
  command->footer(
      "What follows TOPOLOGY goes to the trainer: the model, --sequences per step, --gflops and\n"
      "--memory-gb of a rank (train --help).\n"
      "Example: chorus plan '2*dgx-a100' --preset 13B --gflops 150000 --memory-gb 80");
  command->callback([command, options] {
    options->rest = command->remaining();
    run_plan(*options);
  });
}

}  // namespace chorus
