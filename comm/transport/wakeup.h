// Wakes a rank that sleeps in poll(): a peer signals it after writing to their shared memory.
//
// A wakeup is a datagram socket with a unique name in the kernel's abstract namespace. The socket
// is closed with its process and reachable from processes of the same network namespace. Signaling
// a wakeup that is already signaled has no effect; signaling never blocks.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/transport/socket.h"

namespace cadre {

// The end that the sleeping rank owns.
class Wakeup {
 public:
  // Errors: ResourceExhausted when no file descriptor is available.
  static absl::StatusOr<std::unique_ptr<Wakeup>> Make();

  // Passed to the peer that signals; random, so that other processes cannot guess it.
  const std::string& name() const { return name_; }
  // Readable while the wakeup is signaled.
  int fd() const { return socket_.fd(); }
  void Clear() const;

 private:
  Wakeup(Socket socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)) {}

  const Socket socket_;
  const std::string name_;
};

// The end that a peer uses to signal. Copies signal the same wakeup.
class WakeupHandle {
 public:
  // Belongs to an owner that has exited: Signal has no effect.
  WakeupHandle() = default;
  // Errors: NotFound if no wakeup has this name; ResourceExhausted.
  static absl::StatusOr<WakeupHandle> Take(absl::string_view name);
  // Has no effect after the owner has exited.
  void Signal() const;

 private:
  explicit WakeupHandle(Socket socket)
      : socket_(std::make_shared<const Socket>(std::move(socket))) {}
  // Shared, so that many links to one rank need one descriptor.
  std::shared_ptr<const Socket> socket_;
};

}  // namespace cadre
