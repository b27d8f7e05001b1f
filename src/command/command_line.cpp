#include "command/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/exhausted.hpp"
#include "base/text/suggest.hpp"
#include "chorus/error.hpp"
#include "command/manual.hpp"

namespace chorus {
namespace {

constexpr int kUsageError = 2;

using Words = std::vector<std::string>;

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

const CLI::App* subcommand_named(const CLI::App& app, const std::string& name) {
  const auto found =
      app.get_subcommands([&](const CLI::App* sub) { return sub->check_name(name); });
  return found.empty() ? nullptr : found.front();
}

std::vector<std::string_view> views_of(const Words& words) { return {words.begin(), words.end()}; }

Words subcommands_of(const CLI::App& app) {
  Words names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

Words options_of(const CLI::App& app) {
  Words names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

Leave usage_error(const std::string& command, const std::string& what) {
  return {fmt::format("{}: {}{} {} --help\n", command, what, what.ends_with('?') ? " See" : "; see",
                      command),
          kUsageError};
}

/// Where a subcommand has to stand and another word does: the answer to that. `deepest` becomes the
/// app whose options follow, `at` the first word that names none.
std::optional<Leave> follow_subcommands(const CLI::App& app, const Words& words,
                                        const CLI::App*& deepest, std::size_t& at) {
  std::string command = app.get_name();
  deepest = &app;
  for (at = 0; at < words.size() && !is_option(words[at]); ++at) {
    const CLI::App* const next = subcommand_named(*deepest, words[at]);
    if (next == nullptr) {
      if (deepest->get_require_subcommand_min() == 0) return std::nullopt;
      const Words names = subcommands_of(*deepest);
      const auto meant = nearest_word(words[at], views_of(names));
      return usage_error(command,
                         fmt::format("there is no command '{:.40}'{}", words[at],
                                     meant ? fmt::format("; did you mean {}?", *meant)
                                           : fmt::format(": use {}", fmt::join(names, ", "))));
    }
    deepest = next;
    command += " " + next->get_name();
  }
  return std::nullopt;
}

bool takes_list(const CLI::Option* option) {
  return option != nullptr && option->get_delimiter() == ',' && !option->get_allow_extra_args();
}

/// Whether every validator of the option takes the word for a value; one without any takes none.
bool is_value_of(CLI::Option* option, const std::string& word) {
  bool any = false;
  std::string value = word;  // which transforms change for the checks after them
  for (int i = 0;; ++i) {
    const CLI::Validator* validator = nullptr;
    try {
      validator = option->get_validator(i);
    } catch (const CLI::OptionNotFound&) {
      return any;
    }
    if (!(*validator)(value).empty()) return false;
    any = true;
  }
}

/// Whether the word is a value of the option, or several with commas between them.
bool are_values_of(CLI::Option* option, std::string_view word) {
  for (;;) {
    const std::size_t comma = word.find(',');
    if (!is_value_of(option, std::string(word.substr(0, comma)))) return false;
    if (comma == std::string_view::npos) return true;
    word.remove_prefix(comma + 1);
  }
}

/// "-b 1K 1M" becomes "-b 1K,1M".
Words with_lists_joined(const CLI::App& app, const Words& words, std::size_t from) {
  Words joined(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(from));
  for (std::size_t i = from; i < words.size(); ++i) {
    joined.push_back(words[i]);
    if (words[i] == "--") {
      joined.insert(joined.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (!is_option(words[i])) continue;
    const std::size_t equals = words[i].find('=');
    // Looking for an option changes nothing, but CLI11 finds its validators for owners only.
    auto* const option =
        const_cast<CLI::Option*>(app.get_option_no_throw(words[i].substr(0, equals)));
    if (!takes_list(option)) continue;
    if (equals == std::string::npos && i + 1 < words.size() && !is_option(words[i + 1])) {
      joined.push_back(words[++i]);
    }
    while (i + 1 < words.size() && !is_option(words[i + 1]) &&
           are_values_of(option, words[i + 1])) {
      joined.back() += "," + words[++i];
    }
  }
  return joined;
}

const CLI::App& deepest_read(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

/// What no option and no argument takes.
std::string surplus(const CLI::App& app, const std::string& word) {
  if (!is_option(word)) return fmt::format("'{:.40}' is not expected", word);
  const std::string name = word.substr(0, word.find('='));
  const Words names = options_of(app);
  const auto meant = nearest_word(name, views_of(names));
  return fmt::format("there is no option {:.40}{}", name,
                     meant ? fmt::format("; did you mean {}?", *meant) : "");
}

/// The first word that can only be an option and is none. What follows a program's name is its own.
std::optional<std::string> unknown_option(const CLI::App& app, const Words& words,
                                          std::size_t from) {
  if (app.get_positionals_at_end() || app.get_prefix_command()) return std::nullopt;
  for (std::size_t i = from; i < words.size() && words[i] != "--"; ++i) {
    const bool is_long = words[i].starts_with("--");
    if (is_long && app.get_option_no_throw(words[i].substr(0, words[i].find('='))) == nullptr) {
      return words[i];
    }
  }
  return std::nullopt;
}

}  // namespace

std::string command_read(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

void add_common_options(CLI::App& app) {
  app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), CHORUS_VERSION),
                       "Print the version and exit");
  // Thrown from a callback as CLI11 itself does for --version: nothing else has to be given.
  app.add_flag_callback(
      "--man", [&app] { throw CLI::CallForVersion(manual_page(app), 0); },
      "Print the manual page (to read it: --man | man -l -) and exit");
  app.add_option_function<std::string>(
         "--completion",
         [&app](const std::string& shell) {
           throw CLI::CallForVersion(shell == "zsh" ? zsh_completion(app) : bash_completion(app),
                                     0);
         },
         "Print the completion for a shell (in bash: source <(" + app.get_name() +
             " --completion bash)) and exit")
      ->type_name("SHELL")
      ->trigger_on_parse()
      ->check(CLI::IsMember({"bash", "zsh"}));
}

std::optional<Leave> read_command_line(CLI::App& app, int argc, const char* const* argv) {
  Words words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  const CLI::App* deepest = nullptr;
  std::size_t first = 0;
  if (auto leave = follow_subcommands(app, words, deepest, first)) return leave;
  if (const auto word = unknown_option(*deepest, words, first)) {
    std::string command = app.get_name();
    for (std::size_t i = 0; i < first; ++i) command += " " + words[i];
    return usage_error(command, surplus(*deepest, *word));
  }
  words = with_lists_joined(*deepest, words, first);
  try {
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app.parse(std::move(words));
  } catch (const CLI::Success& success) {
    std::ostringstream text;
    app.exit(success, text);
    return Leave{text.str(), 0};
  } catch (const CLI::ExtrasError&) {
    const CLI::App& read = deepest_read(app);
    const Words extras = app.remaining(true);
    return usage_error(command_read(app), surplus(read, extras.empty() ? "" : extras.front()));
  } catch (const CLI::ParseError& error) {
    return usage_error(command_read(app), error.what());
  }
  return std::nullopt;
}

std::string command_given(const std::string& program, int argc, const char* const* argv) {
  std::string command = program;
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  return command;
}

int exit_code_of(const std::string& program, const std::function<int()>& run) {
  const auto complain = [&](const char* what) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), what);
  };
  try {
    return run();
  } catch (const InputError& error) {
    complain(error.what());
    return kUsageError;
  } catch (const std::bad_alloc&) {
    complain(kMemoryExhausted);
    return kUsageError;
  } catch (const std::exception& error) {
    complain(error.what());
    return 1;
  }
}

}  // namespace chorus
