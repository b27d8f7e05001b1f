#include "command/manual.hpp"

#include <fmt/format.h>

#include <string_view>

namespace chorus {
namespace {

/// Text as roff prints it: no requests, no hyphens in place of minus signs.
std::string roff(std::string_view text) {
  std::string result;
  bool at_line_start = true;
  for (const char c : text) {
    if (at_line_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    at_line_start = c == '\n';
  }
  return result;
}

/// Lines as they are: examples and tables.
std::string verbatim(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text.empty() ? "" : fmt::format(".PP\n.nf\n{}\n.fi\n", roff(text));
}

std::string options_text(const CLI::App& app) {
  const CLI::Formatter formatter;  // whose words --help prints
  std::string text;
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional() != positional || option->get_group().empty()) continue;
      text += fmt::format(
          ".TP\n.B {}\n{}\n",
          roff(formatter.make_option_name(option, positional) + formatter.make_option_opts(option)),
          roff(option->get_description()));
    }
  }
  return text;
}

std::string synopsis(const CLI::App& app, const std::string& command) {
  std::string text = fmt::format(".B {}\n[OPTIONS]", roff(command));
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const bool many = option->get_expected_max() > 1;
    const std::string word = option->get_name(true) + (many ? "..." : "");
    text += option->get_required() ? " " + word : " [" + word + "]";
  }
  if (!app.get_subcommands([](const CLI::App*) { return true; }).empty()) text += " [COMMAND]";
  return text + "\n";
}

std::string subcommand_sections(const CLI::App& app, const std::string& prefix) {
  std::string text;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string command = fmt::format("{} {}", prefix, sub->get_name());
    text += fmt::format(".SS {}\n{}.PP\n{}\n{}", roff(command), synopsis(*sub, command),
                        roff(sub->get_description()), options_text(*sub));
    // --help of one without a footer of its own shows its parent's.
    if (sub->get_footer() != app.get_footer()) text += verbatim(sub->get_footer());
    text += subcommand_sections(*sub, command);
  }
  return text;
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::string manual_page(CLI::App& app) {
  const std::string& name = app.get_name();
  const std::string description = app.get_description();
  const std::size_t end = description.find('\n');
  std::string summary = description.substr(0, end);
  if (summary.ends_with('.')) summary.pop_back();
  std::string text = fmt::format(
      ".TH {} 1 \"\" \"{}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}",
      roff(in_capitals(name)), roff(app.version()), roff(name), roff(summary), synopsis(app, name));
  if (end != std::string::npos) {
    text += ".SH DESCRIPTION\n" + verbatim(std::string_view(description).substr(end + 1));
  }
  text += ".SH OPTIONS\n" + options_text(app);
  const std::string sections = subcommand_sections(app, name);
  if (!sections.empty()) text += ".SH COMMANDS\n" + sections;
  if (!app.get_footer().empty()) text += ".SH NOTES\n" + verbatim(app.get_footer());
  return text;
}

}  // namespace chorus
