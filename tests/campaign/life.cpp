// A rank of a trial: joins, does what the phase says, reads who failed, and goes on without it.
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <vector>

#include "base/text/log.hpp"
#include "chorus/communicator.hpp"
#include "chorus/error.hpp"
#include "diary.hpp"
#include "runtime/control/meet.hpp"

namespace chorus::campaign {
namespace {

/// A stopped rank is named when a call has waited this long for it.
constexpr int kTimeout_ms = 1'500;

// Cutting: on a signal a process shuts connections of its own, as a firewall or a driver would.

int coordinators_port = 0;
std::uint32_t which_one = 0;

int port_of(const sockaddr_storage& address) {
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

enum class Leads : std::uint8_t { nowhere, up, aside };

/// Calls what a signal handler may call.
Leads where(int descriptor) {
  sockaddr_storage peer{}, own{};
  socklen_t peer_size = sizeof peer, own_size = sizeof own;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0 ||
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &own_size) != 0) {
    return Leads::nowhere;
  }
  // To a relay, which has a name.
  if (peer.ss_family == AF_UNIX) {
    return peer_size > sizeof(sa_family_t) ? Leads::up : Leads::nowhere;
  }
  if (peer.ss_family != AF_INET) return Leads::nowhere;
  if (port_of(peer) == coordinators_port) return Leads::up;
  return port_of(own) == coordinators_port ? Leads::nowhere : Leads::aside;
}

void shut(Leads kind, std::uint32_t skipped) {
  constexpr int kDescriptors = 256;
  for (int descriptor = 3; descriptor < kDescriptors; ++descriptor) {
    if (where(descriptor) != kind) continue;
    if (kind == Leads::aside && skipped-- > 0) continue;
    ::shutdown(descriptor, SHUT_RDWR);
    if (kind == Leads::aside) return;
  }
}

void cut_control(int) {
  const int before = errno;
  shut(Leads::up, 0);
  errno = before;
}

void cut_data(int) {
  const int before = errno;
  std::uint32_t count = 0;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    if (where(descriptor) == Leads::aside) ++count;
  }
  if (count > 0) shut(Leads::aside, which_one % count);
  errno = before;
}

// Living.

class Life {
 public:
  Life(Shared& shared, Rank rank)
      : trial_(shared.trial), shared_(shared), rank_(rank), own_(shared.ranks[rank]) {}

  void live() {
    try {
      Communicator world = join();
      if (trial_.grows()) {
        if (rank_ == trial_.world_size) return leave_and_come(std::move(world));
        world = world.shrink(std::vector<Rank>{trial_.world_size});
      }
      if (!fails([&] { work(world); })) return;
      go_on(world);
    } catch (const std::exception& error) {
      if (trial_.phase == Phase::join && own_.named_us == 0) return name(error.what());
      own_.write(own_.broken, error.what());
    }
  }

 private:
  [[nodiscard]] Options options() const {
    Options options;
    options.transports = trial_.transport == Transport::shm ? "shm" : "tcp";
    options.on_loss = trial_.finishes ? "finish" : "error";
    options.flight_dir.clear();
    options.log_level = "error";
    options.host_probe = "off";  // in each process of each trial it would be made anew
    options.slot_bytes = 4096;
    options.timeout_ms = trial_.fault == Fault::stop ? kTimeout_ms : 20'000;
    // Nobody but a launcher knows of a rank that dies before it has come, and a stopped one does
    // not come: only time tells.
    const bool only_time =
        trial_.phase == Phase::join || trial_.grows() || trial_.fault == Fault::stop;
    options.join_timeout_ms = !only_time ? 20'000 : trial_.grows() ? 8'000 : 3'000;
    return options;
  }

  Communicator join() {
    if (trial_.phase == Phase::join) own_.in_phase = true;
    return Communicator::join(UniqueId{shared_.id.text}, rank_, trial_.processes(), options());
  }

  /// Whether it ends with the failure that was to be.
  template <typename Work>
  bool fails(Work work) {
    try {
      work();
      return false;
    } catch (const Error& error) {
      name(error.what());
      return true;
    }
  }

  void name(const std::string& sentence) {
    own_.write(own_.named, sentence);
    own_.named_us = now_us();
  }

  void reduce(Communicator& comm) {
    std::vector<std::int64_t> sum(1'000, std::int64_t{1} << comm.rank());
    comm.all_reduce<std::int64_t>(sum);
    if (sum.back() != (std::int64_t{1} << comm.world_size()) - 1) {
      throw std::runtime_error(fmt::format("a wrong sum: {}", sum.back()));
    }
  }

  /// What one rank says ends the calls of all alike.
  int of_first(Communicator& comm, int mine) {
    std::vector<int> values{comm.rank() == 0 ? mine : 0};
    comm.all_reduce<int>(values);
    return values[0];
  }
  bool enough(Communicator& comm) { return of_first(comm, shared_.enough ? 1 : 0) != 0; }

  void work(Communicator& world) {
    reduce(world);
    own_.in_phase = true;
    if (trial_.phase == Phase::leave) return;
    if (trial_.finishes) return finish(world);
    work_on(world);
  }

  void work_on(Communicator& comm) {
    for (int i = 0; !enough(comm); ++i) {
      reduce(comm);
      if (trial_.phase == Phase::shrink) {
        Communicator same = comm.shrink(std::vector<Rank>{});
        reduce(same);
      } else if (trial_.phase == Phase::split) {
        auto part = comm.split((comm.rank() + i) % 2);
        reduce(*part);
      } else if (trial_.grows()) {
        grow(comm);
      }
    }
    // What the coordinator is needed for.
    auto part = comm.split(0);
    reduce(*part);
    own_.usable_us = now_us();
  }

  void grow(Communicator& comm) {
    const int larger = trial_.processes();
    if (trial_.phase == Phase::grow) {
      const UniqueId id = comm.rank() == 0 ? UniqueId::make(larger) : UniqueId{};
      if (comm.rank() == 0) shared_.larger.hand(id.text);
      Communicator grown = comm.grow(id, larger);
      return reduce(grown);
    }
    if (of_first(comm, comm.rank() == 0 ? comm.num_waiting() : 0) == 0) return;
    Communicator grown = comm.take_in(1);
    reduce(grown);
  }

  void leave_and_come(std::optional<Communicator> world) {
    world.reset();
    own_.in_phase = true;
    for (int come = 0; !shared_.over;) {
      try {
        Options as = options();
        as.rejoin = trial_.phase == Phase::take_in;
        if (!as.rejoin) {
          if (shared_.larger.times == come) {
            ::usleep(200);
            continue;
          }
          come = shared_.larger.times;
        }
        Communicator grown =
            as.rejoin
                ? Communicator::join(UniqueId{shared_.id.text}, rank_, trial_.processes(), as)
                : Communicator::join(UniqueId{shared_.larger.text}, rank_, trial_.processes(), as);
        reduce(grown);
      } catch (const Error&) {  // of members that have failed it is told by them
      }
    }
  }

  /// Calls that survivors finish: each with the inputs that losses() tells.
  void finish(Communicator& world) {
    std::vector<Rank> ranks(static_cast<std::size_t>(world.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int call = 0; call < kCalls; ++call) {
      const int losses = world.losses().count;
      const bool ends = shared_.enough;
      std::vector<std::int64_t> data(500, ends ? 1 << 8 : 0);
      for (auto& element : data) element += std::int64_t{1} << rank_;
      bool threw = false;
      try {
        world.all_reduce<std::int64_t>(data);
      } catch (const LossError&) {
        threw = true;
      }
      std::vector<Rank> in = ranks;
      if (world.losses().count > losses) {
        if (own_.named_us == 0) name(world.losses().why);
        in.clear();
        for (const Rank r : world.losses().contributors) {
          in.push_back(ranks.at(static_cast<std::size_t>(r)));
        }
        const auto& lost = world.losses().lost;
        std::vector<Rank> left;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          const bool is_lost = std::ranges::find(lost, static_cast<Rank>(r)) != lost.end();
          if (!is_lost) left.push_back(ranks[r]);
        }
        ranks = std::move(left);
      }
      std::int64_t bits = 0;
      for (const Rank r : in) bits |= std::int64_t{1} << r;
      own_.of_call[call] = threw ? std::uint8_t{0} : static_cast<std::uint8_t>(bits);
      own_.calls = call + 1;
      if (threw) continue;
      if ((data.back() & 0xff) != bits || data.front() != data.back()) {
        throw std::runtime_error(fmt::format("a sum {} of inputs {:b}", data.back(), bits));
      }
      if (own_.named_us != 0 && own_.usable_us == 0) own_.usable_us = now_us();
      if (data.back() >> 8 != 0) return;
      ::usleep(50);
    }
    throw std::runtime_error("too many calls");
  }

  void go_on(Communicator& world) {
    if (trial_.phase == Phase::join || trial_.phase == Phase::leave) return;
    const bool is_comers = trial_.victim == trial_.world_size;
    // What fails a part, or the larger one, fails that alone, and perhaps in a call that others
    // have returned from: they are to be told.
    const bool is_other =
        is_comers || (trial_.fault == Fault::cut_data && trial_.phase == Phase::split);
    if (is_other) world.abort(own_.named);
    Communicator smaller = world.shrink(is_comers ? std::vector<Rank>{} : trial_.lost());
    reduce(smaller);
    own_.usable_us = now_us();
    auto part = smaller.split(smaller.rank() % 2);
    reduce(*part);
  }

  const Trial& trial_;
  Shared& shared_;
  Rank rank_;
  Diary& own_;
};

}  // namespace

void live(Shared& shared, Rank rank) {
  const Trial& trial = shared.trial;
  set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  if (trial.relayed) net::relay_above(1);
  if (rank == 0 && trial.place != Place::elsewhere) {
    shared.id.hand(trial.place == Place::launcher ? Launch::from_env().id
                                                  : UniqueId::make(trial.processes()).text);
  }
  if (await([&] { return shared.id.times > 0; })) {
    coordinators_port = net::Id::parse(shared.id.text).endpoint.port();
    which_one = trial.which;
    struct sigaction action {};
    action.sa_handler = trial.fault == Fault::cut_control ? cut_control : cut_data;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR1, &action, nullptr);
    shared.ranks[rank].pid = ::getpid();
    Life(shared, rank).live();
  }
  shared.ranks[rank].ended = true;
  ::_exit(0);
}

}  // namespace chorus::campaign
