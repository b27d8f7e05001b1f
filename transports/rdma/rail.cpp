#include "transports/rdma/rail.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/secret.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

constexpr auto kDrainPatience = std::chrono::milliseconds(1000);
constexpr int kWantedInline = 256;

std::string hint_for(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return ": the peer or the way to it does not answer (CHORUS_RDMA_TIMEOUT, "
             "CHORUS_RDMA_RETRY say how long to try)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return ": the peer's receive queue stayed empty";
    case IBV_WC_REM_ACCESS_ERR:
      return ": the peer's adapter refused access to its memory";
    default:
      return "";
  }
}

std::string no_connection(const RdmaPort& own, const RdmaAddress::Port& peer, int error) {
  std::string between;
  std::string ask = "is it on the same network, with the same MTU?";
  if (own.ethernet) {
    between = fmt::format(" from GID {} to {}", text_of(own.gid), text_of(peer.gid));
    if (is_ipv4(own.gid) != is_ipv4(peer.gid)) {
      ask =
          "one is an IPv4 address and the other is not: CHORUS_RDMA_GID_INDEX has to name GIDs of "
          "one kind on all hosts";
    }
  }
  return fmt::format("no connection to the peer's {} port {}{}: {} ({})", peer.device.data(),
                     peer.number, between, std::strerror(error), ask);
}

}  // namespace

RdmaRail::RdmaRail(std::shared_ptr<RdmaDevice> device, const RdmaSettings& settings, Depths depths,
                   std::span<std::byte> inbox, std::span<std::byte> outbox, RdmaCounters& counters)
    : device_(std::move(device)),
      settings_(settings),
      counters_(counters),
      depths_{depths.send, depths.receive + kRefill},
      depth_(static_cast<std::uint64_t>(depths.send)) {
  if (depths_.send > device_->max_queue() || depths_.receive > device_->max_queue() ||
      depths_.send + depths_.receive > device_->max_completions()) {
    throw LinkError(fmt::format("{} holds {} requests per queue, and {} are needed", name(),
                                device_->max_queue(), std::max(depths_.send, depths_.receive)));
  }
  inbox_ = RdmaMemory(device_, inbox.data(), inbox.size(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  outbox_ = RdmaMemory(device_, outbox.data(), outbox.size(), 0);
  queue_ = device_->verbs().create_cq(device_->context(), depths_.send + depths_.receive, nullptr,
                                      device_->channel(), 0);
  if (queue_ == nullptr) {
    throw LinkError(fmt::format("{} gives no completion queue: {}", name(), why_refused(errno)));
  }
  for (int inline_bytes = kWantedInline; pair_ == nullptr && inline_bytes >= 0;
       inline_bytes -= kWantedInline / 4) {
    create_queue_pair(inline_bytes);
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = static_cast<std::uint8_t>(device_->port().number);
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (pair_ == nullptr || device_->verbs().modify_qp(pair_, &attr, mask) != 0) {
    const int error = errno;
    release();
    throw LinkError(fmt::format("{} gives no queue pair: {}", name(), why_refused(error)));
  }
  post_receives(depths_.receive);
  std::uint32_t random = 0;
  std::memcpy(&random, Secret::random().bytes.data(), sizeof random);
  first_packet_ = random & 0xffffff;
}

RdmaRail::~RdmaRail() { release(); }

void RdmaRail::release() {
  if (pair_ != nullptr) device_->verbs().destroy_qp(pair_);
  if (queue_ != nullptr) device_->verbs().destroy_cq(queue_);
  pair_ = nullptr;
  queue_ = nullptr;
}

void RdmaRail::create_queue_pair(int inline_bytes) {
  ibv_qp_init_attr attr{};
  attr.send_cq = queue_;
  attr.recv_cq = queue_;
  attr.cap.max_send_wr = static_cast<std::uint32_t>(depths_.send);
  attr.cap.max_recv_wr = static_cast<std::uint32_t>(depths_.receive);
  attr.cap.max_send_sge = 1;
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = static_cast<std::uint32_t>(inline_bytes);
  attr.qp_type = IBV_QPT_RC;
  pair_ = device_->verbs().create_qp(device_->domain(), &attr);
  if (pair_ != nullptr) inline_bytes_ = attr.cap.max_inline_data;
}

RdmaConnect::Rail RdmaRail::own_end() const {
  return {pair_->qp_num, first_packet_, inbox_.rkey(), inbox_.rkey()};
}

void RdmaRail::connect(const RdmaAddress::Port& port, const RdmaConnect::Rail& end,
                       const RdmaConnect& memory) {
  peer_slots_ = memory.slots;
  peer_region_ = memory.region;
  peer_key_ = end.key;
  peer_region_key_ = end.region_key;
  if (!failure_.empty()) return;
  if (end.queue_pair == 0) {
    fail("the peer cannot use its port");
  } else if (!to_ready(port, end)) {
    fail(no_connection(device_->port(), port, errno));
  }
}

bool RdmaRail::to_ready(const RdmaAddress::Port& port, const RdmaConnect::Rail& end) {
  const RdmaPort& own = device_->port();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min<int>(own.mtu, port.mtu));
  attr.dest_qp_num = end.queue_pair;
  attr.rq_psn = end.first_packet;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;  // 0.64 ms
  attr.ah_attr.port_num = static_cast<std::uint8_t>(own.number);
  attr.ah_attr.sl = static_cast<std::uint8_t>(settings_.service_level);
  attr.ah_attr.dlid = port.lid;
  if (own.ethernet || (own.lid == 0 && port.lid == 0)) {
    attr.ah_attr.is_global = 1;
    std::memcpy(attr.ah_attr.grh.dgid.raw, port.gid.data(), port.gid.size());
    attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(own.gid_index);
    attr.ah_attr.grh.hop_limit = 255;
    attr.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(settings_.traffic_class);
  }
  if (const int error = device_->verbs().modify_qp(
          pair_, &attr,
          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      error != 0) {
    errno = error;
    return false;
  }
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = static_cast<std::uint8_t>(settings_.timeout);
  attr.retry_cnt = static_cast<std::uint8_t>(settings_.retry);
  attr.rnr_retry = 6;  // the credits of the link leave no cause for it
  attr.sq_psn = first_packet_;
  attr.max_rd_atomic = 1;
  const int error =
      device_->verbs().modify_qp(pair_, &attr,
                                 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) errno = error;
  return error == 0;
}

void RdmaRail::post_receives(int count) {
  if (shut_) return;
  // Writes with immediate data place their bytes themselves; a receive only takes the number.
  // As many as may be owed after a poll: one call then.
  constexpr int kMostOwed = kRefill - 1 + kPollBatch;
  ibv_recv_wr chain[kMostOwed];
  while (count > 0) {
    const int now = std::min(count, kMostOwed);
    for (int i = 0; i < now; ++i) {
      chain[i] = {};
      chain[i].wr_id = kReceive;
      chain[i].next = i + 1 < now ? &chain[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    ++counters_.refills;
    if (ibv_post_recv(pair_, chain, &bad) != 0) return fail("it takes no receive requests");
    receives_posted_ += now;
    count -= now;
  }
}

void RdmaRail::write(const Write& wanted) {
  auto bytes = wanted.bytes;
  std::uint64_t offset = wanted.offset;
  do {
    const auto now = bytes.first(std::min(bytes.size(), kMaxWrite));
    bytes = bytes.subspan(now.size());
    if (batched_ == kBatch) ring();
    ibv_sge& piece = pieces_[batched_];
    ibv_send_wr& request = requests_[batched_];
    piece.addr = reinterpret_cast<std::uint64_t>(now.data());
    piece.length = static_cast<std::uint32_t>(now.size());
    piece.lkey = wanted.key.value_or(outbox_.lkey());
    request = {};
    request.wr_id = ++posted_;
    request.sg_list = &piece;
    request.num_sge = now.empty() ? 0 : 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    if (bytes.empty() && wanted.immediate) {
      request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      request.imm_data = htonl(*wanted.immediate);
    }
    if (!now.empty() && now.size() <= inline_bytes_ && !wanted.key) {
      request.send_flags |= IBV_SEND_INLINE;
    }
    // What is released at once needs no completion but to count the places in the queue.
    if ((wanted.tell && bytes.empty()) || posted_ - last_signalled_ >= depth_ / 4) {
      request.send_flags |= IBV_SEND_SIGNALED;
      last_signalled_ = posted_;
      ++counters_.signalled;
    }
    request.wr.rdma.remote_addr = (wanted.region ? peer_region_ : peer_slots_) + offset;
    request.wr.rdma.rkey = wanted.region ? peer_region_key_ : peer_key_;
    if (batched_ > 0) requests_[batched_ - 1].next = &request;
    ++batched_;
    offset += now.size();
  } while (!bytes.empty());
}

void RdmaRail::ring() {
  if (batched_ == 0) return;
  counters_.work_requests += batched_;
  ++counters_.doorbells;
  batched_ = 0;
  if (!failure_.empty()) return;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_, requests_.data(), &bad); error != 0) {
    fail(fmt::format("it takes no send requests: {}", std::strerror(error)));
  }
}

void RdmaRail::request_acknowledgement() {
  if (!failure_.empty() || posted_ == completed_ || last_signalled_ == posted_) return;
  if (posted_ - completed_ >= depth_) return;
  write({.tell = true});
  ring();
}

void RdmaRail::sent(const ibv_wc& done) {
  completed_ = std::max(completed_, done.wr_id);
  if (done.status == IBV_WC_SUCCESS) {
    acknowledged_ = std::max(acknowledged_, done.wr_id);
  } else {
    failed(done);
  }
}

void RdmaRail::failed(const ibv_wc& done) {
  // Flushed requests are a consequence; their cause comes before them.
  if (done.status == IBV_WC_WR_FLUSH_ERR && shut_) return;
  fail(fmt::format("{} (verbs status {}, vendor error {:#x}){}",
                   device_->verbs().wc_status_str(done.status), static_cast<int>(done.status),
                   done.vendor_err, hint_for(done.status)));
}

void RdmaRail::arm() {
  if (!shut_ && ibv_req_notify_cq(queue_, 0) != 0) fail("its completion queue cannot be armed");
}

void RdmaRail::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
}

void RdmaRail::shut() {
  if (shut_) return;
  shut_ = true;
  patience_ends_ = Clock::now() + kDrainPatience;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  device_->verbs().modify_qp(pair_, &attr, IBV_QP_STATE);  // an adapter that is gone refuses
}

bool RdmaRail::drained() const { return receives_posted_ == 0 || Clock::now() > patience_ends_; }

}  // namespace chorus
