// What a broken, hostile or merely newer file does: one sentence, never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"
#include "samples.hpp"
#include "schedules.hpp"
#include "tests/base/fuzz.hpp"

namespace chorus {
namespace {

using test::ring_all_reduce;
using test::sample_plan;
using test::sample_topology;

enum class What { topology, schedule, plan };

/// The sentence that reading `text` ends in; empty if it can be read.
std::string complaint(What what, const std::string& text) {
  try {
    switch (what) {
      case What::topology:
        (void)topology_from_json(text, "f.json");
        break;
      case What::schedule:
        (void)schedule_from_json(text, "f.json");
        break;
      case What::plan:
        (void)plan_from_json(text, "f.json");
        break;
    }
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string sample(What what) {
  switch (what) {
    case What::topology:
      return to_json(sample_topology());
    case What::schedule:
      return to_json(ring_all_reduce(2));
    case What::plan:
      return to_json(sample_plan());
  }
  return "";
}

/// The sample with the first `from` replaced by `to`.
std::string replaced(What what, const std::string& from, const std::string& to) {
  std::string text = sample(what);
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

struct BadInput {
  What what;
  const char* from;
  const char* to;
  const char* expected;
};

// Each row replaces one piece of a good file.
const BadInput kBadInputs[] = {
    // Syntax.
    {What::schedule, "{", "", "f.json: line 2, column 11: "},
    {What::schedule, "\"steps\"", "steps", "f.json: line 8, column 3: "},
    {What::schedule, "2,", "2,,", "f.json: line 6, column "},
    {What::schedule, "2,", "NaN,", "f.json: line 6, column "},
    {What::schedule, "2,", "1e999,", "f.json: line 6, column 21: number overflow parsing '1e999'"},
    {What::schedule, "\n}\n", "\n}}", "f.json: line 12, column 2: "},
    {What::schedule, "ring", "\xff", "f.json: line 4, column "},
    {What::schedule, "ring", "\\ud800", "f.json: line 4, column "},
    {What::schedule, "\"version\": 1", "\"version\": 1, \"version\": 1",
     "f.json: /: 'version' is given twice: keep one of them"},
    {What::schedule, "[0, 1, 0, \"copy\"]", "[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]",
     "nested deeper than 16 levels"},
    // Which file it is.
    {What::schedule, "chorus-schedule", "chorus-plan",
     "f.json: /format: this is 'chorus-plan', but 'chorus-schedule' is expected"},
    {What::plan, "\"format\": \"chorus-plan\",", "", "f.json: /: 'format' is missing: add it"},
    {What::topology, "\"version\": 1", "\"version\": 2, \"colour\": 1",
     "f.json: /version: the file has version 2, but this Chorus reads up to version 1: update"},
    {What::topology, "\"version\": 1", "\"version\": 0",
     "f.json: /version: 0 is not in [1, 18446744073709551615]"},
    {What::topology, "\"version\": 1", "\"version\": 1.5",
     "f.json: /version: 1.5 where a whole number in"},
    // Schedules.
    {What::schedule, "\"world_size\": 2", "\"world_size\": -2",
     "f.json: /world_size: -2 is not in [1, 32767]"},
    {What::schedule, "\"world_size\": 2", "\"world_size\": 99999999999999999999",
     "f.json: /world_size: 1e+20 where a whole number in [1, 32767] is expected"},
    {What::schedule, "\"world_size\": 2", "\"world_size\": \"2\"",
     "f.json: /world_size: a string where a whole number in [1, 32767] is expected"},
    {What::schedule, "\"num_chunks\": 2", "\"num_chunks\": 2000000000",
     "f.json: /num_chunks: 2000000000 is not in [1, 67108864]"},
    {What::schedule, "\"num_chunks\": 2,", "", "f.json: /: 'num_chunks' is missing: add it"},
    {What::schedule, "\"num_chunks\"", "\"chunks\"",
     "f.json: /: 'chunks' is unknown: members are format, version, name, collective, world_size, "
     "num_chunks, steps, root"},
    {What::schedule, "all_reduce", "allreduce",
     "f.json: /collective: collective 'allreduce' is unknown: did you mean all_reduce? use one of "
     "all_reduce, all_gather"},
    {What::schedule, "\"all_reduce\"", "\"all_reduce\", \"root\": 1",
     "f.json: /root: all_reduce has no root: remove it"},
    {What::schedule, "\"all_reduce\"", "\"reduce\", \"root\": 2",
     "f.json: /root: 2 is not in [0, 1]"},
    {What::schedule, "\"all_reduce\"", "\"reduce\"", "f.json: /: 'root' is missing: add it"},
    {What::schedule, "[0, 1, 0, \"copy\"]", "[0, 2, 0, \"copy\"]",
     "f.json: /steps/1/0/1: 2 is not in [0, 1]"},
    {What::schedule, "[0, 1, 0, \"copy\"]", "[0, 1, 2, \"copy\"]",
     "f.json: /steps/1/0/2: 2 is not in [0, 1]"},
    {What::schedule, "[0, 1, 0, \"copy\"]", "[0, 1, 0]",
     "f.json: /steps/1/0: 3 items where [src, dst, chunk, \"copy\" or \"reduce\"] is expected"},
    {What::schedule, "\"copy\"", "\"move\"",
     "f.json: /steps/1/0/3: 'move' is unknown: use one of copy, reduce"},
    {What::schedule, "\"copy\"", "null", "f.json: /steps/1/0/3: null where a string is expected"},
    {What::schedule, "[0, 1, 0, \"copy\"]", "[0, 0, 0, \"copy\"]",
     "f.json: /: step 1: rank 0 sends chunk 0 to itself: correct the schedule"},
    {What::schedule, "all_reduce", "all_gather",
     "f.json: /: step 0: rank 1 reduces chunk 0 into rank 0, but all_gather only copies"},
    {What::schedule, "\"all_reduce\"", "\"all_to_all\"",
     "f.json: /: 2 chunks cannot be shared equally by the 4 blocks of all_to_all on 2 ranks"},
    {What::schedule, "[\n    [[1", "{\n    \"a\": [[1", "f.json: line 10, column "},
    // Topologies.
    {What::topology, "\"kind\": \"gpu\"", "\"kind\": \"tpu\"",
     "f.json: /nodes/1/kind: 'tpu' is unknown: use one of host, package, numa"},
    {What::topology, "\"parent\": \"host0\"", "\"parent\": \"host9\"",
     "f.json: /nodes/1/parent: no node is named 'host9': add it to /nodes or correct the name"},
    {What::topology, "\"parent\": \"host0\"", "\"parent\": 0",
     "f.json: /nodes/1/parent: a number where a string is expected"},
    {What::topology, "\"kind\": \"host\"", "\"kind\": \"host\", \"parent\": \"host0/gpu0\"",
     "contains itself through its parents: correct the topology"},
    {What::topology, "\"name\": \"host0/gpu1\"", "\"name\": \"host0/gpu0\"",
     "f.json: /nodes/2/name: there is another node 'host0/gpu0': names must differ"},
    {What::topology, "\"alpha_s\": 7e-07", "\"alpha_s\": -7e-07",
     "f.json: /links/0/alpha_s: -7e-07 is not a finite number of 0 or more"},
    {What::topology, "\"alpha_s\": 7e-07", "\"alpha_s\": 1e308",
     "f.json: /links/0/alpha_s: 1e+308 is too large: at most 3600"},
    {What::topology, "\"alpha_s\": 7e-07", "\"alpha\": 7e-07",
     "f.json: /links/0: 'alpha' is unknown: members are src, dst, alpha_s, beta_s_per_byte"},
    {What::topology, "\"dst\": \"host0/gpu1\"", "\"dst\": \"host0/gpu0\"",
     "f.json: /: link 0: it leads from 'host0/gpu0' to itself"},
    {What::topology, "\"table\"", "\"guess\"",
     "f.json: /links/0/provenance: 'guess' is unknown: use one of declared, table, measured"},
    {What::topology, "[0, 1]", "[0, 2]", "f.json: /port_groups/0/links/1: 2 is not in [0, 1]"},
    {What::topology, "[0, 1]", "[1, 1]", "port group 'host0/bus': link 1 is in it twice"},
    {What::topology, "\"ranks\": [", "\"ranks\": [\"gpu7\", ",
     "f.json: /ranks/0: no node is named 'gpu7'"},
    {What::topology, "\"ranks\": [", "\"ranks\": {\"a\": [", "f.json: line "},
    // Plans.
    {What::plan, "\"max_bytes\": 65535", "\"max_bytes\": 65536",
     "f.json: /entries/1/min_bytes: 65536 is not above max_bytes of the all_reduce entry before"},
    {What::plan, "\"max_bytes\": 65535", "\"max_bytes\": 1e4",
     "f.json: /entries/0/max_bytes: 10000 where a whole number in"},
    {What::plan, "\"min_bytes\": 65536,\n      \"max_bytes\": null",
     "\"min_bytes\": 65536,\n      \"max_bytes\": 65535",
     "f.json: /entries/1/max_bytes: 65535 is less than min_bytes, 65536: no size is in between"},
    {What::plan, "\"world_size\": 2", "\"world_size\": 3",
     "f.json: /entries/0/schedule/world_size: a schedule for 2 ranks in a plan for 3: use one for "
     "3"},
    {What::plan, "\"root\": 0", "\"root\": 1", "f.json: /entries/2/schedule"},
    {What::plan, "\"topology\": \"", "\"topology\": \"x",
     "f.json: /topology: a fingerprint is 16 hex digits in lower case"},
    {What::plan, "\"collective\": \"all_reduce\"", "\"collective\": \"barrier\"",
     "f.json: /entries/1: all_reduce comes after barrier: sort entries in the order all_reduce"},
    {What::plan, "\"per_byte_time_s\": 2e-11,", "",
     "f.json: /entries/0: 'per_byte_time_s' is missing: add it"},
};

TEST(JsonBadInput, EveryMistakeIsNamedWithItsPlace) {
  for (const BadInput& bad : kBadInputs) {
    EXPECT_THAT(complaint(bad.what, replaced(bad.what, bad.from, bad.to)),
                testing::HasSubstr(bad.expected))
        << bad.from << " -> " << bad.to;
  }
  for (const What what : {What::topology, What::schedule, What::plan}) {
    EXPECT_THAT(complaint(what, ""), testing::HasSubstr("f.json: line 1, column 1: "));
    EXPECT_EQ(complaint(what, "[]"), "f.json: /: an array where an object is expected");
    EXPECT_EQ(complaint(what, sample(what)), "");
  }
}

TEST(JsonBadInput, EveryTruncationIsNoticed) {
  for (const What what : {What::topology, What::schedule, What::plan}) {
    const std::string text = sample(what);
    for (std::size_t length = 0; length + 2 < text.size(); ++length) {
      EXPECT_NE(complaint(what, text.substr(0, length)), "") << length;
    }
  }
}

TEST(JsonBadInput, AMillionBracketsAreRefusedEarly) {
  EXPECT_THAT(complaint(What::plan, std::string(1'000'000, '[')),
              testing::HasSubstr("nested deeper than 16 levels"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_THAT(complaint(What::plan, deep), testing::HasSubstr("nested deeper than 16 levels"));
  std::string wide = "{";
  for (int i = 0; i < 100'000; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  EXPECT_THAT(complaint(What::plan, wide), testing::HasSubstr("more than 64 members"));
}

constexpr std::string_view kWords[] = {"-1",        "0",          "1e999", "18446744073709551616",
                                       "null",      "[]",         "{}",    "\"\"",
                                       "true",      "2147483648", "[[",    "]",
                                       "\\u0000",   "1e-400",     "-0",    "67108864",
                                       "\"reduce\""};

/// What could be read is well formed: it can be judged, saved and read again.
void expect_sound(What what, const std::string& text) {
  if (what == What::topology) {
    const Topology topology = topology_from_json(text, "f.json");
    EXPECT_EQ(topology_from_json(to_json(topology), "g.json"), topology);
  } else if (what == What::schedule) {
    const Schedule schedule = schedule_from_json(text, "f.json");
    EXPECT_EQ(schedule_from_json(to_json(schedule), "g.json"), schedule);
    if (first_fault(schedule)) return;
    EXPECT_EQ(first_fault(lower(schedule), 2, true), std::nullopt);
  } else {
    const Plan plan = plan_from_json(text, "f.json");
    EXPECT_EQ(plan_from_json(to_json(plan), "g.json"), plan);
  }
}

TEST(JsonFuzz, AMutatedFileGivesAValueOrASentence) {
  const auto end = test::fuzz_end();
  std::mt19937 random(20240229);
  const What all[] = {What::topology, What::schedule, What::plan};
  long rounds = 0;
  long values = 0;
  while (rounds <= 100 || std::chrono::steady_clock::now() < end) {
    const What what = all[rounds % 3];
    const std::string text = test::mutated(sample(what), kWords, sample(all[random() % 3]), random);
    ++rounds;
    // Anything else than an InputError fails the test; so does a sentence without the file's name.
    const std::string sentence = complaint(what, text);
    if (sentence.empty()) {
      ++values;
      expect_sound(what, text);
      continue;
    }
    ASSERT_EQ(sentence.rfind("f.json: ", 0), 0U) << sentence;
  }
  RecordProperty("rounds", static_cast<int>(rounds));
  EXPECT_GT(values, 0) << "some changes are harmless";
}

}  // namespace
}  // namespace chorus
