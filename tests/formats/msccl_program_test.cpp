// Programs written by hand: what schedule they are, and the first fault of those that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/msccl_xml.hpp"
#include "programs.hpp"

namespace chorus::formats {
namespace {

using testing::HasSubstr;

Schedule read(const std::string& xml) { return schedule_from_msccl_xml(xml, "f.xml"); }

/// The sentence in which a program is refused; empty if it is right.
std::string fault(const std::string& xml) {
  try {
    (void)read(xml);
  } catch (const ProgramFault& error) {
    return error.what();
  }
  return "";
}

TEST(MscclProgram, AnExchangeIsOneStepOfReductions) {
  const Schedule expected{.name = "test",
                          .collective = {CollectiveKind::all_reduce},
                          .world_size = 2,
                          .num_chunks = 1,
                          .steps = {{{0, 1, 0, Action::reduce}, {1, 0, 0, Action::reduce}}}};
  EXPECT_EQ(read(exchange()), expected);
  EXPECT_EQ(read(exchange_by_scratch()), expected);
}

TEST(MscclProgram, FusedStepsBecomeOneTransferEach) {
  const std::vector<Step> expected{{{0, 1, 0, Action::reduce}},
                                   {{1, 2, 0, Action::reduce}},
                                   {{2, 0, 0, Action::copy}, {2, 1, 0, Action::copy}}};
  EXPECT_EQ(read(chain()).steps, expected);
}

TEST(MscclProgram, LocalCopiesOfTacclCount) {
  const Schedule schedule = read(gather_by_copies());
  EXPECT_EQ(schedule.collective.kind, CollectiveKind::all_gather);
  EXPECT_EQ(schedule.steps.size(), 1U);
  std::string without = gather_by_copies();
  const auto at = without.find("<copy");
  without.replace(at, without.find('\n', at) - at, "");
  EXPECT_THAT(fault(without),
              HasSubstr("rank 0 leaves output[0] of rank 0 unwritten, where all_gather promises "
                        "chunk 0"));
}

TEST(MscclProgram, TheShortFormIsRead) {
  std::string gpus;
  for (int r = 0; r < 2; ++r) {
    gpus += gpu(r, 1, 0, 0,
                block(0, 1 - r, 1 - r,
                      "<op step=\"0\" type=\"s\" buf=\"i\" off=\"0\"/>\n"
                      "<op step=\"1\" type=\"rrc\" buf=\"i\" off=\"0\"/>\n"));
  }
  std::string xml = algo("allreduce", 2, 1, gpus);
  const std::string chunks = "nchunksperloop=\"1\" ";
  xml.erase(xml.find(chunks), chunks.size());
  EXPECT_EQ(read(xml).steps, read(exchange()).steps);
}

TEST(MscclProgram, ACustomProgramIsTheCollectiveItKeeps) {
  std::string xml = exchange();
  xml.replace(xml.find("allreduce"), 9, "custom");
  EXPECT_EQ(read(xml).collective.kind, CollectiveKind::all_reduce);
  xml = gather_by_copies();
  xml.replace(xml.find("allgather"), 9, "custom");
  EXPECT_EQ(read(xml).collective.kind, CollectiveKind::all_gather);
  // One rank hears nothing: neither this nor that.
  const std::string nothing =
      algo("custom", 2, 2, gpu(0, 1, 2, 0, "") + gpu(1, 1, 2, 0, ""), "inplace=\"0\"");
  EXPECT_THAT(fault(nothing), HasSubstr("fulfils the contract of no collective that Chorus knows"));
}

TEST(MscclProgram, TheRootIsFound) {
  const std::string xml = algo(
      "broadcast", 2, 1,
      gpu(0, 1, 1, 0, block(0, -1, 1, step(0, "r", "i0", "o0"))) +
          gpu(1, 1, 1, 0, block(0, 0, -1, step(0, "s", "i0", "o0") + step(1, "cpy", "i0", "o0"))),
      "inplace=\"0\"");
  EXPECT_EQ(read(xml).collective, (Collective{CollectiveKind::broadcast, 1}));
}

TEST(MscclProgram, SendsOfOneThreadblockFollowOneAnother) {
  const std::string xml = algo(
      "broadcast", 2, 3,
      gpu(0, 3, 3, 0,
          block(0, 1, -1,
                step(0, "s", "i0", "o0") + step(1, "s", "i1", "o1", 2) +
                    step(2, "cpy", "i0", "o0", 3))) +
          gpu(1, 3, 3, 0, block(0, -1, 0, step(0, "r", "i0", "o0") + step(1, "r", "i0", "o1", 2))),
      "inplace=\"0\"");
  const std::vector<Step> expected{{{0, 1, 0, Action::copy}},
                                   {{0, 1, 1, Action::copy}, {0, 1, 2, Action::copy}}};
  EXPECT_EQ(read(xml).steps, expected);
}

TEST(MscclProgram, AMissingDependencyIsARace) {
  EXPECT_THAT(
      fault(exchange_by_scratch("")),
      testing::AllOf(HasSubstr("f.xml:8: rank 0 threadblock 1 step 0 (re) reads scratch[0]"),
                     testing::AnyOf(HasSubstr("nothing orders it after f.xml:5: rank 0 "
                                              "threadblock 0 step 1 (r)"),
                                    HasSubstr("which nothing has written"))));
  // Waiting for the send alone does not order the receive either.
  EXPECT_THAT(fault(exchange_by_scratch("0.0", false)),
              HasSubstr("waits forever for threadblock 0 step 0"));
}

TEST(MscclProgram, AWaitForAnEarlierStepIsMetByTheNextThatTells) {
  EXPECT_EQ(fault(exchange_by_scratch("0.0", true)), "");  // what msccl's flags make of it
}

TEST(MscclProgram, ADeadlockNamesWhoWaitsForWhom) {
  std::string gpus;
  for (int r = 0; r < 2; ++r) {
    gpus += gpu(r, 1, 0, 0,
                block(0, 1 - r, 1 - r, step(0, "rrc", "i0", "i0") + step(1, "s", "i0", "i0")));
  }
  const std::string sentence = fault(algo("allreduce", 2, 1, gpus));
  EXPECT_THAT(sentence, HasSubstr("f.xml:4: rank 0 threadblock 0 step 0 (rrc) waits for a message "
                                  "from rank 1 on channel 0 (threadblock 0 there)"));
  EXPECT_THAT(sentence, HasSubstr("rank 1 threadblock 0 step 0 (rrc) waits for"));
  EXPECT_THAT(sentence, HasSubstr("a deadlock"));
  // Two threadblocks that wait for each other.
  const std::string circle = block(0, -1, -1, step(0, "nop", "i0", "i0", 0, "1.0", true)) +
                             block(1, -1, -1, step(0, "nop", "i0", "i0", 0, "0.0", true));
  EXPECT_THAT(fault(algo("allreduce", 1, 1, gpu(0, 1, 0, 0, circle))),
              HasSubstr("rank 0 threadblock 0 step 0 (nop) waits for threadblock 1 step 0"));
}

TEST(MscclProgram, EndsOfAConnectionMustAgree) {
  const auto pair = [](const std::string& first, const std::string& second) {
    return algo("allreduce", 2, 2, gpu(0, 2, 0, 0, first) + gpu(1, 2, 0, 0, second));
  };
  EXPECT_THAT(fault(pair(block(0, 1, -1, step(0, "s", "i0", "i0")), "")),
              HasSubstr("f.xml:4: rank 0 threadblock 0 step 0 (s) sends message 0 to rank 1 on "
                        "channel 0, where rank 1 receives 0"));
  EXPECT_THAT(fault(pair("", block(0, -1, 0, step(0, "r", "i0", "i0")))),
              HasSubstr("receives message 0 from rank 0 on channel 0, where rank 0 sends 0"));
  EXPECT_THAT(fault(pair(block(0, 1, -1, step(0, "s", "i0", "i0", 2)),
                         block(0, -1, 0, step(0, "rrc", "i0", "i0", 1)))),
              HasSubstr("rank 1 threadblock 0 step 0 (rrc) takes 1 chunks, but f.xml:4: rank 0 "
                        "threadblock 0 step 0 (s) sends 2"));
  EXPECT_THAT(fault(pair(block(0, 1, -1, step(0, "s", "i0", "i0")) +
                             block(1, 1, -1, step(0, "s", "i1", "i1")),
                         block(0, -1, 0, step(0, "rrc", "i0", "i0") + step(1, "rrc", "i1", "i1")))),
              HasSubstr("rank 0 threadblock 1 step 0 (s) sends to rank 1 on channel 0, as "
                        "threadblock 0 does"));
}

TEST(MscclProgram, ADoubleReductionIsNamedWhereItHappens) {
  std::string gpus;
  for (int r = 0; r < 2; ++r) {
    gpus += gpu(r, 1, 0, 0,
                block(0, 1 - r, 1 - r,
                      step(0, "s", "i0", "i0") + step(1, "s", "i0", "i0") +
                          step(2, "rrc", "i0", "i0") + step(3, "rrc", "i0", "i0")));
  }
  EXPECT_THAT(fault(algo("allreduce", 2, 1, gpus)),
              HasSubstr("threadblock 0 step 3 (rrc) reduces the contribution of rank "));
}

TEST(MscclProgram, WrongChunksAndMissingOnesAreNamed) {
  // Rank 1 adds what belongs to chunk 0 to chunk 1.
  const std::string crossed =
      algo("allreduce", 2, 2,
           gpu(0, 2, 0, 0, block(0, 1, -1, step(0, "s", "i0", "i0"))) +
               gpu(1, 2, 0, 0, block(0, -1, 0, step(0, "rrc", "i1", "i1"))));
  EXPECT_THAT(fault(crossed), HasSubstr("rank 1 threadblock 0 step 0 (rrc) reduces chunk 0 into "
                                        "chunk 1"));
  const std::string half = algo("allreduce", 2, 1,
                                gpu(0, 1, 0, 0, block(0, 1, -1, step(0, "s", "i0", "i0"))) +
                                    gpu(1, 1, 0, 0, block(0, -1, 0, step(0, "rrc", "i0", "i0"))));
  EXPECT_THAT(fault(half), HasSubstr("f.xml:2: rank 0 leaves output[0] of rank 0 without the "
                                     "contribution of rank 1 to chunk 0"));
  const std::string swapped = algo(
      "allgather", 2, 2,
      gpu(0, 1, 2, 0,
          block(0, 1, 1,
                step(0, "s", "i0", "o0") + step(1, "r", "i0", "o0") + step(2, "cpy", "i0", "o1"))) +
          gpu(1, 1, 2, 0,
              block(0, 0, 0,
                    step(0, "s", "i0", "o1") + step(1, "r", "i0", "o0") +
                        step(2, "cpy", "i0", "o1"))),
      "inplace=\"0\"");
  EXPECT_THAT(fault(swapped),
              HasSubstr("f.xml:5: rank 0 threadblock 0 step 1 (r) leaves output[0] "
                        "of rank 0 with chunk 1, where all_gather promises chunk 0"));
  std::string reducing = gather_by_copies();
  reducing.replace(reducing.find("type=\"r\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"o\" dstoff=\"1\""),
                   8, "type=\"rrc\"");
  EXPECT_THAT(fault(reducing), HasSubstr("but all_gather only copies"));
}

TEST(MscclProgram, UnwrittenMemoryIsNotRead) {
  const std::string xml = algo("allreduce", 2, 1,
                               gpu(0, 1, 0, 1, block(0, 1, -1, step(0, "s", "s0", "i0"))) +
                                   gpu(1, 1, 0, 0, block(0, -1, 0, step(0, "rrc", "i0", "i0"))));
  EXPECT_THAT(fault(xml), HasSubstr("f.xml:4: rank 0 threadblock 0 step 0 (s) reads scratch[0], "
                                    "which nothing has written"));
}

TEST(MscclProgram, BothFormsThatAFilePromisesAreProved) {
  // The own share is added last, which in place is the sum already.
  const auto exchange_late = [](const std::string& form) {
    std::string gpus;
    for (int r = 0; r < 2; ++r) {
      gpus += gpu(r, 1, 1, 1,
                  block(0, 1 - r, 1 - r,
                        step(0, "cpy", "i0", "s0") + step(1, "s", "i0", "o0") +
                            step(2, "r", "i0", "o0") + step(3, "re", "i0", "o0")));
    }
    return algo("allreduce", 2, 1, gpus, form);
  };
  EXPECT_EQ(fault(exchange_late("inplace=\"0\" outofplace=\"1\"")), "");
  EXPECT_THAT(fault(exchange_late("inplace=\"1\" outofplace=\"1\"")),
              HasSubstr("a second time (in place, as inplace=\"1\" promises)"));
}

// Rank 1 passes on what it received of a chunk and goes on with its own share of it: two values at
// once, for which a schedule has no words.
TEST(MscclProgram, WhatNoScheduleCanSayIsRefusedByName) {
  const std::string xml = algo(
      "reduce", 3, 1,
      gpu(0, 1, 1, 0, block(0, -1, 1, step(0, "rrc", "i0", "o0") + step(1, "rrc", "o0", "o0"))) +
          gpu(1, 1, 1, 1,
              block(
                  0, 0, 2,
                  step(0, "r", "i0", "s0") + step(1, "s", "s0", "o0") + step(2, "s", "i0", "o0"))) +
          gpu(2, 1, 1, 0, block(0, 1, -1, step(0, "s", "i0", "s0"))),
      "inplace=\"0\"");
  // The own share can be sent first here, the order of the two sends being free.
  EXPECT_EQ(fault(xml), "");
  const std::string stuck = algo(
      "allreduce", 3, 1,
      gpu(0, 1, 1, 0,
          block(0, 1, 1,
                step(0, "rrc", "i0", "o0") + step(1, "s", "o0", "o0") + step(2, "r", "i0", "o0"))) +
          gpu(1, 1, 1, 1,
              block(0, 0, 2,
                    step(0, "r", "i0", "s0", 1, "", true) + step(1, "s", "s0", "o0") +
                        step(2, "nop", "i0", "i0", 0, "1.0") + step(3, "s", "o0", "o0")) +
                  block(1, 2, 0,
                        step(0, "rrc", "i0", "o0", 1, "0.0", true) + step(1, "s", "o0", "o0"))) +
          gpu(2, 1, 1, 0, block(0, 1, 1, step(0, "s", "i0", "s0") + step(1, "r", "i0", "o0"))),
      "inplace=\"0\"");
  EXPECT_THAT(fault(stuck), HasSubstr("a schedule has one value per rank and chunk"));
}

TEST(MscclProgram, LevelsThatContradictTheProgramAreRefused) {
  const Schedule schedule = read(chain());
  std::string xml = to_msccl_xml(schedule);
  ASSERT_EQ(read(xml), schedule);
  const auto at = xml.find("level=\"1\"");
  ASSERT_NE(at, std::string::npos);
  xml.replace(at, 9, "level=\"0\"");
  EXPECT_THAT(fault(xml), testing::AllOf(HasSubstr("has level=\"0\", but needs"),
                                         HasSubstr("of level=\"0\" first")));
}

}  // namespace
}  // namespace chorus::formats
