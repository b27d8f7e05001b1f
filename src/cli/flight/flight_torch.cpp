#include "cli/flight/flight_torch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

namespace chorus {
namespace {

/// Writes Python's pickle format, protocol 2 (pickletools.py of CPython describes the opcodes).
class Pickle {
 public:
  Pickle() : bytes_("\x80\x02") {}

  Pickle& text(std::string_view value) {
    bytes_ += 'X';
    little_endian(value.size(), 4);
    bytes_ += value;
    return *this;
  }
  Pickle& whole(std::uint64_t value) {  // LONG1 of eight bytes: what is below 2⁶³
    bytes_ += "\x8a\x08";
    little_endian(value, 8);
    return *this;
  }
  Pickle& truth(bool value) {
    bytes_ += value ? '\x88' : '\x89';
    return *this;
  }
  Pickle& none() {
    bytes_ += 'N';
    return *this;
  }
  template <class Fill>
  Pickle& list(Fill&& fill) {
    bytes_ += "](";
    fill();
    bytes_ += 'e';
    return *this;
  }
  template <class Fill>
  Pickle& dict(Fill&& fill) {  // keys and values in turns
    bytes_ += "}(";
    fill();
    bytes_ += 'u';
    return *this;
  }
  Pickle& pair(std::string_view first, std::string_view second) {
    text(first).text(second);
    bytes_ += '\x86';
    return *this;
  }
  std::string finish() { return std::move(bytes_ += '.'); }

 private:
  void little_endian(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string bytes_;
};

struct Name {
  std::string_view ours, torchs;
};
// The names of collectives on tensors in one piece. A barrier is one of NCCL's.
constexpr std::array kCalls = {
    Name{"all_reduce", "all_reduce"},
    Name{"all_gather", "_all_gather_base"},
    Name{"reduce_scatter", "_reduce_scatter_base"},
    Name{"all_to_all", "all_to_all"},
    Name{"all_to_all_v", "all_to_all"},
    Name{"broadcast", "broadcast"},
    Name{"reduce", "reduce"},
    Name{"gather", "gather"},
    Name{"scatter", "scatter"},
    Name{"barrier", "all_reduce_barrier"},
};
constexpr std::array kTypes = {
    Name{"int8", "Char"},
    Name{"uint8", "Byte"},
    Name{"int16", "Short"},
    Name{"uint16", "UInt16"},
    Name{"int32", "Int"},
    Name{"uint32", "UInt32"},
    Name{"int64", "Long"},
    Name{"uint64", "UInt64"},
    Name{"float16", "Half"},
    Name{"bfloat16", "BFloat16"},
    Name{"float32", "Float"},
    Name{"float64", "Double"},
    Name{"float8_e4m3", "Float8_e4m3fn"},
    Name{"float8_e5m2", "Float8_e5m2"},
};

template <class Names>
std::string_view torchs(const Names& names, std::string_view ours) {
  const auto it = std::ranges::find(names, ours, &Name::ours);
  return it == names.end() ? ours : it->torchs;
}

/// "all_reduce(count 1048576, int32, sum)" in parts; barriers count one byte, as all ranks alike.
struct Parsed {
  std::string_view name, type = "uint8";
  std::uint64_t count = 1;
};

Parsed parsed(std::string_view text) {
  Parsed result;
  const std::size_t open = text.find('(');
  result.name = text.substr(0, open);
  constexpr std::string_view kCount = "(count ";
  if (open != std::string_view::npos && text.substr(open).starts_with(kCount)) {
    const char* const first = text.data() + open + kCount.size();
    const auto [end, error] = std::from_chars(first, text.data() + text.size(), result.count);
    std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
    if (rest.starts_with(", ")) {
      rest.remove_prefix(2);
      result.type = rest.substr(0, rest.find_first_of(",)"));
    }
  }
  return result;
}

void add_call(Pickle& pickle, const FlightCall& call, std::uint64_t world_size) {
  const Parsed parts = parsed(call.text);
  std::uint64_t in = parts.count, out = parts.count;
  if (parts.name == "all_gather" || parts.name == "gather") out *= world_size;
  if (parts.name == "reduce_scatter" || parts.name == "scatter") in *= world_size;
  if (parts.name == "all_to_all") in = out = parts.count * world_size;
  const auto sizes = [&](std::uint64_t count) {
    pickle.list([&] { pickle.list([&] { pickle.whole(count); }); });
  };
  const auto types = [&] { pickle.list([&] { pickle.text(torchs(kTypes, parts.type)); }); };
  const std::uint64_t begun_ns = call.begun_us * 1000;
  pickle.dict([&] {
    pickle.text("record_id").whole(call.sequence);
    pickle.text("pg_id").whole(0);
    pickle.text("process_group").pair("0", "default_pg");
    pickle.text("collective_seq_id").whole(call.sequence);
    pickle.text("p2p_seq_id").whole(0);
    pickle.text("op_id").whole(call.sequence);
    pickle.text("profiling_name").text(fmt::format("nccl:{}", torchs(kCalls, parts.name)));
    pickle.text("time_created_ns").whole(begun_ns);
    pickle.text("time_discovered_started_ns").whole(begun_ns);
    pickle.text("time_discovered_completed_ns").none();
    pickle.text("input_sizes");
    sizes(in);
    pickle.text("input_dtypes");
    types();
    pickle.text("output_sizes");
    sizes(out);
    pickle.text("output_dtypes");
    types();
    pickle.text("state").text(call.finished ? "completed" : "started");
    pickle.text("is_p2p").truth(false);
    pickle.text("retired").truth(call.finished);
    pickle.text("timeout_ms").whole(0);
    pickle.text("frames").list([] {});
  });
}

}  // namespace

std::string torch_trace(const Flight& flight) {
  std::string ranks = "[";
  for (int rank = 0; rank < flight.world_size; ++rank) {
    ranks += fmt::format("{}{}", rank == 0 ? "" : ", ", rank);
  }
  ranks += "]";
  Pickle pickle;
  pickle.dict([&] {
    pickle.text("version").text("2.4");  // of the format that torch 2.5 and later read
    pickle.text("pg_config").dict([&] {
      pickle.text("0").dict([&] {
        pickle.text("name").text("0");
        pickle.text("desc").text("default_pg");
        pickle.text("ranks").text(ranks);
      });
    });
    pickle.text("pg_status").dict([] {});
    pickle.text("entries").list([&] {
      for (const FlightCall& call : flight.calls) {
        if (!call.message) add_call(pickle, call, static_cast<std::uint64_t>(flight.world_size));
      }
    });
  });
  return pickle.finish();
}

}  // namespace chorus
