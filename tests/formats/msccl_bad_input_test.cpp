// What is no MSCCL XML is refused with file and line; what is nearly one does no harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "formats/msccl_xml.hpp"
#include "model/program/program.hpp"
#include "programs.hpp"
#include "strip.hpp"
#include "tests/base/fuzz.hpp"

namespace chorus::formats {
namespace {

/// The sentence in which a text is refused as unreadable; empty if it is not.
std::string complaint(const std::string& xml) {
  try {
    (void)schedule_from_msccl_xml(xml, "f.xml");
  } catch (const InputError& error) {
    return error.what();
  } catch (const ProgramFault&) {
  }
  return "";
}

struct BadInput {
  const char* from;
  const char* to;
  const char* expected;
};

// Each row replaces the first occurrence of one piece of exchange_by_scratch().
const BadInput kBadInputs[] = {
    {"</gpu>", "</gpv>", "f.xml:10: not XML: "},
    {"<algo", "<algorithm", "f.xml:20: not XML: "},
    {"<tb", "text <tb", "f.xml:2: <gpu> holds text ('\ntext ')"},
    {"<step", "<stop", "f.xml:4: <stop> is unknown within <tb>: known are step, op"},
    {"<tb", "<thread", "not XML"},
    {"cnt=\"1\"", "cnt=\"1\" colour=\"red\"",
     "f.xml:4: <step> has an unknown attribute 'colour': known are s, type"},
    {"cnt=\"1\"", "cnt=\"1\" cnt=\"1\"", "f.xml:4: <step> has the attribute 'cnt' twice"},
    {"cnt=\"1\"", "", "f.xml:4: <step> lacks the attribute 'cnt'"},
    {"cnt=\"1\"", "cnt=\"0\"",
     "f.xml:4: <step> has cnt=\"0\": a whole number from 1 to 1048576 is needed"},
    {"cnt=\"1\"", "cnt=\"1x\"", "f.xml:4: <step> has cnt=\"1x\": a whole number"},
    {"cnt=\"1\"", "cnt=\"99999999999999999999\"", "a whole number from"},
    {"cnt=\"1\"", "cnt=\"2\"",
     "f.xml:4: <step> touches i[0] to i[1] of rank's 1 chunks there: srcoff or cnt is wrong"},
    {"type=\"s\"", "type=\"send\"",
     "f.xml:4: <step> has an unknown type=\"send\": known are s, r, rcs, rrs, rrc, rrcs, cpy, re, "
     "nop"},
    {"type=\"s\"", "type=\"ra\"", "f.xml:4: <step> has type=\"ra\", which adds a tensor"},
    {"srcbuf=\"i\"", "srcbuf=\"x\"", "f.xml:4: <step> has srcbuf=\"x\": i (input), o (output)"},
    {"srcoff=\"0\"", "srcoff=\"1\"", "f.xml:4: <step> touches i[1] to i[1] of rank's 1 chunks"},
    {"srcoff=\"0\"", "srcoff=\"-1\"", "f.xml:4: <step> touches i[-1] to i[-1]"},
    {"<step s=\"1\"", "<step s=\"2\"", "f.xml:5: <step> has s=\"2\" where 1 comes next"},
    {"<tb id=\"1\"", "<tb id=\"2\"", "f.xml:7: <tb> has id=\"2\" where 1 comes next"},
    {"<gpu id=\"1\"", "<gpu id=\"0\"", "f.xml:11: <gpu> has id=\"0\", which was there already"},
    {"ngpus=\"2\"", "ngpus=\"3\"", "f.xml:1: <algo> has ngpus=\"3\", but no <gpu id=\"2\">"},
    {"ngpus=\"2\"", "ngpus=\"1000000\"", "f.xml:1: <algo> has ngpus=\"1000000\""},
    {"send=\"1\"", "send=\"0\"", "f.xml:3: <tb> makes rank 0 its own peer"},
    {"send=\"1\"", "send=\"2\"", "f.xml:3: <tb> has send=\"2\": a whole number from -1 to 1"},
    {"send=\"1\"", "send=\"-1\"", "f.xml:4: <step> sends, but its threadblock has send=\"-1\""},
    {"recv=\"1\"", "recv=\"-1\"", "f.xml:5: <step> receives, but its threadblock has recv=\"-1\""},
    {"chan=\"0\"", "chan=\"2\"", "f.xml:3: <tb> has chan=\"2\": a whole number from 0 to 1"},
    {"depid=\"0\" deps=\"1\"", "depid=\"2\" deps=\"1\"",
     "f.xml:8: <step> waits for threadblock 2 of 2"},
    {"depid=\"0\" deps=\"1\"", "depid=\"0\" deps=\"2\"",
     "f.xml:8: <step> waits for step 2 of threadblock 0, which has 2"},
    {"depid=\"0\" deps=\"1\"", "depid=\"0\" deps=\"-1\"",
     "f.xml:8: <step> has depid=\"0\" and deps=\"-1\": both name a step or both are -1"},
    {"hasdep=\"0\"", "hasdep=\"2\"", "f.xml:4: <step> has hasdep=\"2\""},
    {"coll=\"allreduce\"", "coll=\"alltoallv\"",
     "f.xml:1: <algo> has coll=\"alltoallv\", which no schedule can be: known are custom, "
     "allreduce"},
    {"proto=\"Simple\"", "proto=\"Simpel\"",
     "f.xml:1: <algo> has proto=\"Simpel\": Simple, LL or LL128 is needed"},
    {"name=\"test\"", "name=\"te\fst\"", "f.xml:1: <algo> has a name that is no UTF-8 text"},
    {"name=\"test\"", "name=\"te\xffst\"", "f.xml:1: <algo> has a name that is no UTF-8 text"},
    {"inplace=\"1\"", "inplace=\"0\" outofplace=\"0\"",
     "f.xml:1: <algo> has inplace=\"0\" and outofplace=\"0\", so it can never run"},
    {"i_chunks=\"1\"", "i_chunks=\"2\"",
     "f.xml:2: <gpu> has i_chunks=\"2\" and o_chunks=\"0\", but all_reduce in 2 ranks has 1 and 1"},
    {"coll=\"allreduce\"", "coll=\"allgather\"",
     "f.xml:1: <algo> has nchunksperloop=\"1\", which is not a multiple of the 2 blocks of "
     "all_gather"},
    {"s_chunks=\"1\"", "s_chunks=\"1048576\"", ""},
};

TEST(MscclBadInput, EveryMistakeIsNamedWithItsLine) {
  ASSERT_EQ(complaint(exchange_by_scratch()), "");
  for (const BadInput& bad : kBadInputs) {
    std::string xml = exchange_by_scratch();
    const auto at = xml.find(bad.from);
    ASSERT_NE(at, std::string::npos) << bad.from;
    xml.replace(at, std::string(bad.from).size(), bad.to);
    EXPECT_THAT(complaint(xml), testing::HasSubstr(bad.expected)) << bad.from << " -> " << bad.to;
  }
}

TEST(MscclBadInput, WhatIsNoSuchFileAtAllIsRefused) {
  for (const char* text : {"", " ", "{}", "<", "<algo", "<algo/>", "<system version=\"1\"/>",
                           "<!-- -->", "\xff\xfe<\0", "<algo></algo><algo></algo>"}) {
    EXPECT_THAT(complaint(text), testing::StartsWith("f.xml:")) << text;
  }
}

TEST(MscclBadInput, EveryTruncationIsNoticed) {
  const std::string xml = exchange_by_scratch();
  for (std::size_t length = 0; length + 1 < xml.size(); ++length) {
    EXPECT_NE(complaint(xml.substr(0, length)), "") << length;
  }
}

TEST(MscclBadInput, AnnouncedMemoryIsNotTakenBeforeItIsNeeded) {
  const std::string huge = algo("allgather", 2, 1 << 20,
                                gpu(0, 0, 1 << 20, 1 << 20, "") + gpu(1, 0, 1 << 20, 1 << 20, ""));
  EXPECT_THAT(complaint(huge), testing::HasSubstr("more than the 4194304 that can be judged"));
}

constexpr std::string_view kWords[] = {"-1",         "0",    "1",    "2",      "3",    "1048576",
                                       "2147483648", "1e9",  "rrcs", "nop",    "re",   "cpy",
                                       "rcs",        "s",    "o",    "custom", "<",    "\"",
                                       "&amp;",      "&#0;", "<!--", "]]>",    "\xff", "reduce"};

TEST(MscclFuzz, AMutatedFileGivesAScheduleOrASentence) {
  const auto end = test::fuzz_end();
  std::mt19937 random(20240229);
  const std::string written = to_msccl_xml(schedule_from_msccl_xml(chain(), "f.xml"));
  const std::string samples[] = {exchange(), exchange_by_scratch(),  chain(), gather_by_copies(),
                                 written,    without_levels(written)};
  long rounds = 0;
  long schedules = 0;
  while (rounds <= 100 || std::chrono::steady_clock::now() < end) {
    const std::string text = test::mutated(samples[rounds++ % std::size(samples)], kWords,
                                           samples[random() % std::size(samples)], random);
    try {
      const Schedule schedule = schedule_from_msccl_xml(text, "f.xml");
      ++schedules;
      ASSERT_EQ(first_fault(schedule), std::nullopt) << text;
      ASSERT_EQ(schedule_from_msccl_xml(to_msccl_xml(schedule), "f.xml"), schedule) << text;
    } catch (const InputError& error) {
      ASSERT_THAT(error.what(), testing::StartsWith("f.xml:")) << text;
    } catch (const ProgramFault& fault) {
      ASSERT_THAT(fault.what(), testing::StartsWith("f.xml:")) << text;
    }
  }
  RecordProperty("rounds", static_cast<int>(rounds));
  EXPECT_GT(schedules, 0) << "some changes are harmless";
}

}  // namespace
}  // namespace chorus::formats
