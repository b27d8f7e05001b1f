// `chorus env`: every variable that Chorus reads, what it is set to, and by whom.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "runtime/options/nccl_values.hpp"
#include "runtime/options/options_env.hpp"
#include "runtime/options/variables.hpp"

namespace chorus {
namespace {

using Section = Variable::Section;

struct Heading {
  Section section;
  const char* title;
  const char* text;
};
constexpr Heading kHeadings[] = {
    {Section::options, "Options",
     "Each sets a field of `chorus::Options` (include/chorus/options.hpp)."},
    {Section::job, "The job", "How ranks meet, and what libnccl.so.2 passes on."},
    {Section::nccl, "NCCL's",
     "Read by programs that load Chorus as libnccl.so.2. They are read from the environment, then "
     "from NCCL_CONF_FILE or ~/.nccl.conf, then from /etc/nccl.conf. Where Chorus has a variable "
     "for the same thing, that one takes precedence."},
    {Section::surroundings, "Set by launchers and the system", "Read by Chorus, set by others."},
};

/// A variable as it is now.
struct State {
  const Variable& variable;
  std::string value, source, fault;
};

std::string shown(const Variable& variable, const std::string& value) {
  return variable.type == Variable::Type::secret ? "(set, not shown)" : value;
}

State state_of(const Variable& variable) {
  std::optional<std::string> value = value_of(variable);
  std::string source = "environment";
  if (variable.section == Section::nccl) {
    const auto values = nccl_values();
    const auto found = values.find(variable.name);
    if (found != values.end() && !found->second.value.empty()) {
      value = found->second.value;
      source = found->second.source;
    }
    if (value && *variable.stands_for != '\0' && env(variable.stands_for)) {
      source += fmt::format(", but {} wins", variable.stands_for);
    }
  }
  if (!value) return {variable, default_of(variable), "default", ""};
  if (const auto why = why_malformed(variable, *value)) {
    return {variable, shown(variable, *value), "malformed", *why};
  }
  return {variable, shown(variable, *value), source, ""};
}

std::string or_none(const std::string& value) { return value.empty() ? "-" : value; }

std::string line_of(const State& state) {
  std::string line =
      fmt::format("  {:<28} {:<11} {}", state.variable.name, state.source, or_none(state.value));
  if (!state.fault.empty()) line += ": " + state.fault;
  if (state.source != "default") {
    line += fmt::format("  (default {})", or_none(default_of(state.variable)));
  }
  return line + "\n";
}

/// Those of the environment that Chorus does not know.
std::vector<std::string> unknown() {
  std::vector<std::string> lines;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (const auto why = why_unknown(name)) {
      lines.push_back(fmt::format("  {:<28} unknown     {}\n", name, *why));
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

int print_all() {
  bool fault = false;
  for (const Heading& heading : kHeadings) {
    std::string text = fmt::format("{}\n", heading.title);
    for (const Variable& variable : variables()) {
      if (variable.section != heading.section) continue;
      const State state = state_of(variable);
      fault = fault || !state.fault.empty();
      text += line_of(state);
    }
    print(text + "\n");
  }
  const std::vector<std::string> lines = unknown();
  if (!lines.empty()) print(fmt::format("Unknown\n{}\n", fmt::join(lines, "")));
  print("chorus env NAME tells what a variable does.\n");
  return fault || !lines.empty() ? exit_fault_found : exit_well;
}

int print_some(const std::vector<std::string>& names) {
  bool fault = false;
  for (const std::string& name : names) {
    const Variable* const variable = find_variable(name);
    if (variable == nullptr) {
      throw InputError(fmt::format("Chorus reads no variable '{:.60}': {}", name,
                                   why_unknown(name).value_or("chorus env lists them")));
    }
    const State state = state_of(*variable);
    fault = fault || !state.fault.empty();
    print(line_of(state) + fmt::format("    {}: {}\n", type_of(*variable), variable->text));
  }
  return fault ? exit_fault_found : exit_well;
}

int print_json() {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Variable& variable : variables()) {
    const State state = state_of(variable);
    all.push_back({{"name", variable.name},
                   {"value", state.value},
                   {"source", state.source},
                   {"default", default_of(variable)},
                   {"type", type_of(variable)},
                   {"fault", state.fault},
                   {"text", variable.text}});
  }
  print(all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  return exit_well;
}

/// docs/variables.md.
int print_markdown() {
  std::string text =
      "# Environment variables\n\n"
      "Made by `chorus env --markdown` from the table that Chorus itself reads them by\n"
      "(`src/runtime/options/variables_table.cpp`). `chorus env` tells what each is set to, and "
      "where; a\n"
      "malformed value is refused by name when a rank joins, a name that does not exist is "
      "warned of.\n";
  for (const Heading& heading : kHeadings) {
    text += fmt::format(
        "\n## {}\n\n{}\n\n| variable | value | default | what it does |\n| --- | --- | --- | --- "
        "|\n",
        heading.title, heading.text);
    for (const Variable& variable : variables()) {
      if (variable.section != heading.section) continue;
      const std::string value = default_of(variable);
      text += fmt::format("| `{}` | {} | {} | {} |\n", variable.name, type_of(variable),
                          value.empty() ? "" : "`" + value + "`", variable.text);
    }
  }
  print(text);
  return exit_well;
}

struct EnvOptions {
  std::vector<std::string> names;
  bool json = false, markdown = false;
};

}  // namespace

void add_env(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<EnvOptions>();
  CLI::App* command = app.add_subcommand(
      "env", "List the environment variables that Chorus reads: value, default, and who set it");
  command->add_option("names", options->names, "Only these, with what they do");
  auto* const json = command->add_flag("--json", options->json, "As JSON, with what they do");
  command->add_flag("--markdown", options->markdown, "As a page for people: docs/variables.md")
      ->excludes(json);
  command->footer("Example: chorus env CHORUS_TIMEOUT_MS");
  command->callback([options, &exit_code] {
    exit_code = !options->names.empty() ? print_some(options->names)
                : options->json         ? print_json()
                : options->markdown     ? print_markdown()
                                        : print_all();
  });
}

}  // namespace chorus
