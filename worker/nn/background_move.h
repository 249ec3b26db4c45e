// Runs a move between ranks concurrently with the caller's computing: in a thread on the host, on
// the stream for moves on a device.
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
  virtual ~BackgroundMove() = default;

  // Starts the move, after everything that the current stream has been given. Requires: Wait was
  // called for the move before.
  virtual void Start(const std::function<absl::Status()>& move) = 0;
  // What the caller does next (on a device: on the current stream) happens after the move. Returns
  // the move's status.
  virtual absl::Status Wait() = 0;
};

}  // namespace cadre
