#include "perf/cluster/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace chorus::perf {

std::string bound_table(const Report& report, Style style) {
  const std::vector<std::string> libraries = libraries_of(report.rows);
  Table table{.header = {"collective", "over", "size", "bound ms"}, .rows = {}, .left_columns = 2};
  for (const std::string& library : libraries) {
    table.header.push_back(library + " ms");
    table.header.emplace_back("of bound");
  }
  const auto key = [](const Row& row) {
    return std::tie(row.collective, row.transport, row.bytes);
  };
  for (std::size_t i = 0; i < report.rows.size();) {
    const Row& first = report.rows[i];
    std::size_t end = i;
    while (end < report.rows.size() && key(report.rows[end]) == key(first)) ++end;
    if (first.bound_us > 0) {
      std::vector<std::string> cells = {first.collective, first.transport, human_bytes(first.bytes),
                                        fmt::format("{:.4g}", first.bound_us / 1000)};
      for (const std::string& library : libraries) {
        const auto row = std::find_if(&report.rows[i], &report.rows[0] + end,
                                      [&](const Row& r) { return r.library == library; });
        const bool has = row != &report.rows[0] + end && row->p50_us && row->wrong == 0;
        cells.push_back(has ? fmt::format("{:.4g}", *row->p50_us / 1000) : "—");
        cells.push_back(has ? fmt::format("{:.1f}%", 100 * row->bound_us / *row->p50_us) : "—");
      }
      table.rows.push_back(std::move(cells));
    }
    i = end;
  }
  if (table.rows.empty()) return {};
  const std::string title = "median time in ms, and the share of it that the cables need";
  return (style == Style::markdown ? "\n**" + title + "**\n\n" : "\n# " + title + "\n") +
         render(table, style);
}

}  // namespace chorus::perf
