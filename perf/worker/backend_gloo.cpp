// Gloo over TCP, one process per rank, meeting through the driver.
#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "perf/worker/backend.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::uint8_t;
using Reducer = void (*)(void*, const void*, const void*, std::size_t);

/// Calls body(T{}) with Gloo's type for `type`; false if Gloo cannot reduce it.
template <class Body>
bool with_type(DataType type, Body body) {
  switch (type) {
    case DataType::int8:
      return body(std::int8_t{}), true;
    case DataType::uint8:
      return body(std::uint8_t{}), true;
    case DataType::int32:
      return body(std::int32_t{}), true;
    case DataType::int64:
      return body(std::int64_t{}), true;
    case DataType::uint64:
      return body(std::uint64_t{}), true;
    case DataType::float16:
      return body(gloo::float16{}), true;
    case DataType::float32:
      return body(float{}), true;
    case DataType::float64:
      return body(double{}), true;
    default:
      return false;
  }
}

template <class T>
Reducer reducer(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return &gloo::sum<T>;
    case ReduceOp::prod:
      return &gloo::product<T>;
    case ReduceOp::min:
      return &gloo::min<T>;
    case ReduceOp::max:
      return &gloo::max<T>;
    default:
      break;
  }
  return nullptr;
}

template <class T>
const gloo::ReductionFunction<T>* reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod:
      return gloo::ReductionFunction<T>::product;
    case ReduceOp::min:
      return gloo::ReductionFunction<T>::min;
    case ReduceOp::max:
      return gloo::ReductionFunction<T>::max;
    default:
      return gloo::ReductionFunction<T>::sum;
  }
}

class MeetingStore final : public gloo::rendezvous::Store {
 public:
  explicit MeetingStore(Meeting& meeting) : meeting_(meeting) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    meeting_.set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = meeting_.get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) (void)meeting_.get(key);
  }

 private:
  Meeting& meeting_;
};

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(const WorkerArguments& arguments)
      : rank_(environment_number("CHORUS_PERF_RANK")),
        world_size_(environment_number("CHORUS_PERF_WORLD_SIZE")) {
    gloo::transport::tcp::attr address;
    const char* interface = std::getenv("CHORUS_PERF_INTERFACE");
    if (!arguments.address.empty()) {
      address.hostname = arguments.address;
    } else {
      address.iface = interface != nullptr ? interface : "lo";
    }
    auto device = gloo::transport::tcp::CreateDevice(address);
    MeetingStore store(*arguments.meeting);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, world_size_);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  [[nodiscard]] std::string version() const override {
    return fmt::format("Gloo {}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
  }
  [[nodiscard]] std::string note() const override { return note_; }

  [[nodiscard]] std::string refuse(const Operation& o) const override {
    if (!benchmark(o.kind).reduces) {
      const bool moves_blocks = o.kind == Kind::all_to_all && o.input == o.output;
      return moves_blocks ? "Gloo has no all_to_all in place" : "";
    }
    if (!with_type(o.type, [](auto) {})) {
      return fmt::format("Gloo cannot reduce {}", name_of(o.type));
    }
    return reducer<float>(o.op) == nullptr ? fmt::format("Gloo has no operation {}", name_of(o.op))
                                           : "";
  }

  [[nodiscard]] std::function<void()> prepare(const Operation& o) override {
    note_.clear();
    std::function<void()> prepared;
    if (benchmark(o.kind).reduces) {
      with_type(o.type, [&]<class T>(T) { prepared = reducing<T>(o); });
    } else {
      prepared = moving(o);
    }
    return prepared;
  }

  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> out, in;
    std::uint64_t slot = 1;
    for (const Message& m : receives) {
      in.push_back(context_->createUnboundBuffer(m.data, m.count * size_of(m.type)));
      in.back()->recv(m.peer, slot++);
    }
    slot = 1;
    for (const Message& m : sends) {
      out.push_back(context_->createUnboundBuffer(m.data, m.count * size_of(m.type)));
      out.back()->send(m.peer, slot++);
    }
    for (auto& buffer : in) buffer->waitRecv();
    for (auto& buffer : out) buffer->waitSend();
  }

 private:
  using Run = std::function<void()>;

  /// Data that is only moved has no type for Gloo: blocks of bytes.
  Run moving(const Operation& o) {
    const std::size_t bytes = o.count * size_of(o.type);
    const std::size_t all = bytes * static_cast<std::size_t>(world_size_);
    auto* const in = static_cast<Bytes*>(const_cast<void*>(o.input));
    auto* const out = static_cast<Bytes*>(o.output);
    const bool root = rank_ == o.root;
    switch (o.kind) {
      case Kind::all_gather: {
        auto options = std::make_shared<gloo::AllgatherOptions>(context_);
        if (in != out + static_cast<std::size_t>(rank_) * bytes) options->setInput(in, bytes);
        options->setOutput(out, all);
        return [options] { gloo::allgather(*options); };
      }
      case Kind::all_to_all: {
        auto options = std::make_shared<gloo::AlltoallOptions>(context_);
        options->setInput(in, all);
        options->setOutput(out, all);
        return [options] { gloo::alltoall(*options); };
      }
      case Kind::broadcast: {
        auto options = std::make_shared<gloo::BroadcastOptions>(context_);
        options->setOutput(out, bytes);
        options->setRoot(o.root);
        return [options] { gloo::broadcast(*options); };
      }
      case Kind::gather: {
        auto options = std::make_shared<gloo::GatherOptions>(context_);
        options->setInput(in, bytes);
        if (root) options->setOutput(out, all);
        options->setRoot(o.root);
        return [options] { gloo::gather(*options); };
      }
      case Kind::scatter: {
        auto options = std::make_shared<gloo::ScatterOptions>(context_);
        std::vector<Bytes*> blocks;
        for (std::size_t at = 0; root && at < all; at += bytes) blocks.push_back(in + at);
        if (root) options->setInputs(blocks, bytes);
        options->setOutput(out, bytes);
        options->setRoot(o.root);
        return [options] { gloo::scatter(*options); };
      }
      case Kind::barrier: {
        auto options = std::make_shared<gloo::BarrierOptions>(context_);
        return [options] { gloo::barrier(*options); };
      }
      default:
        throw std::logic_error("point-to-point measurements use exchange()");
    }
  }

  template <class T>
  Run reducing(const Operation& o) {
    if (o.kind == Kind::all_reduce) return all_reduce<T>(o);
    if (o.kind == Kind::reduce_scatter) return reduce_scatter<T>(o);
    auto options = std::make_shared<gloo::ReduceOptions>(context_);
    auto* const in = static_cast<T*>(const_cast<void*>(o.input));
    if (in != o.output) options->setInput(in, o.count);
    // Away from the root Gloo needs room of the same size for partial results.
    auto scratch = std::make_shared<std::vector<T>>(o.output == nullptr ? o.count : 0);
    options->setOutput(o.output == nullptr ? scratch->data() : static_cast<T*>(o.output), o.count);
    options->setRoot(o.root);
    options->setReduceFunction(reducer<T>(o.op));
    return [options, scratch] { gloo::reduce(*options); };
  }

  /// Exchanged with all_to_all and summed here. Gloo's own reduce_scatter moves a rank's result
  /// over data that it is still sending (gloo/reduce_scatter.h, the copy before the notifications
  /// are awaited): from 128 KiB on its peer gets wrong elements now and then, as the check showed.
  template <class T>
  Run reduce_scatter(const Operation& o) {
    const std::size_t count = o.count;
    const std::size_t all = count * static_cast<std::size_t>(world_size_);
    auto received = std::make_shared<std::vector<T>>(all);
    auto options = std::make_shared<gloo::AlltoallOptions>(context_);
    options->setInput(static_cast<T*>(const_cast<void*>(o.input)), all);
    options->setOutput(received->data(), all);
    return [=, out = static_cast<T*>(o.output), reduce = reducer<T>(o.op)] {
      gloo::alltoall(*options);
      const T* const blocks = received->data();
      reduce(out, blocks, blocks + count, count);
      for (std::size_t at = 2 * count; at < all; at += count) reduce(out, out, blocks + at, count);
    };
  }

  /// Gloo leaves the choice of algorithm to its user, and no one is best at every size: each is
  /// tried on these buffers and the fastest kept. The older ones work in place, so the input is
  /// copied first, as their user would have to.
  template <class T>
  Run all_reduce(const Operation& o) {
    auto* const in = static_cast<T*>(const_cast<void*>(o.input));
    auto* const out = static_cast<T*>(o.output);
    const std::size_t bytes = o.count * sizeof(T);
    const auto copy = [=] {
      if (in != out) std::memcpy(static_cast<void*>(out), static_cast<const void*>(in), bytes);
    };
    struct Choice {
      const char* name;
      Run run;
    };
    std::vector<Choice> choices;
    for (const auto algorithm :
         {gloo::AllreduceOptions::Algorithm::RING, gloo::AllreduceOptions::Algorithm::BCUBE}) {
      auto options = std::make_shared<gloo::AllreduceOptions>(context_);
      options->setAlgorithm(algorithm);
      if (in != out) options->setInput(in, o.count);
      options->setOutput(out, o.count);
      options->setReduceFunction(reducer<T>(o.op));
      const bool ring = algorithm == gloo::AllreduceOptions::Algorithm::RING;
      choices.push_back({ring ? "ring" : "bcube", [options] { gloo::allreduce(*options); }});
    }
    const int count = static_cast<int>(o.count);
    auto chunked = std::make_shared<gloo::AllreduceRingChunked<T>>(context_, std::vector<T*>{out},
                                                                   count, reduction<T>(o.op));
    choices.push_back({"ring chunked", [=] { copy(), chunked->run(); }});
    auto halving = std::make_shared<gloo::AllreduceHalvingDoubling<T>>(
        context_, std::vector<T*>{out}, count, reduction<T>(o.op));
    choices.push_back({"halving doubling", [=] { copy(), halving->run(); }});

    const Choice* best = nullptr;
    double best_s = 0;
    for (const Choice& choice : choices) {
      const double took_s = agreed_seconds(choice.run, bytes > (4U << 20) ? 2 : 5);
      if (best == nullptr || took_s < best_s) {
        best = &choice;
        best_s = took_s;
      }
    }
    note_ = best->name;
    return best->run;
  }

  /// The fastest of a few runs on the slowest rank; the same number on every rank.
  double agreed_seconds(const Run& run, int times) {
    double fastest = 1e9;
    for (int i = 0; i < times; ++i) {
      const Clock::time_point begin = Clock::now();
      run();
      fastest = std::min(fastest, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    gloo::AllreduceOptions options(context_);
    options.setOutput(&fastest, 1);
    options.setReduceFunction(reducer<double>(ReduceOp::max));
    gloo::allreduce(options);
    return fastest;
  }

  int rank_;
  int world_size_;
  std::shared_ptr<gloo::Context> context_;
  std::string note_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& arguments) {
  return std::make_unique<GlooBackend>(arguments);
}

}  // namespace chorus::perf
