#include "device/driver/peer_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "chorus/error.hpp"
#include "device/driver/driver.hpp"
#include "device/driver/pattern.hpp"

namespace chorus::cuda {

std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytes = std::size_t{16} << 20;
constexpr std::size_t kProvenBytes = std::size_t{4} << 20;

/// A GPU with memory to send from and to receive into.
struct Gpu {
  PrimaryContext context;
  Stream stream;
  Memory source;
  Memory sink;
  PinnedMemory staging;

  explicit Gpu(Device device) : context(device) {
    const Current current(context.get());
    stream = make_stream();
    source = allocate(kBytes);
    sink = allocate(kBytes);
    Address unused = 0;
    staging = allocate_pinned(kProvenBytes, unused);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    const Current current(context.get());
    stream.reset();
    source.reset();
    sink.reset();
    staging.reset();
  }
};

class Surveyor {
 public:
  Surveyor(const Api& api, double timeout_s) : api_(api), timeout_(timeout_s) {}

  PeerSurvey run() {
    int count = 0;
    check(api_.device_count(&count), "counting GPUs");
    PeerSurvey survey;
    for (int i = 0; i < count; ++i) {
      Device device = 0;
      Uuid uuid{};
      check(api_.device_get(&device, i), fmt::format("finding GPU {}", i));
      check(api_.device_uuid(&uuid, device), fmt::format("asking GPU {} who it is", i));
      survey.uuids.push_back(uuid_text(uuid));
      devices_.push_back(device);
      gpus_.push_back(count > 1 ? std::make_unique<Gpu>(device) : nullptr);
    }
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from != to && !stuck_) survey.ways.push_back(try_way(from, to));
      }
    }
    // Giving back memory that a copy still uses would wait for the copy: it goes with the process.
    if (stuck_) {
      for (auto& gpu : gpus_) (void)gpu.release();
    }
    return survey;
  }

 private:
  PeerWay try_way(int from, int to) {
    PeerWay way{from, to, false, {}, 0, 0};
    int there = 0;
    int back = 0;
    way.offered = api_.can_access_peer(&there, devices_[from], devices_[to]) == kSuccess &&
                  api_.can_access_peer(&back, devices_[to], devices_[from]) == kSuccess &&
                  there == 1 && back == 1;
    if (!way.offered) return way;
    try {
      enable(from, to);
      enable(to, from);
      for (const int runner : {from, to}) {
        way.fault = prove(from, to, runner);
        if (!way.fault.empty()) return way;
      }
      way.gb_s = static_cast<double>(kBytes) / time(from, to, kBytes, 8) * 1e-9;
      way.latency_us = time(from, to, 8, 200) * 1e6;
    } catch (const DeviceError& error) {
      way.fault = error.what();
    }
    return way;
  }

  void enable(int from, int to) {
    const Current current(gpus_[from]->context.get());
    const Result result = api_.enable_peer(gpus_[to]->context.get(), 0);
    if (result != kPeerAlreadyEnabled) check(result, "giving a GPU access to another");
  }

  /// Waits for a stream; throws DeviceError after the timeout.
  void wait(Gpu& gpu) {
    if (finishes_within(api_, gpu.stream.get(), timeout_)) return;
    stuck_ = true;
    throw DeviceError("the copy does not end");
  }

  /// Sends patterns from one GPU to another by copies that `runner` executes. Returns what is
  /// wrong.
  std::string prove(int from, int to, int runner) {
    struct Piece {
      std::size_t offset, bytes;
    };
    constexpr Piece kPieces[] = {
        {0, 8}, {4104, 64}, {65544, 4096}, {1 << 20, 1 << 20}, {0, kProvenBytes}};
    for (const Piece& piece : kPieces) {
      const std::uint64_t seed = ++round_ * 0x10001;
      Gpu& source = *gpus_[from];
      Gpu& sink = *gpus_[to];
      const std::size_t words = piece.bytes / sizeof(std::uint64_t);
      auto* const sent = static_cast<std::uint64_t*>(source.staging.get());
      fill_pattern({sent, words}, seed);
      {
        const Current current(source.context.get());
        check(api_.copy_to_device(source.source.get(), sent, piece.bytes, source.stream.get()),
              "filling a GPU's memory");
        wait(source);
      }
      {  // what was there before must not pass for what is to come
        const Current current(sink.context.get());
        check(api_.set_bytes(sink.sink.get() + piece.offset, 0xa5, piece.bytes, sink.stream.get()),
              "clearing a GPU's memory");
        wait(sink);
      }
      copy(runner, source.source.get(), sink.sink.get() + piece.offset, piece.bytes);
      wait(*gpus_[runner]);
      const Current current(sink.context.get());
      check(api_.copy_to_host(sink.staging.get(), sink.sink.get() + piece.offset, piece.bytes,
                              sink.stream.get()),
            "reading a GPU's memory");
      wait(sink);
      const auto* const came = static_cast<const std::uint64_t*>(sink.staging.get());
      if (const auto damaged = first_damaged({came, words}, seed)) {
        return fmt::format("of {} bytes that GPU {} {} the first damaged one is number {}",
                           piece.bytes, runner, runner == from ? "wrote" : "read", *damaged);
      }
    }
    return {};
  }

  void copy(int runner, Address from, Address to, std::size_t bytes) {
    const Current current(gpus_[runner]->context.get());
    check(api_.copy(to, from, bytes, gpus_[runner]->stream.get()), "copying between GPUs");
  }

  /// Seconds per copy: the best of three rounds.
  double time(int from, int to, std::size_t bytes, int copies) {
    double best = 1e9;
    for (int round = 0; round < 3; ++round) {
      copy(from, gpus_[from]->source.get(), gpus_[to]->sink.get(), bytes);
      wait(*gpus_[from]);
      const auto begin = Clock::now();
      for (int i = 0; i < copies; ++i) {
        copy(from, gpus_[from]->source.get(), gpus_[to]->sink.get(), bytes);
      }
      wait(*gpus_[from]);
      const std::chrono::duration<double> taken = Clock::now() - begin;
      best = std::min(best, taken.count() / copies);
    }
    return best;
  }

  const Api& api_;
  double timeout_;
  std::uint64_t round_ = 0;
  bool stuck_ = false;
  std::vector<Device> devices_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

}  // namespace

PeerSurvey survey_peers(const Api& api, double timeout_s) { return Surveyor(api, timeout_s).run(); }

}  // namespace chorus::cuda
