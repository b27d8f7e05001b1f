#include "perf/allocation/allocation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <numeric>

#include "base/host.hpp"
#include "base/secret.hpp"
#include "chorus/error.hpp"
#include "perf/allocation/part.hpp"
#include "perf/report/json.hpp"
#include "runtime/control/net.hpp"
#include "runtime/launch/launch.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kForeverMs = 1'000'000'000;  // 11 days: rank 0 is measuring

}  // namespace

bool hosts_share_a_machine() { return std::getenv("CHORUS_MACHINE") != nullptr; }

Allocation::Allocation(const chorus::Launch& launch)
    : rank_(launch.rank), world_size_(launch.world_size), launcher_(launch.launcher) {
  const Options options = Options::from_env();
  const std::string id = resolve_id(launch, options, keep_alive_);
  control_ = Control::join(id, rank_, world_size_, options.join_timeout_ms);
  const Json mine = {{"name", host_name()},
                     {"key", host_key()},
                     {"address", control_->local_address()},
                     {"machine", machine_json(this_machine())}};
  int local_rank = 0, local_world_size = 0;
  int rank = 0;
  for (const std::string& text : exchange(mine.dump())) {
    const Json json = Json::parse(text);
    const auto key = json.at("key").get<std::string>();
    auto host = std::ranges::find(hosts_, key, &Host::key);
    if (host == hosts_.end()) {
      hosts_.push_back({.name = json.at("name"),
                        .key = key,
                        .address = json.at("address"),
                        .ranks = {},
                        .machine = machine_from(json.at("machine"))});
      host = hosts_.end() - 1;
    }
    host_of_rank_.push_back(static_cast<int>(host - hosts_.begin()));
    host->ranks.push_back(rank++);
    if (key != mine.at("key")) continue;
    if (rank - 1 < rank_) ++local_rank;
    ++local_world_size;
  }
  part_ = std::make_unique<AllocationPart>(rank_, world_size_, local_rank, local_world_size);
}

Allocation::~Allocation() {
  if (rank_ != 0) return;
  try {
    (void)exchange(Json{{"do", "leave"}}.dump());
  } catch (const std::exception&) {
    // Somebody is gone: the others hear of it from the coordinator.
  } catch (const Interrupted&) {
    // They are interrupted as well.
  }
}

std::vector<std::string> Allocation::exchange(const std::string& blob) {
  std::vector<Rank> members(static_cast<std::size_t>(world_size_));
  std::iota(members.begin(), members.end(), 0);
  const auto answers = control_->exchange(fmt::format("perf/{}", exchanges_++), members,
                                          std::as_bytes(std::span(blob)), kForeverMs, {}, [this] {
                                            throw_if_stopped();
                                            if (part_) part_->drain();
                                          });
  std::vector<std::string> texts;
  for (const auto answer : answers) {
    texts.emplace_back(reinterpret_cast<const char*>(answer.data()), answer.size());
  }
  return texts;
}

void Allocation::serve() {
  for (;;) {
    const std::string request = exchange("")[0];
    if (Json::parse(request).at("do") == "leave") return;
    (void)exchange(part_->perform(request));
  }
}

std::vector<std::string> Allocation::ask(const std::string& request) {
  (void)exchange(request);
  std::vector<std::string> answers = exchange(part_->perform(request));
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const Json json = Json::parse(answers[rank]);
    if (!json.contains("error")) continue;
    throw Error(fmt::format("rank {} on {}: {}", rank,
                            hosts_[static_cast<std::size_t>(host_of_rank_[rank])].name,
                            json.at("error").get<std::string>()));
  }
  return answers;
}

/// Workers of all ranks, by the processes of the job beside them.
class Allocation::Remote final : public Workers {
 public:
  Remote(Allocation& job, int id) : job_(job), id_(id) {}
  ~Remote() override {
    if (ended_) return;
    try {
      end(std::chrono::milliseconds(300));
    } catch (const std::exception&) {
      // The job is gone, and its processes end what they started.
    } catch (const Interrupted&) {
      // Likewise.
    }
  }

  std::string failure() override {
    // Asking all hosts takes longer than looking at children; a worker that dies is noticed by its
    // connection, so this is for those that never came.
    constexpr std::chrono::milliseconds kPause(500);
    if (Clock::now() - asked_ < kPause) return {};
    asked_ = Clock::now();
    return first_that_ended();
  }

  std::string last_words() override {
    const std::string how = first_that_ended();
    return how.empty() ? how : ": " + how;
  }

  bool all_ended() override {
    const auto states = status();
    return std::ranges::none_of(states, [](const Json& state) { return runs(state); });
  }

  std::vector<pid_t> processes() override { return {}; }

  void end(std::chrono::milliseconds patience) override {
    ended_ = true;
    (void)job_.ask(Json{{"do", "end"}, {"id", id_}, {"patience_ms", patience.count()}}.dump());
  }

 private:
  static bool runs(const Json& state) {
    return state.contains("how") && state.at("how").get<std::string>().empty();
  }

  std::vector<Json> status() {
    std::vector<Json> states;
    for (const std::string& answer : job_.ask(Json{{"do", "status"}, {"id", id_}}.dump())) {
      states.push_back(Json::parse(answer));
    }
    return states;
  }

  std::string first_that_ended() {
    const auto states = status();
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      if (!states[rank].contains("how") || runs(states[rank])) continue;
      const auto host = static_cast<std::size_t>(job_.host_of_rank_[rank]);
      return fmt::format("rank {} on {} {}{}", rank, job_.hosts_[host].name,
                         states[rank].at("how").get<std::string>(),
                         states[rank].at("words").get<std::string>());
    }
    return {};
  }

  Allocation& job_;
  int id_;
  bool ended_ = false;
  Clock::time_point asked_ = Clock::now();
};

std::unique_ptr<Workers> Allocation::start(const Command& command) {
  const int id = next_id_++;
  auto workers = std::make_unique<Remote>(*this, id);
  (void)ask(Json{
      {"do", "start"}, {"id", id}, {"argv", command.argv}, {"environment", command.environment}}
                .dump());
  return workers;
}

AcrossHosts Allocation::session(
    std::function<std::unique_ptr<Workers>(const std::vector<std::string>&)> start) {
  AcrossHosts session{.address = control_->local_address(),
                      .token = Secret::random().text(),
                      .welcomes = {},
                      .hosts = {},
                      .start = std::move(start)};
  const auto answers = ask(Json{{"do", "page"}, {"id", next_id_++}}.dump());
  for (int rank = 0; rank < world_size_; ++rank) {
    const int number = host_of_rank_[static_cast<std::size_t>(rank)];
    const Host& host = hosts_[static_cast<std::size_t>(number)];
    const Json page = Json::parse(answers[static_cast<std::size_t>(host.ranks.front())]);
    session.welcomes.push_back({.line = page.at("line"),
                                .parties = static_cast<int>(host.ranks.size()),
                                .pair = world_size_ > 1 && host_of_rank_[0] == host_of_rank_[1] &&
                                        number == host_of_rank_[0]});
    session.hosts.push_back(host.key);
  }
  return session;
}

std::string Allocation::host_list() const {
  const auto word_for = [](const Host& host) {
    try {
      if (net::resolve(host.name, 0).host() == host.address) return host.name;
    } catch (const Error&) {
      // A name that only its host knows.
    }
    return host.address;
  };
  std::string list;
  for (std::size_t r = 0; r < host_of_rank_.size();) {
    std::size_t next = r;
    while (next < host_of_rank_.size() && host_of_rank_[next] == host_of_rank_[r]) ++next;
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",",
                        word_for(hosts_[static_cast<std::size_t>(host_of_rank_[r])]), next - r);
    r = next;
  }
  return list;
}

void Allocation::begin_load(const std::vector<pid_t>& pids, const std::vector<pid_t>& launchers) {
  std::map<std::string, std::vector<pid_t>> by_host;
  std::vector<pid_t> all = launchers;
  by_host[hosts_.front().key] = launchers;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    by_host[hosts_[static_cast<std::size_t>(host_of_rank_[rank])].key].push_back(pids[rank]);
    all.push_back(pids[rank]);
  }
  if (hosts_share_a_machine()) {
    for (auto& [key, members] : by_host) members = all;
  }
  (void)ask(Json{{"do", "load"}, {"pids", by_host}}.dump());
}

Ticks Allocation::end_load() {
  Ticks most;
  double most_of_others = -1;
  for (const std::string& answer : ask(Json{{"do", "loaded"}}.dump())) {
    const Json json = Json::parse(answer);
    if (!json.contains("total")) continue;
    const Ticks ticks{.total = json.at("total"), .idle = json.at("idle"), .ours = json.at("ours")};
    const double others = ticks.total == 0
                              ? 0
                              : static_cast<double>(ticks.total - ticks.idle - ticks.ours) /
                                    static_cast<double>(ticks.total);
    if (others <= most_of_others) continue;
    most_of_others = others;
    most = ticks;
  }
  return most;
}

std::vector<std::string> variables_of_launchers() {
  return {"PMI_",          "PMIX_",          "PMI2_",        "OMPI_COMM_",    "OMPI_UNIVERSE_",
          "OMPI_APP_CTX_", "OMPI_NUM_APP_",  "OMPI_FIRST_",  "OMPI_FILE_",    "OMPI_COMMAND",
          "OMPI_ARGV",     "OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_pmix", "OMPI_MCA_initial_",
          "HYDI_",         "MPI_LOCAL",      "SLURM_STEP",   "SLURM_PROCID",  "SLURM_LOCALID",
          "SLURM_NODEID",  "SLURM_TASK_PID", "SLURM_GTIDS",  "SLURM_SRUN_",   "RANK",
          "WORLD_SIZE",    "LOCAL_RANK",     "LOCAL_WORLD_", "GROUP_RANK",    "MASTER_",
          "TORCHELASTIC_", "CHORUS_ID",      "CHORUS_RANK",  "CHORUS_WORLD_", "CHORUS_LOCAL_"};
}

std::vector<ReportHost> report_hosts(const Allocation& job) {
  std::vector<ReportHost> hosts;
  for (const Allocation::Host& host : job.hosts()) {
    hosts.push_back({.name = host.name, .ranks = host.ranks, .machine = host.machine});
  }
  return hosts;
}

}  // namespace chorus::perf
