// A link over reliable connections of one or several adapters, with the control connection of its
// pair as the last resort.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/text/log.hpp"
#include "transports/link/link.hpp"
#include "transports/link/mapping.hpp"
#include "transports/rdma/rail.hpp"
#include "transports/rdma/registered.hpp"
#include "transports/tcp/dial.hpp"
#include "transports/tcp/hub.hpp"
#include "transports/tcp/stream.hpp"

namespace chorus {

class RdmaLink;

/// What the links of one transport share, and what outlives the transport with them.
struct RdmaHub {
  std::shared_ptr<TcpHub> control;
  RdmaSettings settings;
  std::vector<std::shared_ptr<RdmaDevice>> devices;
  RdmaRegistrations registrations;
  std::vector<RdmaLink*> links;
  std::set<std::string> told;

  /// Of what many links would say alike: whether none has said it yet.
  [[nodiscard]] bool first_time(const std::string& what);
};

class RdmaLink final : public Link,
                       public ReachesOutside,
                       private FrameHandler,
                       private PiggybackedCredits {
 public:
  RdmaLink(std::shared_ptr<RdmaHub> hub, const LinkConfig& config, const RdmaAddress& own,
           const RdmaAddress& peer, bool same_kernel);
  ~RdmaLink() override;
  RdmaLink(const RdmaLink&) = delete;
  RdmaLink& operator=(const RdmaLink&) = delete;

  bool try_put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
               std::uint32_t tag) override;
  std::uint64_t released(ChannelId channel) const override;
  std::uint64_t arrivals(ChannelId channel) override;
  std::uint32_t tag(ChannelId channel, std::uint64_t index) const override;
  PiggybackedCredits* piggybacked_credits() override { return this; }
  bool progress() override;
  std::span<std::byte> region() override { return region_; }
  std::span<std::byte> peer_region() override { return {}; }
  std::string_view transport() const override { return "rdma"; }

  void send_from(std::shared_ptr<DeviceMemory> memory, std::uint64_t at,
                 std::size_t bytes) override;
  void land_in(std::shared_ptr<DeviceMemory> memory, std::uint64_t at, std::size_t bytes) override;

  /// Keeps up a link that no running collective uses: what a rail lost after its last put was
  /// posted, the peer still waits for. Never throws; a failure is told when the link is used.
  void service();
  void arm();
  void look_at_control() { look_now_ = true; }
  [[nodiscard]] bool connected() const { return connected_; }
  void append_wake_fds(std::vector<pollfd>& fds) const;

  [[nodiscard]] const RdmaCounters& counters() const { return counters_; }
  /// Rails that carry traffic now; 0 once connected: the control connection does.
  [[nodiscard]] std::size_t live_rails() const { return live_.size(); }
  [[nodiscard]] const RdmaHub& hub() const { return *hub_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// A put as its sender must know it until the peer has taken it. Its bytes lie in the outbox, or
  /// with the caller until the adapters have them.
  struct Put {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    const std::byte* src = nullptr;    ///< the caller's; null: all in the outbox
    const RdmaMemory* keys = nullptr;  ///< of src, [devices]
    std::uint16_t copied = 0;          ///< bit mask of pieces that are in the outbox all the same
    std::uint8_t pieces = 1;
    bool small = false;                 ///< wholly in its slot
    bool bare = false;                  ///< with the tag of the put before it
    std::uint8_t rail[kMaxRails] = {};  ///< by piece; kOverControl: none could carry it
    /// With src: the rail's count of acknowledged requests that sets a piece free; 0: it is.
    std::uint64_t until[kMaxRails] = {};
  };
  static constexpr std::uint8_t kOverControl = 0xff;
  struct Outgoing {
    std::uint64_t made = 0;
    std::uint64_t released = 0;
    std::uint64_t taken = 0;  ///< by the peer, as far as known
    std::uint32_t last_tag = 0;
    std::uint32_t total = 0;  ///< to tell
    std::uint32_t told = 0;   ///< of it, in slots
    std::vector<Put> puts;    // [window]
  };
  /// A put coming in.
  struct Entry {
    std::uint32_t tag = 0;
    std::uint16_t got = 0;    ///< bit mask of pieces
    std::uint8_t pieces = 0;  ///< 0: not yet known
    bool bare = false;
  };
  struct Incoming {
    std::uint64_t arrivals = 0;
    std::uint64_t told = 0;      ///< of these, as the peer knows
    std::uint32_t heard = 0;     ///< the peer's total
    std::vector<Entry> entries;  // [2 · window]: past tags and puts to come
  };
  /// An attempt to bring a rail back (return.cpp).
  struct Return {
    std::unique_ptr<RdmaRail> rail;  ///< the new one, offered to the peer
    RdmaConnect::Rail offer_out;
    RdmaConnect::Rail offer_in;
    bool heard = false;        ///< the peer's offer
    bool joined = false;       ///< connected to what the peer offered
    bool peer_joined = false;  ///< and the peer to this
    std::optional<bool> own;   ///< verdict on it
    std::optional<bool> peer;  ///< the peer's
    bool hasty = true;         ///< may be tried as soon as the adapter says that its port is back
    std::uint64_t news = 0;    ///< RdmaDevice::news() when it was last looked at
    Clock::duration pause{};   ///< between attempts
    Clock::time_point next_try{};
    std::optional<Clock::time_point> since;  ///< when it last came back
  };
  /// A rail and how far its end has been dealt with.
  struct Track {
    std::unique_ptr<RdmaRail> rail;
    std::size_t port = 0;  ///< of the hub's devices
    std::size_t peer_port = 0;
    bool once_up = false;  ///< both ends have used it
    bool down = false;
    bool told = false;        ///< the peer, what had come over it
    bool heard = false;       ///< what had come there
    bool settled = false;     ///< what was lost has been sent again
    bool noticed = false;     ///< at this end, not by the peer's word, and a warning is due for it
    std::string warning;      ///< that it is down, as long as it is not said
    std::uint64_t fault = 0;  ///< of its port that took it down, by RdmaDevice::faults(); or none
    Clock::time_point warn_by{};
    std::string absent;  ///< why there never was a rail
    std::vector<std::byte> table_out;
    std::vector<std::byte> table_in;
    Return returning;
  };
  struct Lost {
    std::size_t channel;
    std::uint64_t put;
    std::uint8_t piece;
  };

  // link.cpp: puts and arrivals
  [[nodiscard]] std::size_t index_of(ChannelId channel) const;
  [[nodiscard]] RdmaSlot* slot_in(std::span<std::byte> box, std::size_t channel,
                                  std::uint64_t put) const;
  /// Where a piece lies in the region, whoever's memory its bytes are in.
  struct Part {
    std::size_t offset;
    std::size_t size;
  };
  [[nodiscard]] static Part part_of(const Put& put, std::size_t piece);
  [[nodiscard]] std::span<const std::byte> bytes_of(const Put& put, std::size_t piece) const;
  [[nodiscard]] bool acknowledged(const Put& put) const;
  void release();
  void let_go(std::size_t rail);
  void save(Put& put, std::size_t piece);
  [[nodiscard]] std::optional<std::size_t> choose_rails(Put& put);
  [[nodiscard]] std::size_t requests_for(const Put& put, std::size_t piece) const;
  void send_piece(std::size_t channel, std::uint64_t put, std::size_t piece);
  void send_over_control(std::size_t channel, std::uint64_t number, std::size_t piece);
  void on_immediate(std::uint32_t bits);
  void on_slot(std::size_t channel, std::uint64_t put);
  void got_piece(std::size_t channel, std::uint64_t put, std::uint32_t piece);
  [[nodiscard]] bool send_credits();
  void tell(ChannelId channel, std::uint32_t total) override;
  [[nodiscard]] std::uint32_t told(ChannelId channel) const override;
  [[nodiscard]] std::uint32_t heard(ChannelId channel) const override;
  void on_total(std::size_t channel, std::uint32_t total);
  [[nodiscard]] std::size_t poll_rails();
  std::size_t advance(bool flush);
  void linger();
  [[noreturn]] void fail() const;

  // outside.cpp: memory that only adapters reach
  /// A piece of it, and by which keys the adapters know it.
  struct Outside {
    std::shared_ptr<DeviceMemory> memory;
    std::uint64_t at = 0;
    std::size_t bytes = 0;
    std::vector<RdmaMemory> keys;  // [devices]
    [[nodiscard]] bool holds(std::span<const std::byte> piece) const;
  };
  [[nodiscard]] Outside reach(std::shared_ptr<DeviceMemory> memory, std::uint64_t at,
                              std::size_t bytes, int access) const;
  /// Into the outbox.
  void copy(std::span<const std::byte> src, std::byte* to);
  /// What came into this process into the region, wherever that is.
  [[nodiscard]] bool bring_out(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] std::size_t region_bytes() const;
  [[nodiscard]] RdmaConnect::Rail end_of(const RdmaRail& rail, std::size_t port) const;
  void believe(const RdmaConnect& said) const;

  // control.cpp: connecting, and what happens when a rail ends
  void make_rails(const RdmaAddress& own);
  bool connect_step();
  void on_connect();
  void on_ready(std::uint32_t mask);
  void taken(const TcpFrame& frame) override;
  std::optional<std::byte*> place(const TcpFrame& frame) override;
  void arrived(const TcpFrame& frame) override;
  void enqueue(std::uint16_t magic, std::size_t channel, std::span<const std::byte> payload,
               std::uint32_t tag = 0);
  std::size_t hear_control();
  void take_down(std::size_t rail, const std::string& why, bool by_peer);
  void find_live();
  void recover();
  void tell_what_came(Track& track, std::size_t rail);
  void find_lost(std::size_t rail);
  [[nodiscard]] bool resend();
  [[nodiscard]] std::size_t table_bytes() const;
  [[nodiscard]] RdmaRail::Depths depths_for(const RdmaDevice& device) const;

  // warnings.cpp: what is said of it
  [[nodiscard]] bool lower() const;
  [[nodiscard]] std::string going_on() const;
  void say(LogLevel level, const std::string& text) const;
  void say_down(Track& track, const std::string& why, bool by_peer);
  void warn_down(Track& track, LogLevel level);
  void warn_late(Track& track);
  void say_back(const Track& track);
  [[nodiscard]] bool first_of_port(const Track& track, const char* what) const;
  void say_absent(std::uint32_t peer);

  // return.cpp: and when it works again
  void plan_return(Track& track);
  void bring_back();
  void try_return(std::size_t rail);
  [[nodiscard]] bool offer(std::size_t rail);
  void conclude(std::size_t rail);

  const std::shared_ptr<RdmaHub> hub_;
  const LinkConfig config_;
  const std::size_t window_;  // puts of a channel that may be ahead of what the peer has taken
  const RdmaAddress peer_;
  const bool same_kernel_;
  const Clock::time_point deadline_;
  const std::size_t slots_bytes_;
  Mapping inbox_memory_;
  Mapping outbox_memory_;
  std::span<std::byte> inbox_;   // slots, then the region
  std::span<std::byte> outbox_;  // what the peer's inbox shall hold, at the same places
  std::span<std::byte> region_;

  RdmaCounters counters_;
  Outside source_;             // of puts
  Outside landing_;            // of the peer's puts
  std::vector<Track> tracks_;  // end before the memory that they use
  std::vector<std::size_t> live_;
  std::size_t turn_of_rail_ = 0;
  std::vector<Lost> lost_;
  bool recovering_ = false;
  std::size_t away_ = 0;  // rails that are settled and may come back

  std::optional<TcpDial> dial_;
  std::optional<TcpStream> control_;
  RdmaConnect connect_out_;
  RdmaConnect connect_in_;
  bool connect_heard_ = false;
  std::optional<std::uint32_t> ready_mask_;  // own
  std::optional<std::uint32_t> peer_mask_;
  bool connected_ = false;
  bool look_now_ = true;
  std::uint64_t turn_ = 0;

  std::vector<Outgoing> outgoing_;  // [num_channels]
  std::vector<Incoming> incoming_;  // [num_channels]
  std::uint64_t unreleased_ = 0;    // puts whose src the adapters may still read
  bool credits_owed_ = false;
  bool peer_left_ = false;
  bool peer_lies_ = false;
  std::string failure_;
  bool failed_while_unused_ = false;  // what came before it has not been looked at yet
};

}  // namespace chorus
