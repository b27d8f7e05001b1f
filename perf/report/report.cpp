#include "perf/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "perf/report/json.hpp"

namespace chorus::perf {
namespace {

constexpr int kVersion = 1;

Json optional_json(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::optional<double> optional_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (value.is_null()) return std::nullopt;
  return value.get<double>();
}

Json row_json(const Row& row) {
  return {{"collective", row.collective},
          {"transport", row.transport},
          {"library", row.library},
          {"ranks", row.ranks},
          {"bytes", row.bytes},
          {"count", row.count},
          {"type", row.type},
          {"op", row.op},
          {"p50_us", optional_json(row.p50_us)},
          {"p99_us", optional_json(row.p99_us)},
          {"min_us", row.min_us},
          {"p50_us_by_round", row.p50_us_by_round},
          {"iterations", row.iterations},
          {"algbw", row.algbw},
          {"busbw", row.busbw},
          {"wrong", row.wrong},
          {"first_wrong", row.first_wrong},
          {"idle_share", row.idle_share},
          {"others_share", row.others_share},
          {"reason", row.reason},
          {"note", row.note},
          {"bound_us", row.bound_us},
          {"faster_us", row.faster_us}};
}

Row row_from(const Json& json) {
  Row row;
  row.collective = json.at("collective").get<std::string>();
  row.transport = json.at("transport").get<std::string>();
  row.library = json.at("library").get<std::string>();
  row.ranks = json.at("ranks").get<int>();
  row.bytes = json.at("bytes").get<std::uint64_t>();
  row.count = json.at("count").get<std::uint64_t>();
  row.type = json.at("type").get<std::string>();
  row.op = json.at("op").get<std::string>();
  row.p50_us = optional_at(json, "p50_us");
  row.p99_us = optional_at(json, "p99_us");
  row.min_us = json.at("min_us").get<double>();
  row.p50_us_by_round = json.at("p50_us_by_round").get<std::vector<double>>();
  row.iterations = json.at("iterations").get<std::uint64_t>();
  row.algbw = json.at("algbw").get<double>();
  row.busbw = json.at("busbw").get<double>();
  row.wrong = json.at("wrong").get<std::uint64_t>();
  row.first_wrong = json.at("first_wrong").get<std::string>();
  row.idle_share = json.at("idle_share").get<double>();
  row.others_share = json.at("others_share").get<double>();
  row.reason = json.at("reason").get<std::string>();
  row.note = json.at("note").get<std::string>();
  row.faster_us = json.value("faster_us", 0.0);
  row.bound_us = json.value("bound_us", 0.0);  // results of before emulated clusters have none
  if (row.p50_us && *row.p50_us <= 0) throw InputError("a row's p50_us is not positive");
  return row;
}

Json hosts_json(const std::vector<ReportHost>& hosts) {
  Json all = Json::array();
  for (const ReportHost& host : hosts) {
    all.push_back(
        {{"name", host.name}, {"ranks", host.ranks}, {"machine", machine_json(host.machine)}});
  }
  return all;
}

/// What results from before jobs across hosts do not have.
void read_job(const Json& json, Report& report) {
  report.launcher = json.value("launcher", "");
  for (const Json& host : json.value("hosts", Json::array())) {
    report.hosts.push_back({.name = host.at("name").get<std::string>(),
                            .ranks = host.at("ranks").get<std::vector<int>>(),
                            .machine = machine_from(host.at("machine"))});
  }
  for (const Json& absent : json.value("not_measured", Json::array())) {
    report.absent.push_back({.library = absent.at("name").get<std::string>(),
                             .reason = absent.at("reason").get<std::string>()});
  }
}

void check_header(const Json& json) {
  if (!json.is_object() || !json.contains("format") || json.at("format") != "chorus-perf") {
    throw InputError("not a result of chorus-perf; give a file that its --json wrote");
  }
  const int version = json.at("version").get<int>();
  if (version != kVersion) {
    throw InputError(fmt::format(
        "version {} of the format, and this chorus-perf reads version {}; use a newer one", version,
        kVersion));
  }
}

}  // namespace

std::string to_json(const Report& report) {
  Json peers = Json::array();
  for (const Peer& peer : report.peers) {
    peers.push_back(Json{{"name", peer.name},
                         {"transport", peer.transport},
                         {"version", peer.version},
                         {"command", peer.command}});
  }
  Json rows = Json::array();
  for (const Row& row : report.rows) rows.push_back(row_json(row));
  Json absent = Json::array();
  for (const Absent& one : report.absent) {
    absent.push_back(Json{{"name", one.library}, {"reason", one.reason}});
  }
  const Json json = {{"format", "chorus-perf"},
                     {"version", kVersion},
                     {"date", report.date},
                     {"commit", report.commit},
                     {"command", report.command},
                     {"machine", machine_json(report.machine)},
                     {"launcher", report.launcher},
                     {"hosts", hosts_json(report.hosts)},
                     {"rounds", report.rounds},
                     {"in_place", report.in_place},
                     {"dirty", report.dirty},
                     {"offset_bytes", report.offset_bytes},
                     {"libraries", peers},
                     {"not_measured", absent},
                     {"rows", rows}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Report report_from_json(std::string_view text, std::string_view where) try {
  const Json json = Json::parse(text);
  check_header(json);
  Report report;
  report.date = json.at("date").get<std::string>();
  report.commit = json.at("commit").get<std::string>();
  report.command = json.at("command").get<std::string>();
  report.machine = machine_from(json.at("machine"));
  read_job(json, report);
  report.rounds = json.at("rounds").get<int>();
  report.in_place = json.at("in_place").get<bool>();
  report.dirty = json.at("dirty").get<bool>();
  report.offset_bytes = json.value("offset_bytes", 0);  // records of before have none
  for (const Json& peer : json.at("libraries")) {
    report.peers.push_back({.name = peer.at("name").get<std::string>(),
                            .transport = peer.at("transport").get<std::string>(),
                            .version = peer.at("version").get<std::string>(),
                            .command = peer.at("command").get<std::string>()});
  }
  for (const Json& row : json.at("rows")) report.rows.push_back(row_from(row));
  return report;
} catch (const Json::exception& error) {
  throw InputError(fmt::format("{}: {}", where, error.what()));
} catch (const InputError& error) {
  throw InputError(fmt::format("{}: {}", where, error.what()));
}

Report load_report(const std::string& path) { return report_from_json(read_file(path), path); }

std::vector<std::string> libraries_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    if (std::find(names.begin(), names.end(), row.library) == names.end()) {
      names.push_back(row.library);
    }
  }
  return names;
}

}  // namespace chorus::perf
