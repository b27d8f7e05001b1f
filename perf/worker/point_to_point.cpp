#include "perf/worker/point_to_point.hpp"

#include <fmt/format.h>

namespace chorus::perf {

PointToPointData::PointToPointData(const Job& job, int rank)
    : job_(job),
      rank_(rank),
      sends_(job.kind != Kind::bandwidth || rank == 0),
      receives_(job.kind != Kind::bandwidth || rank == 1) {
  const auto window = static_cast<std::size_t>(job.kind == Kind::latency ? 1 : job.window);
  const std::size_t bytes = window * job.count * size_of(job.type);
  if (sends_) out_ = HostMemory(bytes, job.offset_bytes);
  if (receives_) in_ = HostMemory(bytes, job.offset_bytes);
  ack_out_ = HostMemory(size_of(job.type));
  ack_in_ = HostMemory(size_of(job.type));
  send_ = messages(out_);
  receive_ = messages(in_);
  const int peer = 1 - rank;
  token_send_ = {{.data = ack_out_.data(), .count = 1, .type = job.type, .peer = peer}};
  token_receive_ = {{.data = ack_in_.data(), .count = 1, .type = job.type, .peer = peer}};
  if (job.kind == Kind::latency) return;
  if (receives_) ack_send_ = token_send_;
  if (sends_) ack_receive_ = token_receive_;
}

std::vector<Message> PointToPointData::messages(const HostMemory& memory) const {
  std::vector<Message> list;
  const std::size_t bytes = job_.count * size_of(job_.type);
  for (std::size_t at = 0; at < memory.bytes(); at += bytes) {
    list.push_back(
        {.data = memory.data() + at, .count = job_.count, .type = job_.type, .peer = 1 - rank_});
  }
  return list;
}

Pattern PointToPointData::pattern(std::uint32_t seed) const {
  return {.type = job_.type, .world_size = 2, .seed = seed};
}

void PointToPointData::fill_and_poison(std::uint32_t seed) {
  fill(out_.data(), pattern(seed), rank_, 0, out_.bytes() / size_of(job_.type));
  poison(in_.data(), in_.bytes());
}

void PointToPointData::exchange(Backend& backend) const {
  if (job_.kind == Kind::latency) {
    if (rank_ == 0) backend.exchange(send_, {});
    backend.exchange({}, receive_);
    if (rank_ == 1) backend.exchange(send_, {});
    return;
  }
  backend.exchange(send_, receive_);
  backend.exchange(ack_send_, ack_receive_);
}

void PointToPointData::drain(Backend& backend) const {
  backend.exchange(token_send_, token_receive_);
}

void PointToPointData::check(std::uint32_t seed, Sample& sample) const {
  const Mismatches found =
      compare_to_rank(in_.data(), pattern(seed), 1 - rank_, 0, in_.bytes() / size_of(job_.type));
  if (found.wrong != 0 && sample.wrong == 0) {
    sample.first_wrong = fmt::format("rank {}: element {} is not what rank {} sent", rank_,
                                     found.first_wrong, 1 - rank_);
  }
  sample.wrong += found.wrong;
}

}  // namespace chorus::perf
