// What Chorus throws. Every sentence names who failed, at what, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>

#include "chorus/export.hpp"

namespace chorus {

/// Something in the world failed: a file, a peer, the network, the caller's arguments.
/// Failures of Chorus itself abort instead (CHORUS_CHECK).
class CHORUS_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bad input from the user: an argument, a file, a string, an environment variable. The sentence
/// names the file and line (or the variable) and the remedy. The `chorus` command exits with 2.
class CHORUS_API InputError : public Error {
 public:
  using Error::Error;
};

/// The ranks could not meet.
class CHORUS_API BootstrapError : public Error {
 public:
  using Error::Error;
};

/// The wiring cannot be discovered, or does not connect two ranks.
class CHORUS_API TopologyError : public Error {
 public:
  using Error::Error;
};

/// No schedule could be made.
class CHORUS_API SynthesisError : public Error {
 public:
  using Error::Error;
};

/// One connection to one peer broke.
class CHORUS_API LinkError : public Error {
 public:
  explicit LinkError(const std::string& what, int peer = -1) : Error(what), peer_(peer) {}

  /// The rank at the other end, or -1 if it is not known.
  [[nodiscard]] int peer() const { return peer_; }

 private:
  int peer_ = -1;
};

/// A GPU or its driver refused.
class CHORUS_API DeviceError : public Error {
 public:
  using Error::Error;
};

/// A collective failed: a peer died, did not call, or called something else. The communicator is
/// finished afterwards; join again.
class CHORUS_API CollectiveError : public Error {
 public:
  using Error::Error;
};

/// A call failed because ranks died, and the communicator goes on without them (Options::on_loss):
/// world_size(), rank() and losses() tell what it is now.
class CHORUS_API LossError : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

}  // namespace chorus
