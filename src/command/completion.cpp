#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "command/arguments.hpp"
#include "command/manual.hpp"

namespace chorus {
namespace {

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// As on the command line: "-o", "--output".
std::vector<std::string> words_of(const CLI::Option& option) {
  std::vector<std::string> words;
  for (const std::string& name : option.get_snames()) words.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.push_back("--" + name);
  return words;
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

/// What may follow an option or stand for an argument.
struct Values {
  std::vector<std::string> choices;
  bool files = false;
};

Values values_of(const CLI::Option& option) {
  Values values{.choices = choices_of(option)};
  const std::string type = option.get_type_name();
  const bool number = type.starts_with("INT") || type.starts_with("UINT") ||
                      type.starts_with("FLOAT") || type.starts_with("SIZE");
  values.files = values.choices.empty() && !number;
  return values;
}

std::string function_name(std::string name) {
  for (char& c : name) {
    if (c == '-' || c == ' ') c = '_';
  }
  return "_" + name;
}

/// A pattern of every subcommand's path ("/synth|/cluster/run"), and what bash offers in each.
void add_bash_cases(const CLI::App& app, const std::string& path, std::string& paths,
                    std::string& after_option, std::string& offered) {
  std::vector<std::string> options, words;
  bool files = false;
  for (const CLI::Option* option : app.get_options()) {
    const Values values = values_of(*option);
    if (option->get_positional()) {
      words.insert(words.end(), values.choices.begin(), values.choices.end());
      files = files || values.files;
      continue;
    }
    const std::vector<std::string> names = words_of(*option);
    options.insert(options.end(), names.begin(), names.end());
    if (is_flag(*option)) continue;
    std::string pattern;
    for (const std::string& name : names) {
      pattern += fmt::format("{}'{} {}'", pattern.empty() ? "" : "|", path, name);
    }
    after_option += fmt::format("    {}) choices='{}' files={} ;;\n", pattern,
                                fmt::join(values.choices, " "), values.files ? "yes" : "");
  }
  for (const CLI::App* sub : subcommands(app)) {
    words.push_back(sub->get_name());
    const std::string deeper = path + "/" + sub->get_name();
    paths += fmt::format("{}{}", paths.empty() ? "" : "|", deeper);
    add_bash_cases(*sub, deeper, paths, after_option, offered);
  }
  offered += fmt::format("    '{}') options='{}' choices='{}' files={} ;;\n", path,
                         fmt::join(options, " "), fmt::join(words, " "), files ? "yes" : "");
}

constexpr std::string_view kBash =
    R"(# bash completion of @NAME@, printed by it: @NAME@ --completion bash
@FUNCTION@() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local path='' options='' choices='' files='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case $path/${COMP_WORDS[i]} in
      @PATHS@) path=$path/${COMP_WORDS[i]} ;;
      */--) # another program's words
        COMPREPLY=($(compgen -c -f -- "$current"))
        return
        ;;
    esac
  done
  case "$path $previous" in
@AFTER@    *)
      case $path in
@OFFERED@      esac
      ;;
  esac
  [[ $current != -* && -n $choices$files ]] || choices=$options files=''
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
  if [ -n "$files" ]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}
complete -F @FUNCTION@ @NAME@
)";

std::string filled(std::string text,
                   std::initializer_list<std::pair<std::string_view, std::string>> values) {
  for (const auto& [mark, value] : values) {
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size()) {
      text.replace(at, mark.size(), value);
    }
  }
  return text;
}

/// Text within a specification of zsh's _arguments, which stands in single quotes.
std::string zsh_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += ' ';
    } else if (c == '\'') {
      result += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
      result += c;
    }
  }
  return result;
}

std::string zsh_values(const Values& values) {
  if (!values.choices.empty()) return fmt::format("({})", fmt::join(values.choices, " "));
  return values.files ? "_files" : " ";
}

/// A function for the app and one for each of its subcommands.
std::string zsh_functions(const CLI::App& app, const std::string& name) {
  std::string text, arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      arguments += fmt::format(" \\\n    '{}:{}:{}'", option->get_expected_max() > 1 ? "*" : "",
                               zsh_text(option->get_name(true)), zsh_values(values_of(*option)));
      continue;
    }
    const std::vector<std::string> words = words_of(*option);
    for (const std::string& word : words) {
      arguments += fmt::format(
          " \\\n    '({}){}[{}]{}'", fmt::join(words, " "), word,
          zsh_text(option->get_description()),
          is_flag(*option) ? "" : fmt::format(":value:{}", zsh_values(values_of(*option))));
    }
  }
  const std::vector<const CLI::App*> subs = subcommands(app);
  if (subs.empty()) return fmt::format("{}() {{\n  _arguments -s{}\n}}\n", name, arguments);
  std::string names, cases;
  for (const CLI::App* sub : subs) {
    const std::string deeper = name + function_name(sub->get_name());
    text += zsh_functions(*sub, deeper);
    names += fmt::format("\n    '{}:{}'", sub->get_name(), zsh_text(sub->get_description()));
    cases += fmt::format("\n    {}) {} ;;", sub->get_name(), deeper);
  }
  return text + fmt::format(R"({0}() {{
  local -a commands=({1})
  local state line
  _arguments -s -C '1:command:->command' '*::argument:->argument'{2}
  case $state in
    command) _describe command commands ;;
    argument) case $line[1] in{3}
    esac ;;
  esac
}}
)",
                            name, names, arguments, cases);
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string paths, after_option, offered;
  add_bash_cases(app, "", paths, after_option, offered);
  return filled(std::string(kBash), {{"@FUNCTION@", function_name(app.get_name())},
                                     {"@NAME@", app.get_name()},
                                     {"@PATHS@", paths.empty() ? "/" : paths},
                                     {"@AFTER@", after_option},
                                     {"@OFFERED@", offered}});
}

std::string zsh_completion(const CLI::App& app) {
  const std::string function = function_name(app.get_name());
  return fmt::format("#compdef {0}\n# Printed by it: {0} --completion zsh\n{1}{2} \"$@\"\n",
                     app.get_name(), zsh_functions(app, function), function);
}

}  // namespace chorus
