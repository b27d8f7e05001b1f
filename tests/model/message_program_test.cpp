// The programs of a message: what the two ends run, and that they fit each other.
#include <gtest/gtest.h>

#include <vector>

#include "model/program/program.hpp"

namespace chorus {
namespace {

std::vector<Program> ends(Rank from) {
  std::vector<Program> programs;
  for (const Rank rank : {0, 1})
    programs.push_back(message_program(2, rank, 1 - rank, rank == from));
  return programs;
}

// Between two ranks, a message into the receiver's memory is a broadcast whose root has its data in
// place already.
TEST(MessageProgram, BringsTheSendersDataToTheReceiver) {
  for (const Rank from : {0, 1}) {
    const std::vector<Program> programs = ends(from);
    EXPECT_EQ(first_fault(programs, 1, true), std::nullopt) << "from rank " << from;
    for (const Program& program : programs) EXPECT_EQ(program.collective.root, from);
  }
}

TEST(MessageProgram, NeedsTheOtherEnd) {
  std::vector<Program> both_receive = ends(0);
  both_receive[0] = message_program(2, 0, 1, false);
  EXPECT_NE(first_fault(both_receive, 1, true), std::nullopt);
  std::vector<Program> both_send = ends(0);
  both_send[1] = message_program(2, 1, 0, true);
  EXPECT_NE(first_fault(both_send, 1, true), std::nullopt);
}

TEST(MessageProgram, NamesItsPlaceInAGroupOfAnySize) {
  const Program sender = message_program(7, 5, 2, true);
  EXPECT_EQ(sender.world_size, 7);
  EXPECT_EQ(sender.rank, 5);
  EXPECT_EQ(sender.collective.root, 5);
  EXPECT_EQ(sender.outgoing, (std::vector<Port>{{.peer = 2, .channel = 0}}));
  EXPECT_TRUE(sender.incoming.empty());
  const Program receiver = message_program(7, 2, 5, false);
  EXPECT_EQ(receiver.rank, 2);
  EXPECT_EQ(receiver.collective.root, 5);
  EXPECT_EQ(receiver.incoming, (std::vector<Port>{{.peer = 5, .channel = 0}}));
  EXPECT_TRUE(receiver.outgoing.empty());
  EXPECT_EQ(max_message_chunks(sender), 1);
}

}  // namespace
}  // namespace chorus
