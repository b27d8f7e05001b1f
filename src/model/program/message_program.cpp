#include "model/program/program.hpp"

namespace chorus {

Program message_program(int world_size, Rank rank, Rank peer, bool sending) {
  Program program;
  program.name = sending ? "send" : "recv";
  program.collective = {.kind = CollectiveKind::broadcast, .root = sending ? rank : peer};
  program.world_size = world_size;
  program.rank = rank;
  program.num_chunks = 1;
  program.num_channels = 1;
  Instruction instruction;
  if (sending) {
    program.outgoing.push_back({.peer = peer});
    instruction.sources.push_back({.local = {.buffer = Buffer::input}});
    instruction.sends.push_back(0);
  } else {
    program.incoming.push_back({.peer = peer});
    instruction.sources.push_back({.incoming = 0});
    instruction.destination = LocalRange{.buffer = Buffer::output};
  }
  program.lanes.push_back({.instructions = {instruction}});
  return program;
}

}  // namespace chorus
