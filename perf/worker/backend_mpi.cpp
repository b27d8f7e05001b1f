// MPI. Compiled twice: with Open MPI's mpi.h and with MPICH's.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include <array>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "perf/worker/backend.hpp"

namespace chorus::perf {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(fmt::format("{}: {}", call, text.data()));
}

/// MPI_DATATYPE_NULL for types that MPI cannot reduce; those move as unsigned integers.
MPI_Datatype reducible(DataType type) {
  switch (type) {
    case DataType::int8:
      return MPI_INT8_T;
    case DataType::uint8:
      return MPI_UINT8_T;
    case DataType::int16:
      return MPI_INT16_T;
    case DataType::uint16:
      return MPI_UINT16_T;
    case DataType::int32:
      return MPI_INT32_T;
    case DataType::uint32:
      return MPI_UINT32_T;
    case DataType::int64:
      return MPI_INT64_T;
    case DataType::uint64:
      return MPI_UINT64_T;
    case DataType::float32:
      return MPI_FLOAT;
    case DataType::float64:
      return MPI_DOUBLE;
    default:
      return MPI_DATATYPE_NULL;
  }
}

MPI_Datatype movable(DataType type) {
  const MPI_Datatype known = reducible(type);
  if (known != MPI_DATATYPE_NULL) return known;
  return size_of(type) == 1 ? MPI_UINT8_T : MPI_UINT16_T;
}

MPI_Op op_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::prod:
      return MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::band:
      return MPI_BAND;
    case ReduceOp::bor:
      return MPI_BOR;
    case ReduceOp::bxor:
      return MPI_BXOR;
    case ReduceOp::avg:
      break;
  }
  return MPI_OP_NULL;
}

class MpiBackend final : public Backend {
 public:
  MpiBackend() {
    check(MPI_Init(nullptr, nullptr), "MPI_Init");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &world_size_), "MPI_Comm_size");
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;
  ~MpiBackend() override { MPI_Finalize(); }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }

  /// Both libraries print pages; the first line, cut before its second field, names them.
  [[nodiscard]] std::string version() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    std::string_view line(text.data(), static_cast<std::size_t>(length));
    line = line.substr(0, line.find('\n'));
    constexpr std::string_view kMpich = "MPICH Version:";
    if (line.starts_with(kMpich)) {
      line.remove_prefix(kMpich.size());
      const std::size_t digit = line.find_first_of("0123456789");
      return fmt::format("MPICH {}", digit == line.npos ? line : line.substr(digit));
    }
    line = line.substr(0, line.find(','));
    constexpr std::string_view kOpenMpi = "Open MPI v";
    if (line.starts_with(kOpenMpi)) return fmt::format("Open MPI {}", line.substr(kOpenMpi.size()));
    return std::string(line);
  }

  [[nodiscard]] std::string refuse(const Operation& o) const override {
    if (o.count > INT_MAX) return "MPI counts elements with an int";
    if (!benchmark(o.kind).reduces) return {};
    if (reducible(o.type) == MPI_DATATYPE_NULL) {
      return fmt::format("MPI cannot reduce {}", name_of(o.type));
    }
    if (op_for(o.op) == MPI_OP_NULL) return fmt::format("MPI has no operation {}", name_of(o.op));
    return {};
  }

  [[nodiscard]] std::function<void()> prepare(const Operation& o) override {
    const MPI_Datatype type = benchmark(o.kind).reduces ? reducible(o.type) : movable(o.type);
    const MPI_Op op = op_for(o.op);
    const int count = static_cast<int>(o.count);
    const int root = o.root;
    void* const out = o.output;
    const void* const in = o.input;
    // MPI spells "in place" in the argument of the buffer that is not separate.
    const void* const in_or_place = overlaps(o) ? MPI_IN_PLACE : in;
    void* const out_or_place = overlaps(o) ? MPI_IN_PLACE : out;
    switch (o.kind) {
      case Kind::all_reduce:
        return [=] {
          check(MPI_Allreduce(in_or_place, out, count, type, op, MPI_COMM_WORLD), "MPI_Allreduce");
        };
      case Kind::all_gather:
        return [=] {
          check(MPI_Allgather(in_or_place, count, type, out, count, type, MPI_COMM_WORLD),
                "MPI_Allgather");
        };
      case Kind::reduce_scatter:
        return reduce_scatter(o, type, op);
      case Kind::all_to_all:
        return [=] {
          check(MPI_Alltoall(in_or_place, count, type, out, count, type, MPI_COMM_WORLD),
                "MPI_Alltoall");
        };
      case Kind::broadcast:
        return [=] { check(MPI_Bcast(out, count, type, root, MPI_COMM_WORLD), "MPI_Bcast"); };
      case Kind::reduce:
        return [=] {
          check(MPI_Reduce(in_or_place, out, count, type, op, root, MPI_COMM_WORLD), "MPI_Reduce");
        };
      case Kind::gather:
        return [=] {
          check(MPI_Gather(in_or_place, count, type, out, count, type, root, MPI_COMM_WORLD),
                "MPI_Gather");
        };
      case Kind::scatter:
        return [=] {
          check(MPI_Scatter(in, count, type, out_or_place, count, type, root, MPI_COMM_WORLD),
                "MPI_Scatter");
        };
      case Kind::barrier:
        return [=] { check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); };
      default:
        throw std::logic_error("point-to-point measurements use exchange()");
    }
  }

  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    // The blocking forms are the ones with a fast path, and what a ping-pong uses.
    if (sends.size() == 1 && receives.empty()) {
      const Message& m = sends[0];
      return check(
          MPI_Send(m.data, static_cast<int>(m.count), movable(m.type), m.peer, 0, MPI_COMM_WORLD),
          "MPI_Send");
    }
    if (receives.size() == 1 && sends.empty()) {
      const Message& m = receives[0];
      return check(MPI_Recv(m.data, static_cast<int>(m.count), movable(m.type), m.peer, 0,
                            MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                   "MPI_Recv");
    }
    requests_.resize(sends.size() + receives.size());
    MPI_Request* request = requests_.data();
    for (const Message& m : receives) {
      check(MPI_Irecv(m.data, static_cast<int>(m.count), movable(m.type), m.peer, 0, MPI_COMM_WORLD,
                      request++),
            "MPI_Irecv");
    }
    for (const Message& m : sends) {
      check(MPI_Isend(m.data, static_cast<int>(m.count), movable(m.type), m.peer, 0, MPI_COMM_WORLD,
                      request++),
            "MPI_Isend");
    }
    check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall");
  }

 private:
  /// Whether this rank's input and output share memory as Operation says. Only the form that
  /// belongs to the kind counts: separate buffers may well lie side by side.
  [[nodiscard]] bool overlaps(const Operation& o) const {
    if (o.input == nullptr || o.output == nullptr) return false;
    const auto* in = static_cast<const std::byte*>(o.input);
    const auto* out = static_cast<const std::byte*>(o.output);
    const std::size_t own = static_cast<std::size_t>(rank_) * o.count * size_of(o.type);
    switch (o.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
      case Kind::all_to_all:
        return in == out;
      case Kind::all_gather:
      case Kind::gather:
        return in == out + own;
      case Kind::reduce_scatter:
      case Kind::scatter:
        return out == in + own;
      default:
        return false;
    }
  }

  /// In place, MPI leaves every rank's result at the start of its buffer, and our contract wants it
  /// in the rank's own block: the copy is part of the operation.
  [[nodiscard]] std::function<void()> reduce_scatter(const Operation& o, MPI_Datatype type,
                                                     MPI_Op op) const {
    const int count = static_cast<int>(o.count);
    if (!overlaps(o)) {
      return [=, in = o.input, out = o.output] {
        check(MPI_Reduce_scatter_block(in, out, count, type, op, MPI_COMM_WORLD),
              "MPI_Reduce_scatter_block");
      };
    }
    auto* const buffer = const_cast<void*>(o.input);
    return [=, out = o.output] {
      check(MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, count, type, op, MPI_COMM_WORLD),
            "MPI_Reduce_scatter_block");
      if (out != buffer) std::memmove(out, buffer, o.count * size_of(o.type));
    };
  }

  int rank_ = 0;
  int world_size_ = 1;
  std::vector<MPI_Request> requests_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& /*arguments*/) {
  return std::make_unique<MpiBackend>();
}

}  // namespace chorus::perf
