// A job that goes on when ranks die, and takes in those that are started anew:
//
//   chorus run -n 4 --respawn 10 -- ./06_elastic 30
//
// runs for 30 seconds; kill -9 whichever rank you like meanwhile.
#include <array>
#include <chorus/communicator.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const auto start = Clock::now();
  const auto since_start = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  chorus::Options options = chorus::Options::from_env();
  options.on_loss = "finish";
  chorus::Communicator world = chorus::Communicator::join(options);

  std::vector<double> model(1 << 20);  // the state: the same on all ranks, step by step
  double step = 0;
  const std::vector<std::span<std::byte>> state{std::as_writable_bytes(std::span(model)),
                                                std::as_writable_bytes(std::span(&step, 1))};
  if (world.was_taken_in()) {
    const chorus::StateCopy copy = world.copy_state(state, false);
    std::printf("rank %d: taken in, %.2f s after it was started, with %llu bytes from %zu ranks\n",
                world.rank(), since_start(), static_cast<unsigned long long>(copy.bytes),
                copy.from.size());
    ++step;  // the others have made it
  }
  for (int losses = 0;; ++step) {
    for (double& x : model) x = 1.0 / world.world_size();
    world.all_reduce(std::span(model));  // completed by those that are left, whoever dies meanwhile
    std::array<int, 2> news{};           // whether it is over, and how many wait
    if (world.rank() == 0) news = {since_start() > seconds ? 1 : 0, world.num_waiting()};
    world.all_reduce<int>(news, chorus::ReduceOp::max);
    if (world.losses().count > losses && world.rank() == 0) {
      std::printf("step %.0f: %s; %d ranks go on\n", step, world.losses().why.c_str(),
                  world.world_size());
    }
    losses = world.losses().count;
    if (news[0] != 0) break;
    if (news[1] > 0) {
      world = world.take_in(news[1]);
      world.copy_state(state, true);
      losses = 0;
      if (world.rank() == 0) std::printf("step %.0f: %d ranks\n", step, world.world_size());
    }
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (world.rank() == 0) std::printf("%.0f steps, %d ranks\n", step, world.world_size());
}
