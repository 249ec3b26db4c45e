// Runs a move (an exchange of activations between ranks) concurrently with the caller's computing:
// on the host in a thread, on a device on the stream for moves.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "device/device.h"

namespace cadre {

class BackgroundMove {
 public:
  static std::unique_ptr<BackgroundMove> Make(Device& device);
  // Waits for a move in progress.
  virtual ~BackgroundMove() = default;

  // Starts the move. On a device it runs after all work enqueued so far on the current stream.
  // Requires: Wait was called for the previous move.
  virtual void Start(std::function<absl::Status()> move) = 0;
  // On the host: returns after the move. On a device: the current stream waits for the move.
  // Returns the move's status.
  virtual absl::Status Wait() = 0;
};

}  // namespace cadre
