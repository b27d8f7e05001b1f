#include "perf/wire.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"

namespace chorus::perf {
namespace {

std::string framed(std::string_view text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  std::string frame(sizeof length, '\0');
  std::memcpy(frame.data(), &length, sizeof length);
  return frame.append(text);
}

TEST(Wire, CarriesAJobUnchanged) {
  const Job job{.kind = Kind::bibandwidth,
                .type = DataType::bfloat16,
                .op = ReduceOp::max,
                .root = 3,
                .count = 1ULL << 40,
                .in_place = true,
                .dirty = true,
                .offset_bytes = 16,
                .warmup = 2,
                .min_iterations = 4,
                .max_iterations = 77,
                .budget_us = 123456,
                .window = 9,
                .seed = 0xFFFFFFFFU};
  EXPECT_EQ(job_from_json(to_json(job)), job);
}

TEST(Wire, CarriesAReplyUnchanged) {
  Reply reply;
  reply.hello = Hello{.rank = 1, .world_size = 2, .version = "X 1"};
  reply.sample = Sample{.times_ns = {1, 20, 300},
                        .wrong = 4,
                        .first_wrong = "rank 1: element 0",
                        .refused = "no",
                        .note = "ring"};
  reply.error = "a \"quoted\" sentence with \xff bytes";
  const Reply back = reply_from_json(to_json(reply));
  EXPECT_EQ(back.hello, reply.hello);
  EXPECT_EQ(back.sample, reply.sample);
  EXPECT_TRUE(back.error.starts_with("a \"quoted\" sentence"));
}

TEST(Wire, RefusesWhatIsNoJobOrReply) {
  EXPECT_THROW((void)job_from_json("{"), InputError);
  EXPECT_THROW((void)job_from_json("[]"), InputError);
  EXPECT_THROW((void)job_from_json("{\"kind\":\"all_reduce\"}"), InputError);
  std::string job = to_json(Job{});
  job.replace(job.find("all_reduce"), 10, "all_pizzas");
  EXPECT_THROW((void)job_from_json(job), InputError);
  EXPECT_THROW((void)reply_from_json("{\"sample\":{\"times_ns\":\"many\"}}"), InputError);
  EXPECT_THROW((void)reply_from_json(""), InputError);
}

TEST(FrameReader, PutsFramesTogetherFromSingleBytes) {
  const std::string bytes = framed("one") + framed("") + framed("three");
  FrameReader reader;
  std::vector<std::string> frames;
  for (const char byte : bytes) {
    reader.append({&byte, 1});
    while (const auto frame = reader.next()) frames.push_back(*frame);
  }
  EXPECT_EQ(frames, (std::vector<std::string>{"one", "", "three"}));
}

TEST(FrameReader, RefusesAnImpossibleLength) {
  FrameReader reader;
  EXPECT_THROW(reader.append("\xff\xff\xff\xff"), Error);
}

TEST(Frames, CrossASocketAndTellTheEndFromABreak) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd reader(ends[0]);
  const std::string big(3 << 20, 'x');
  std::thread writer([end = Fd(ends[1]), &big] {
    send_frame(end.get(), "small");
    send_frame(end.get(), big);
    (void)!::send(end.get(), "\x10\0\0\0half", 8, 0);  // announces 16 bytes and leaves
  });
  EXPECT_EQ(receive_frame(reader.get()), "small");
  EXPECT_EQ(receive_frame(reader.get()), big);
  EXPECT_THROW((void)receive_frame(reader.get()), Error);
  writer.join();

  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd other(ends[0]);
  Fd(ends[1]).reset();
  EXPECT_EQ(receive_frame(other.get()), std::nullopt);
}

}  // namespace
}  // namespace chorus::perf
