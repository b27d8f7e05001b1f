// chorus topo: show a topology as text, JSON or a picture.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/cli.hpp"
#include "topology/describe.hpp"
#include "topology/sources.hpp"

namespace chorus {
namespace {

struct Options {
  std::string source;
  bool list = false;
};

std::string listing() {
  std::size_t width = 0;
  for (const CatalogEntry& entry : catalog()) width = std::max(width, entry.name.size());
  std::string text;
  for (const CatalogEntry& entry : catalog()) {
    text += fmt::format("{:<{}}  {}\n", entry.name, width, entry.summary);
  }
  return text;
}

void run(const Options& options) {
  if (options.list) return print(listing());
  const Topology topology =
      options.source.empty() ? discover() : topology_from_name(options.source);
  print(describe(topology));
}

}  // namespace

void add_topo(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("topo", "Show how a machine or network is wired");
  command->add_option("SOURCE", options->source,
                      "A file, a name or string (see --list), or - for standard input; this "
                      "machine if left out");
  command->add_flag("--list", options->list, "List the machines and generators known by name");
  command->footer("Example: chorus topo '2*dgx-a100'");
  command->callback([options] { run(*options); });
}

}  // namespace chorus
