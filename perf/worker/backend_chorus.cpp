// Chorus, through its public C++ API.
#include <fmt/format.h>

#include <stdexcept>

#include "chorus/communicator.hpp"
#include "chorus/memory.hpp"
#include "perf/worker/backend.hpp"

namespace chorus::perf {
namespace {

/// Calls body(T{}) with the C++ type of `type`.
template <class Body>
auto with_type(DataType type, Body body) {
  switch (type) {
    case DataType::int8:
      return body(std::int8_t{});
    case DataType::uint8:
      return body(std::uint8_t{});
    case DataType::int16:
      return body(std::int16_t{});
    case DataType::uint16:
      return body(std::uint16_t{});
    case DataType::int32:
      return body(std::int32_t{});
    case DataType::uint32:
      return body(std::uint32_t{});
    case DataType::int64:
      return body(std::int64_t{});
    case DataType::uint64:
      return body(std::uint64_t{});
    case DataType::float16:
      return body(Float16{});
    case DataType::bfloat16:
      return body(BFloat16{});
    case DataType::float32:
      return body(float{});
    case DataType::float64:
      return body(double{});
    case DataType::float8_e4m3:
      return body(Float8E4M3{});
    case DataType::float8_e5m2:
      return body(Float8E5M2{});
  }
  throw std::logic_error("a type without a name");
}

class ChorusBackend final : public Backend {
 public:
  explicit ChorusBackend(bool own_buffers)
      : communicator_(Communicator::join()), own_buffers_(own_buffers) {
    communicator_.await_plan();  // what a job has soon is what is measured
  }

  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int world_size() const override { return communicator_.world_size(); }
  [[nodiscard]] std::string version() const override { return "Chorus " CHORUS_VERSION; }
  [[nodiscard]] std::string refuse(const Operation& /*operation*/) const override { return {}; }

  [[nodiscard]] std::function<void()> prepare(const Operation& operation) override {
    return with_type(operation.type, [&]<class T>(T) { return typed<T>(operation); });
  }

  [[nodiscard]] std::byte* allocate(std::size_t bytes) override {
    return own_buffers_ ? static_cast<std::byte*>(chorus::allocate(bytes)) : nullptr;
  }
  void deallocate(std::byte* memory) override { chorus::deallocate(memory); }

  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    const bool several = sends.size() + receives.size() > 1;
    if (several) communicator_.group_start();
    for (const Message& m : receives) {
      communicator_.recv(std::span(static_cast<std::uint8_t*>(m.data), m.count * size_of(m.type)),
                         m.peer);
    }
    for (const Message& m : sends) {
      communicator_.send(
          std::span(static_cast<const std::uint8_t*>(m.data), m.count * size_of(m.type)), m.peer);
    }
    if (several) communicator_.group_end();
  }

 private:
  /// data [count], or an empty span where this rank has no such buffer.
  template <class T>
  static std::span<T> buffer(T* data, std::size_t count) {
    return data == nullptr ? std::span<T>() : std::span<T>(data, count);
  }

  template <class T>
  std::function<void()> typed(const Operation& o) {
    const std::size_t all = o.count * static_cast<std::size_t>(world_size());
    const auto* const in = static_cast<const T*>(o.input);
    auto* const out = static_cast<T*>(o.output);
    Communicator& c = communicator_;
    const Reduction reduction(o.op);
    switch (o.kind) {
      case Kind::all_reduce:
        return [&c, in = buffer(in, o.count), out = buffer(out, o.count), reduction] {
          c.all_reduce(in, out, reduction);
        };
      case Kind::all_gather:
        return [&c, in = buffer(in, o.count), out = buffer(out, all)] { c.all_gather(in, out); };
      case Kind::reduce_scatter:
        return [&c, in = buffer(in, all), out = buffer(out, o.count), reduction] {
          c.reduce_scatter(in, out, reduction);
        };
      case Kind::all_to_all:
        return [&c, in = buffer(in, all), out = buffer(out, all)] { c.all_to_all(in, out); };
      case Kind::broadcast:
        return [&c, data = buffer(out, o.count), root = o.root] { c.broadcast(data, root); };
      case Kind::reduce:
        return [&c, in = buffer(in, o.count), out = buffer(out, o.count), root = o.root,
                reduction] { c.reduce(in, out, root, reduction); };
      case Kind::gather:
        return [&c, in = buffer(in, o.count), out = buffer(out, all), root = o.root] {
          c.gather(in, out, root);
        };
      case Kind::scatter:
        return [&c, in = buffer(in, all), out = buffer(out, o.count), root = o.root] {
          c.scatter(in, out, root);
        };
      case Kind::barrier:
        return [&c] { c.barrier(); };
      default:
        throw std::logic_error("point-to-point measurements use exchange()");
    }
  }

  Communicator communicator_;
  bool own_buffers_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& arguments) {
  return std::make_unique<ChorusBackend>(arguments.library_buffers);
}

}  // namespace chorus::perf
