// A link over one or several tcp connections, by one or several cables.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transports/link.hpp"
#include "transports/mapping.hpp"
#include "transports/tcp_dial.hpp"
#include "transports/tcp_hub.hpp"
#include "transports/tcp_paths.hpp"
#include "transports/tcp_stream.hpp"

namespace chorus {

class TcpLink final : public Link, private Landings, private Totals, private FrameHandler {
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
  bool flush() override;
  bool progress() override;
  std::span<std::byte> region() override { return region_; }
  std::span<std::byte> peer_region() override { return {}; }
  std::string_view transport() const override { return "tcp"; }
  Landings* landings() override { return this; }
  Totals* totals() override { return this; }

  void prepare_to_sleep() {
    for (TcpStream& stream : streams_) stream.take_out();
  }
  void append_wake_fds(std::vector<Transport::WakeFd>& fds) const;

 private:
  /// Puts of one channel going out. Pieces go through several sockets and are taken in any order.
  struct Outgoing {
    std::uint64_t made = 0;
    std::uint64_t released = 0;
    std::vector<std::uint8_t> pieces_left;  // [window], by put
    std::uint32_t total = 0;                // to be told
    std::uint32_t told = 0;
  };
  /// A put coming in.
  struct Slot {
    std::uint32_t tag = 0;
    std::uint16_t pieces = 0;     // 0: nothing of it has been announced
    std::uint16_t announced = 0;  // frames seen
    std::uint16_t arrived = 0;    // frames whose bytes are where they belong
    std::size_t bytes = 0;        // of the frames seen
    Landing landing = {};         // no memory: nothing is expected
    bool landed = false;          // its bytes belong there, not in the region
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

  void expect(ChannelId channel, std::uint64_t index, const Landing& landing) override;
  bool landed(ChannelId channel, std::uint64_t index) const override;
  void withdraw() override;

  void tell(ChannelId channel, std::uint32_t total) override;
  std::uint32_t told(ChannelId channel) const override;
  std::uint32_t heard(ChannelId channel) const override;

  void taken(const TcpFrame& frame) override;
  std::optional<std::byte*> place(const TcpFrame& frame) override;
  void arrived(const TcpFrame& frame) override;

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
  void look_at_streams(std::int64_t now_ns);
  void look_at_rate(std::size_t data_stream, std::size_t backlog_bytes);
  void count_burst(std::size_t size_bytes);
  void pace_streams(double bytes_per_s);
  /// Those, of the first, that carry no data.
  [[nodiscard]] std::size_t express_streams() const {
    return paths_.front().num_sockets > 1 ? 1 : 0;
  }
  void send(std::span<const std::byte> src, TcpFrame frame);
  std::size_t receive_all();
  void judge();
  [[nodiscard]] bool all_taken() const;
  [[noreturn]] void fail() const;

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
  std::vector<int> quiet_turns_;             // [streams], since it brought something
  bool shares_ = false;                      // several paths stand: large puts are shared out
  std::vector<Waiting> waiting_;             // ring; [waiting_head_, waiting_tail_) modulo its size
  std::size_t waiting_head_ = 0;
  std::size_t waiting_tail_ = 0;
  bool busy_ = false;              // something shared out is not acknowledged
  std::size_t waiting_bytes_ = 0;  // not shared out
  std::vector<StreamRate> rates_;  // [streams for data], where shares_
  std::vector<int> unsent_limits_;
  std::int64_t rates_at_ns_ = 0;
  std::vector<StreamLoad> loads_;  // the same
  std::uint64_t turn_ = 0;
  double pace_ = 0;                 // bytes per second
  bool paced_ = false;              // the streams are, just now
  double burst_bytes_ = 0;          // put and, at pace_, not yet gone
  std::int64_t burst_at_ns_ = 0;    // when that was
  std::vector<Outgoing> outgoing_;  // [num_channels]
  std::vector<Incoming> incoming_;  // [num_channels]
  bool peer_left_ = false;          // in order
  bool peer_lies_ = false;          // nothing more is read from it
  std::string failure_;             // empty while all is well
};

}  // namespace chorus
