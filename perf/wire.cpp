#include "perf/wire.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/hash.hpp"
#include "base/host.hpp"
#include "chorus/error.hpp"
#include "perf/report/ordered_json.hpp"

namespace chorus::perf {
namespace {

[[noreturn]] void lost(const char* what) {
  throw Error(fmt::format("the connection between driver and worker broke: {}", what));
}

void check_length(std::uint32_t length) {
  if (length > kMaxFrameBytes) lost("a frame of impossible length");
}

/// False at the end of the connection before the first byte.
bool receive_exactly(int socket, void* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::recv(socket, static_cast<char*>(to) + done, bytes - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) lost(std::strerror(errno));
    if (got == 0 && done == 0) return false;
    if (got == 0) lost("it ended within a frame");
    done += static_cast<std::size_t>(got);
  }
  return true;
}

template <class T, class Lookup>
T named(const Json& object, const char* key, Lookup lookup) {
  const auto found = lookup(object.at(key).get<std::string>());
  if (!found) throw InputError(fmt::format("frame: \"{}\" is unknown", key));
  return *found;
}

Json sample_json(const Sample& sample) {
  return {{"times_ns", sample.times_ns},
          {"wrong", sample.wrong},
          {"first_wrong", sample.first_wrong},
          {"refused", sample.refused},
          {"note", sample.note}};
}

Sample sample_from(const Json& json) {
  return {.times_ns = json.at("times_ns").get<std::vector<std::int64_t>>(),
          .wrong = json.at("wrong").get<std::uint64_t>(),
          .first_wrong = json.at("first_wrong").get<std::string>(),
          .refused = json.at("refused").get<std::string>(),
          .note = json.at("note").get<std::string>()};
}

}  // namespace

void send_frame(int socket, std::string_view text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  std::string frame(sizeof length, '\0');
  std::memcpy(frame.data(), &length, sizeof length);
  frame += text;
  std::size_t done = 0;
  while (done < frame.size()) {
    const ssize_t sent = ::send(socket, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) lost(std::strerror(errno));
    done += static_cast<std::size_t>(sent);
  }
}

std::optional<std::string> receive_frame(int socket) {
  std::uint32_t length = 0;
  if (!receive_exactly(socket, &length, sizeof length)) return std::nullopt;
  check_length(length);
  std::string text(length, '\0');
  if (length != 0 && !receive_exactly(socket, text.data(), length)) lost("it ended within a frame");
  return text;
}

void FrameReader::append(std::string_view bytes) {
  bytes_ += bytes;
  if (bytes_.size() < sizeof(std::uint32_t)) return;
  std::uint32_t length = 0;
  std::memcpy(&length, bytes_.data(), sizeof length);
  check(length);
}

void FrameReader::check(std::uint32_t length) const {
  if (length > most_bytes_) lost("a frame of impossible length");
}

std::optional<std::string> FrameReader::next() {
  std::uint32_t length = 0;
  if (bytes_.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, bytes_.data(), sizeof length);
  check(length);
  if (bytes_.size() - sizeof length < length) return std::nullopt;
  std::string text = bytes_.substr(sizeof length, length);
  bytes_.erase(0, sizeof length + length);
  return text;
}

std::string to_json(const Job& job) {
  return Json{{"kind", benchmark(job.kind).name},
              {"type", name_of(job.type)},
              {"op", name_of(job.op)},
              {"root", job.root},
              {"count", job.count},
              {"in_place", job.in_place},
              {"dirty", job.dirty},
              {"offset_bytes", job.offset_bytes},
              {"warmup", job.warmup},
              {"min_iterations", job.min_iterations},
              {"max_iterations", job.max_iterations},
              {"budget_us", job.budget_us},
              {"window", job.window},
              {"seed", job.seed}}
      .dump();
}

Job job_from_json(std::string_view text) try {
  const Json json = Json::parse(text);
  return {.kind = named<Kind>(json, "kind", kind_named),
          .type = named<DataType>(json, "type", type_named),
          .op = named<ReduceOp>(json, "op", op_named),
          .root = json.at("root").get<int>(),
          .count = json.at("count").get<std::uint64_t>(),
          .in_place = json.at("in_place").get<bool>(),
          .dirty = json.at("dirty").get<bool>(),
          .offset_bytes = json.at("offset_bytes").get<int>(),
          .warmup = json.at("warmup").get<int>(),
          .min_iterations = json.at("min_iterations").get<int>(),
          .max_iterations = json.at("max_iterations").get<int>(),
          .budget_us = json.at("budget_us").get<std::int64_t>(),
          .window = json.at("window").get<int>(),
          .seed = json.at("seed").get<std::uint32_t>()};
} catch (const Json::exception& error) {
  throw InputError(fmt::format("frame: not a job: {}", error.what()));
}

std::string to_json(const Reply& reply) {
  Json json = Json::object();
  if (reply.hello) {
    json["hello"] = {{"rank", reply.hello->rank},
                     {"world_size", reply.hello->world_size},
                     {"version", reply.hello->version},
                     {"host", reply.hello->host},
                     {"pid", reply.hello->pid}};
  }
  if (reply.agree) json["agree"] = {{"number", reply.agree->number}, {"pair", reply.agree->pair}};
  if (reply.set) {
    const std::string& value = reply.set->second;
    json["set"] = {{"key", reply.set->first},
                   {"value", std::vector<std::uint8_t>(value.begin(), value.end())}};
  }
  if (reply.get) json["get"] = *reply.get;
  if (reply.sample) json["sample"] = sample_json(*reply.sample);
  if (!reply.error.empty()) json["error"] = reply.error;
  // A library's own words may hold any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const Welcome& welcome) {
  return Json{{"line", welcome.line}, {"parties", welcome.parties}, {"pair", welcome.pair}}.dump();
}

Welcome welcome_from_json(std::string_view text) try {
  const Json json = Json::parse(text);
  return {.line = json.at("line").get<std::string>(),
          .parties = json.at("parties").get<int>(),
          .pair = json.at("pair").get<bool>()};
} catch (const Json::exception& error) {
  throw InputError(fmt::format("frame: not a welcome: {}", error.what()));
}

std::string host_key() {
  return fmt::format("{:016x}", Fnv1a().bytes(host_name() + " " + boot_id()).value());
}

Reply reply_from_json(std::string_view text) try {
  const Json json = Json::parse(text);
  Reply reply;
  if (json.contains("hello")) {
    const Json& hello = json.at("hello");
    reply.hello = Hello{.rank = hello.at("rank").get<int>(),
                        .world_size = hello.at("world_size").get<int>(),
                        .version = hello.at("version").get<std::string>(),
                        .host = hello.at("host").get<std::string>(),
                        .pid = hello.at("pid").get<int>()};
  }
  if (json.contains("agree")) {
    const Json& agree = json.at("agree");
    reply.agree = Agreement{agree.at("number").get<std::uint64_t>(), agree.at("pair").get<bool>()};
  }
  if (json.contains("set")) {
    const auto value = json.at("set").at("value").get<std::vector<std::uint8_t>>();
    reply.set.emplace(json.at("set").at("key").get<std::string>(),
                      std::string(value.begin(), value.end()));
  }
  if (json.contains("get")) reply.get = json.at("get").get<std::string>();
  if (json.contains("sample")) reply.sample = sample_from(json.at("sample"));
  if (json.contains("error")) reply.error = json.at("error").get<std::string>();
  return reply;
} catch (const Json::exception& error) {
  throw InputError(fmt::format("frame: not a reply: {}", error.what()));
}

}  // namespace chorus::perf
