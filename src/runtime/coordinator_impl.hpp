// What a Coordinator holds. Private to coordinator.cpp and coordinator_join.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "runtime/control.hpp"
#include "runtime/control_net.hpp"
#include "runtime/control_table.hpp"
#include "runtime/control_wire.hpp"
#include "runtime/coordinator_judge.hpp"

namespace chorus {

struct Coordinator::Impl {
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  /// One joining of all ranks.
  struct Session {
    Judge judge;
    std::vector<std::uint64_t> connections;  ///< [world_size], 0: none
  };

  struct Connection {
    net::Socket socket;
    std::string peer;  ///< its address, for the log
    wire::Nonce nonce{};
    Time since{};
    Session* session = nullptr;  ///< none until the secret is proved
    Rank rank = -1;
    wire::Inbox inbox{wire::kMaxHandshake};
    wire::Outbox outbox;
    bool closing = false;  ///< when the outbox is empty
    bool wants_output = false;
    bool shares = false;  ///< its process can open what this one has open
    /// What it was referred to and has not answered yet.
    struct Referred {
      std::uint64_t number;
      std::shared_ptr<const SharedFrame> shared;
      wire::Frame frame;
    };
    std::deque<Referred> referred;
  };

  /// The end of the thread, which outlives the rest of the coordinator by a moment.
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
  };

  Impl(int world_size, std::string_view interface_name, std::uint16_t port, const Secret& known,
       Host kind);
  ~Impl();

  void run();
  void wake() const;

  net::Id id;
  int owner_generation = net::fork_generation();
  std::atomic<bool> finished{false};
  std::mutex mutex;  ///< guards reports
  std::vector<std::pair<Rank, std::string>> reports;

 private:
  void watch(int fd, std::uint64_t token, std::uint32_t events, int operation) const;
  [[nodiscard]] int wait_ms(Time now) const;
  void accept_all(Time now);
  void make_room_for_descriptors() const;
  void wait_for_descriptors(int error, Time now);
  void drop_oldest_stranger();
  void handle(std::uint64_t token, std::uint32_t events, Time now);
  bool read(std::uint64_t token, Connection& connection, Time now);
  void hear(std::uint64_t token, Connection& connection, const wire::Inbox::Item& item, Time now);
  void greet(std::uint64_t token, Connection& connection, const wire::Hello& hello, Time now);
  void greet_follower(std::uint64_t token, Connection& connection, const wire::Hello& hello,
                      Time now);
  void let_in(std::uint64_t token, Connection& connection, const wire::Hello& hello,
              Session& session);
  std::optional<std::string> why_refused(const wire::Hello& hello, Time now);
  [[nodiscard]] bool comes_too_early(const wire::Hello& hello) const;
  Session* session_for(Rank rank);
  Session& open_session(Time now);
  void refuse(Connection& connection, const std::string& sentence, LogLevel level);
  void refuse_secret(Connection& connection, const wire::Hello& hello);
  void expel(std::uint64_t token, Connection& connection, const std::string& why, Time now);
  void add(Connection& connection, const wire::Frame& frame);
  /// Frames that have memory of their own already, in one round of settle().
  using Shared = std::map<const wire::Bytes*, std::shared_ptr<const SharedFrame>>;
  void add_shared(Connection& connection, const wire::Frame& frame, Shared& shared);
  void hear_of_shared(std::uint64_t token, Connection& connection, wire::Reader body, Time now);
  void flush(std::uint64_t token, Time now);
  void lose(std::uint64_t token, std::string_view how, Time now);
  void take_reports(Time now);
  void settle(Time now);

  int world_size_;
  Host host_;
  net::Socket listener_, epoll_, wake_;
  net::Socket reserve_;  ///< a descriptor for the time when there are no more
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t next_token_ = 2;
  std::uint64_t num_referred_ = 0;
  std::size_t num_strangers_ = 0;
  std::deque<std::pair<Time, std::uint64_t>> expelled_;  ///< to be gone by then, oldest first
  int num_wrong_secrets_ = 0;
  std::string refusals_;  ///< of wrong secrets, for those who wait
  int num_warnings_ = 0;
  Time refusing_since_, refused_last_;              ///< for want of descriptors
  std::vector<std::unique_ptr<Session>> sessions_;  ///< those that are not over, oldest first
  bool any_session_over_ = false;
  std::map<Rank, std::string> gone_;  ///< processes that the launcher saw end
  std::atomic<bool> stop_{false};
  std::shared_ptr<End> end_ = std::make_shared<End>();
};

}  // namespace chorus
