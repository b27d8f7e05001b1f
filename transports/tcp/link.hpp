// A link over one or several tcp connections, by one or several cables.
#pragma once

#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transports/link/link.hpp"
#include "transports/link/mapping.hpp"
#include "transports/tcp/dial.hpp"
#include "transports/tcp/hub.hpp"
#include "transports/tcp/pace.hpp"
#include "transports/tcp/paths.hpp"
#include "transports/tcp/stream.hpp"

namespace chorus {

class TcpLink final : public Link,
                      private PostedReceives,
                      private PiggybackedCredits,
                      private FrameHandler {
 public:
  TcpLink(std::shared_ptr<TcpHub> hub, const LinkConfig& config, int num_sockets, bool same_kernel,
          const TcpAddress& peer);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  bool try_put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
               std::uint32_t tag) override;
  std::uint64_t released(ChannelId channel) const override;
  std::uint64_t arrivals(ChannelId channel) override;
  std::uint32_t tag(ChannelId channel, std::uint64_t index) const override;
  void pace(double bytes_per_s) override;
  void divide(const std::shared_ptr<const NetworkShares>& shares) override;
  [[nodiscard]] bool joined_by(std::string_view network) const override;
  bool flush() override;
  bool progress() override;
  std::span<std::byte> region() override { return region_; }
  std::span<std::byte> peer_region() override { return {}; }
  std::string_view transport() const override { return "tcp"; }
  PostedReceives* posted_receives() override { return this; }
  PiggybackedCredits* piggybacked_credits() override { return this; }

  [[nodiscard]] std::size_t num_streams() const { return streams_.size(); }
  void prepare_to_sleep() {
    looked_ = false;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (stands(i)) streams_[i].take_out();
    }
  }
  /// `each`: all sockets, and not only those for which TcpReadiness::fd() does not wake.
  void append_wake_fds(std::vector<pollfd>& fds, bool each) const;
  /// The hub has heard from `peer`, perhaps by a path that was lost.
  void returned(Rank peer);
  /// After which progress() is wanted though no descriptor is ready.
  [[nodiscard]] std::int64_t wants_progress_within_ns() const;
  static constexpr std::int64_t kNoHurry = std::numeric_limits<std::int64_t>::max();

 private:
  /// Puts of one channel going out. Pieces go through several sockets and are taken in any order.
  struct Outgoing {
    std::uint64_t made = 0;
    std::uint64_t released = 0;
    std::vector<std::uint8_t> pieces_left;  // [window], by put: not taken()
    std::uint64_t settled = 0;              // in their order; ahead of that may be what is released
    std::vector<std::uint8_t>
        pieces_read;          // [window], not freed(); where there may be several paths
    std::uint32_t total = 0;  // to be told
    std::uint32_t told = 0;
  };
  /// A put coming in.
  struct Slot {
    std::uint32_t tag = 0;
    std::uint16_t pieces = 0;     // 0: nothing of it has been announced
    std::uint16_t announced = 0;  // frames seen
    std::uint16_t arrived = 0;    // frames whose bytes are where they belong
    std::size_t bytes = 0;        // of the frames seen
    PostedReceive posted = {};    // no memory: nothing is expected
    bool in_place = false;        // its bytes belong there, not in the region
  };
  /// Slots of the last `window` arrivals, whose tags are kept, and of `window` puts to come.
  struct Incoming {
    std::uint64_t arrivals = 0;
    std::uint32_t heard = 0;  // the peer's latest total
    std::vector<Slot> slots;  // [2 · window]
  };

  /// A put that several paths share, or what is left of it.
  struct Waiting {
    TcpFrame frame;
    const std::byte* payload = nullptr;
    std::size_t bytes = 0;
    std::size_t piece_bytes = 0;
    std::size_t shared_out = 0;  // of its bytes
  };

  /// Of a path that may be lost and come again.
  struct PathState {
    bool up = false;
    std::uint32_t incarnation = 0;  // of its sockets, now or the last time
    // While it is down.
    std::vector<TcpDial> dials;  // an attempt, by the lower rank
    std::vector<Fd> ready;       // of it, by socket
    std::int64_t attempt_ends_ns = 0;
    std::int64_t not_before_ns = 0;
    int failures = 0;                  // attempts, one after the other
    std::int64_t probation_ns = 0;     // for which it is to stand before it carries puts
    std::int64_t trusted_from_ns = 0;  // when that is over
    std::vector<std::uint32_t> lived;  // incarnations that this end has used
    // What was lost.
    std::int64_t changed_at_ns = 0;  // since when it is up, or down
    std::string why;
    std::size_t frames = 0;  // that were sent again
    std::size_t bytes = 0;
    int unsettled = 0;     // sockets, in lost_
    bool overdue = false;  // packets vanish there, it seems
  };
  /// A connection that is lost, until both ends know what the other has of it.
  struct LostConnection {
    std::size_t socket = 0;
    std::uint32_t incarnation = 0;
    TcpStream stream;
    std::int64_t since_ns = 0;
    bool peer_has_stopped = false;  // believes no more acknowledgements
    bool told = false;              // how much has come
    bool heard = false;             // how much the peer has
  };
  /// When the peer's kernel last acknowledged something, or nothing was on its way.
  struct Watch {
    std::uint64_t acknowledged_bytes = 0;
    std::int64_t moved_at_ns = 0;
  };

  /// What this end has received by a stream and not told the peer's kernel, as far as it knows.
  struct Owed {
    bool any = false;
    bool large = false;              // bytes whose memory the peer keeps until then
    std::uint64_t since_frames = 0;  // of all that have arrived by any stream
  };

  void expect(ChannelId channel, std::uint64_t index, const PostedReceive& posted) override;
  bool in_place(ChannelId channel, std::uint64_t index) const override;
  void withdraw() override;

  void tell(ChannelId channel, std::uint32_t total) override;
  std::uint32_t told(ChannelId channel) const override;
  std::uint32_t heard(ChannelId channel) const override;

  void taken(const TcpFrame& frame) override;
  std::optional<std::byte*> place(const TcpFrame& frame) override;
  void arrived(const TcpFrame& frame) override;
  void freed(const TcpFrame& frame) override;
  void cut_off(const TcpFrame& frame) override;
  void heard_of_loss(const TcpFrame& frame) override { notices_.push_back(frame); }

  [[nodiscard]] std::size_t index_of(ChannelId channel) const;
  [[nodiscard]] const Slot& recent(ChannelId channel, std::uint64_t index) const;
  [[nodiscard]] bool dials() const { return hub_->rank() < peer_.rank; }
  bool connect_step();
  bool dial_all();
  bool await_all();
  bool announce_paths();
  bool hear_paths();
  void give_up(std::size_t path, const std::string& why);
  void make_streams();
  void tell_paths() const;
  void share(std::span<const std::byte> src, const TcpFrame& frame);
  void share_out_waiting();
  [[nodiscard]] std::size_t stream_of_small(std::size_t size_bytes);
  [[nodiscard]] bool holds_to_shares(const std::vector<bool>& carry) const;
  [[nodiscard]] std::optional<std::size_t> next_load(std::size_t piece_bytes) const;
  bool send_again();
  void count_load(std::size_t load, std::size_t bytes);
  void look_at_streams(std::int64_t now_ns);
  void look_at_rate(std::size_t data_stream, std::size_t backlog_bytes);
  void count_burst(std::size_t size_bytes);
  void pace_streams(double bytes_per_s);
  [[nodiscard]] std::uint64_t acknowledged_data() const;
  /// Those, of the first, that carry no data.
  [[nodiscard]] std::size_t express_streams() const {
    return paths_.front().num_sockets > 1 ? 1 : 0;
  }
  void send(std::span<const std::byte> src, TcpFrame frame);
  bool send_queued();  ///< flush(), by what is known of the room for it
  std::size_t receive_all();
  void note_received(std::size_t stream);
  void acknowledge_overdue();
  /// TcpReadiness::fd() wakes for all that is waited for there.
  [[nodiscard]] bool wakes_by_readiness(const TcpStream& stream) const;
  void judge();
  [[nodiscard]] static std::string why_broken(const TcpStream& stream);
  void take_leave();
  [[nodiscard]] bool all_taken() const;
  [[nodiscard]] bool all_free() const;
  [[noreturn]] void fail() const;

  // link_failover.cpp: where there may be several paths.
  [[nodiscard]] bool stands(std::size_t stream) const {
    return !shares_ || states_[path_of_stream_[stream]].up;
  }
  [[nodiscard]] std::size_t paths_up() const;
  void look_after_paths();
  void watch(std::int64_t now_ns);
  void lose(std::size_t path, const std::string& why);
  void take_down(std::size_t path, const std::string& why);
  void say_all_lost(std::size_t path, std::uint32_t incarnation);
  void say_lost(std::size_t socket, std::uint32_t incarnation, const std::uint64_t* received);
  void read_notice(const TcpFrame& notice);
  void settle_losses();
  void tell_loss(std::size_t path);
  void bring_back(std::int64_t now_ns);
  void dial_again(std::size_t path, std::int64_t now_ns);
  void adopt(std::size_t path);
  void start_again(std::size_t path, std::vector<Fd> sockets);
  void start_streams(std::size_t path, std::vector<Fd> sockets);
  /// Which paths [paths] are to carry puts: those that stand and have not come and gone of late, or
  /// all that stand if there is no other.
  [[nodiscard]] std::vector<bool> carrying(std::int64_t now_ns) const;
  void choose_express();
  void judge_paths();
  void wait_for_settlement();
  [[nodiscard]] std::string interface_of(std::size_t path) const;

  const std::shared_ptr<TcpHub> hub_;
  const LinkConfig config_;
  const std::size_t window_;  // max_outstanding, rounded up to a power of two
  const TcpAddress peer_;
  const bool same_kernel_;
  const std::size_t express_bytes_;  // of a put that goes through the first socket
  const std::chrono::steady_clock::time_point deadline_;
  const Mapping memory_;
  const std::span<std::byte> region_;

  // Sockets are numbered through all paths; streams are those of them that stand.
  std::vector<TcpPath> paths_;                            // the first is needed, others are welcome
  std::vector<bool> given_up_;                            // [paths]
  std::chrono::steady_clock::time_point first_stands_{};  // the first path does, since then
  std::string obstacle_ = "it has not connected";
  TcpPaths announced_;                       // which paths stand
  std::size_t announced_bytes_ = 0;          // that have come of it
  std::vector<TcpDial> dials_;               // [sockets], until connected
  std::vector<Fd> ready_;                    // [sockets], until connected
  std::vector<TcpStream> streams_;           // once connected
  std::vector<std::size_t> path_of_stream_;  // [streams]
  // There may be several paths: large puts are shared out, and frames kept until acknowledged.
  bool shares_ = false;
  std::vector<PathState> states_;  // [paths], where shares_
  std::vector<Watch> watches_;     // [streams]
  std::int64_t watched_at_ns_ = 0;
  std::size_t express_ = 0;  // the stream of small puts
  std::size_t frames_ = 0;   // that all channels may have under way
  std::vector<LostConnection> lost_;
  std::size_t unreleased_ = 0;  // puts, where there may be several paths
  std::size_t unsettled_ = 0;
  bool tight_ = false;                  // a put had to wait for one to be settled
  std::vector<TcpFrame> notices_;       // of lost connections, not yet read
  std::deque<TcpStream::Kept> resend_;  // what the peer lacks of those
  std::vector<Waiting> waiting_;        // ring; [waiting_head_, waiting_tail_) modulo its size
  std::size_t waiting_head_ = 0;
  std::size_t waiting_tail_ = 0;
  bool busy_ = false;              // something shared out is not acknowledged
  double wait_ns_ = 0;             // until the kernels have all of it, by their rates
  std::int64_t looked_at_ns_ = 0;  // at what they have
  std::size_t waiting_bytes_ = 0;  // not shared out
  std::vector<StreamRate> rates_;  // [streams for data], where shares_
  std::vector<int> unsent_limits_;
  std::int64_t rates_at_ns_ = 0;
  std::vector<StreamLoad> loads_;  // of those that stand
  std::vector<std::size_t> load_streams_;
  std::vector<std::size_t> load_paths_;
  std::shared_ptr<const NetworkShares> division_;  // as divide() was told
  std::vector<PathShare> path_shares_;             // [paths]; empty: as it comes
  bool told_of_no_path_ = false;
  bool divides_ = false;                 // by them, as the paths are just now
  std::uint64_t reads_ = 0, sends_ = 0;  // rounds of TcpReadiness
  std::vector<Owed> owed_;               // [streams], where shares_
  std::uint64_t frames_arrived_ = 0;     // by all streams
  bool brought_large_ = false;           // the stream just read: bytes whose memory peers keep
  bool looked_ = false;                  // for what has come, since prepare_to_sleep()
  Pace pace_;
  bool paced_ = false;              // the streams are, just now
  double paced_at_ = 0;             // as pace() was told
  double burst_bytes_ = 0;          // put and, at pace_, not yet gone
  std::int64_t burst_at_ns_ = 0;    // when that was
  std::vector<Outgoing> outgoing_;  // [num_channels]
  std::vector<Incoming> incoming_;  // [num_channels]
  bool leaving_ = false;            // the peer has said goodbye, on one socket at least
  bool peer_left_ = false;          // in order
  bool withdrawn_ = false;          // the owner's call has failed
  bool peer_lies_ = false;          // nothing more is read from it
  std::string failure_;             // empty while all is well
};

}  // namespace chorus
