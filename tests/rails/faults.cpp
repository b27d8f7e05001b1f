#include "faults.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include "perf/cluster/command.hpp"
#include "perf/cluster/start.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Of what `sh -c command` prints in the namespaces of `keeper`.
std::string output_of(pid_t keeper, const std::string& command) {
  Command shell;
  shell.argv = {"sh", "-c", command};
  shell.namespaces_of = keeper;
  Child child(shell);
  while (child.ended().empty()) {
    throw_if_stopped();
    ::poll(nullptr, 0, 1);
  }
  child.drain();
  if (child.ended() != "exited with 0") throw Error(command + ": " + child.output());
  return child.output();
}

}  // namespace

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::cut:
      return "cut";
    case Fault::down:
      return "down";
    case Fault::silence:
      return "silence";
    case Fault::deaf:
      return "deaf";
    case Fault::slow:
      return "slow";
  }
  return "";
}

std::int64_t Round::worst_us() const { return std::max({reduce_us, gather_us, small_us}); }

FaultyJob::FaultyJob(const std::string& cluster, const Variables& variables)
    : cluster_(std::make_unique<Cluster>(cluster_fabric(cluster), CableOptions{})) {
  const std::vector<std::string> program = {
      "sh", "-c",
      fmt::format("exec {} {}/end {}/notes$RANK 2>{}/log$RANK", FAULTS_JOB, scratch_.path(),
                  scratch_.path(), scratch_.path())};
  Variables all = {{"CHORUS_PROBE_CACHE", ""}, {"CHORUS_PROBE_MS", "0"}, {"CHORUS_FLIGHT_DIR", ""}};
  all.insert(all.end(), variables.begin(), variables.end());
  for (const Command& command : rank_commands(*cluster_, program, all)) {
    ranks_.emplace_back(command);
  }
  await_rounds(5);
}

FaultyJob::~FaultyJob() = default;

int FaultyJob::num_hosts() const { return static_cast<int>(cluster_->fabric().hosts.size()); }
bool FaultyJob::has_cable(int host, int network) const {
  return cluster_->fabric().has_cable(host, network);
}
int FaultyJob::num_networks() const { return cluster_->fabric().num_networks; }

void FaultyJob::on(int machine, const std::string& command) const {
  static_cast<void>(output_of(cluster_->keeper(machine), command));
}

/// The queue that the cluster has given `device` of `machine`.
std::string FaultyJob::shaped(int machine, const std::string& device) const {
  std::vector<int> keepers;
  for (int i = 0; i <= num_hosts(); ++i) keepers.push_back(cluster_->keeper(i));
  const Batches batches = batches_for(cluster_->fabric(), keepers, cluster_->options());
  std::istringstream lines(machine == num_hosts()
                               ? batches.switch_rates
                               : batches.host_rates[static_cast<std::size_t>(machine)]);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" dev " + device + " ") != std::string::npos) return line;
  }
  throw Error("no queue for " + device);
}

void FaultyJob::inflict(Fault fault, int host, int network) {
  const int switches = num_hosts();
  const std::string near = host_interface(network), far = cable_name(host, network);
  const auto drop = [](const std::string& device) {
    return fmt::format("tc qdisc replace dev {} root bfifo limit 1", device);
  };
  const auto slow = [&](int machine, const std::string& device) {
    std::istringstream words(shaped(machine, device));
    std::string line;
    for (std::string word; words >> word;) {
      if (word.ends_with("bit")) word = fmt::format("{}bit", std::stoll(word) / 10);
      line += " " + word;
    }
    return "tc" + line;
  };
  switch (fault) {
    case Fault::cut:
      return on(switches, fmt::format("ip link set {} down", far));
    case Fault::down:
      return on(host, fmt::format("ip link set {} down", near));
    case Fault::silence:
      on(switches, drop(far));
      return on(host, drop(near));
    case Fault::deaf:
      return on(switches, drop(far));
    case Fault::slow:
      on(switches, slow(switches, far));
      return on(host, slow(host, near));
  }
}

void FaultyJob::mend(int host, int network) {
  const int switches = num_hosts();
  const std::string near = host_interface(network), far = cable_name(host, network);
  on(switches, fmt::format("ip link set {} up && tc {}", far, shaped(switches, far)));
  on(host, fmt::format("ip link set {} up && tc {}", near, shaped(host, near)));
}

std::string FaultyJob::notes(int rank) const {
  return text_of(fmt::format("{}/notes{}", scratch_.path(), rank));
}

std::size_t FaultyJob::rounds() {
  const std::string text = notes(0);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

void FaultyJob::throw_if_ended() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].drain();
    if (!ranks_[rank].ended().empty()) {
      throw Error(fmt::format("rank {} {}\n{}", rank, ranks_[rank].ended(), said()));
    }
  }
}

void FaultyJob::await_rounds(std::size_t more) {
  const std::size_t wanted = rounds() + more;
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (rounds() < wanted) {
    throw_if_stopped();
    throw_if_ended();
    if (Clock::now() > deadline) throw Error("no call has ended for 60 s\n" + said());
    ::poll(nullptr, 0, 5);
  }
}

std::int64_t FaultyJob::sent_bytes(int host, int network) const {
  return std::stoll(
      output_of(cluster_->keeper(host),
                fmt::format("cat /sys/class/net/{}/statistics/tx_bytes", host_interface(network))));
}

bool FaultyJob::await_use(int host, int network, std::int64_t bytes, double seconds) {
  const std::int64_t wanted = sent_bytes(host, network) + bytes;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (sent_bytes(host, network) < wanted) {
    throw_if_ended();
    if (Clock::now() > deadline) return false;
    ::poll(nullptr, 0, 50);
  }
  return true;
}

bool FaultyJob::await_said(const std::string& text, std::size_t times) {
  const auto deadline = Clock::now() + std::chrono::seconds(180);
  for (;;) {
    const std::string all = said();
    std::size_t count = 0;
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) {
      ++count;
    }
    if (count >= times) return true;
    throw_if_ended();
    if (Clock::now() > deadline) return false;
    ::poll(nullptr, 0, 50);
  }
}

std::string FaultyJob::kill(int rank) {
  const auto seat = static_cast<std::size_t>(rank);
  ::kill(ranks_[seat].pid(), SIGKILL);
  static_cast<void>(how_they_end());
  return said();
}

std::string FaultyJob::end() {
  std::ofstream(scratch_.path() + "/end") << "now\n";
  const std::string text = how_they_end();
  return text.empty() ? text : text + said();
}

/// Those that do not end well.
std::string FaultyJob::how_they_end() {
  std::string text;
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    while (ranks_[rank].ended().empty() && Clock::now() < deadline) ::poll(nullptr, 0, 5);
    const std::string how = ranks_[rank].ended();
    if (how != "exited with 0") {
      text += fmt::format("rank {} {}\n", rank, how.empty() ? "did not end" : how);
    }
  }
  return text;
}

std::vector<Round> FaultyJob::rounds_of(int rank) const {
  std::vector<Round> rounds;
  std::istringstream lines(notes(rank));
  Round round;
  std::int64_t failures = 0;
  while (lines >> round.begin_us >> round.reduce_us >> round.gather_us >> round.small_us >>
         failures) {
    rounds.push_back(round);
  }
  return rounds;
}

std::int64_t FaultyJob::wrong() const {
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::istringstream lines(notes(static_cast<int>(rank)));
    Round round;
    std::int64_t failures = 0, last = 0;
    while (lines >> round.begin_us >> round.reduce_us >> round.gather_us >> round.small_us >>
           failures) {
      last = failures;
    }
    sum += last;
  }
  return sum;
}

std::string FaultyJob::said() const {
  std::string text;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    text += text_of(fmt::format("{}/log{}", scratch_.path(), rank));
  }
  return text;
}

}  // namespace chorus::perf
