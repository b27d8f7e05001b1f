// Pictures of a report, drawn by gnuplot.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "perf/report/report.hpp"

namespace chorus::perf {

/// `text` as a string of gnuplot.
[[nodiscard]] std::string quote(std::string_view text);

/// The gnuplot commands that write `svg_path`: for every collective and transport with at least two
/// sizes, time against size (both logarithmic) beside bus bandwidth against size, one line for each
/// library. Rows with wrong results are left out. Throws chorus::InputError if nothing is left.
[[nodiscard]] std::string gnuplot_script(const Report& report, const std::string& svg_path);

/// Draws. Throws chorus::InputError if gnuplot is missing or fails, with its words.
void draw_svg(const Report& report, const std::string& svg_path);
/// The same with the commands that `script_for` gives for the file they are to write.
void draw_svg(const std::function<std::string(const std::string&)>& script_for,
              const std::string& svg_path);

}  // namespace chorus::perf
