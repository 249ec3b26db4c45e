// Wakes a rank that sleeps in poll(): whoever puts something into its shared memory rings.
//
// A bell is a datagram socket with a name of its own in the kernel's abstract space, which ends
// with the process and which processes of the same network namespace can reach. Ringing a bell
// that rings already does nothing and never blocks.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/transport/socket.h"

namespace cadre {

// The bell at the sleeper's side.
class Bell {
 public:
  // Errors: ResourceExhausted for no descriptor left.
  static absl::StatusOr<std::unique_ptr<Bell>> Make();

  // For the other side; nobody guesses it.
  const std::string& name() const { return name_; }
  // Readable when it rings.
  int fd() const { return socket_.fd(); }
  void Clear() const;

 private:
  Bell(Socket socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)) {}

  const Socket socket_;
  const std::string name_;
};

// The rope of somebody's bell. Copies pull the same one.
class BellRope {
 public:
  // Errors: NotFound for no such bell; ResourceExhausted.
  static absl::StatusOr<BellRope> Take(absl::string_view name);
  // A bell whose owner is gone is silent.
  void Ring() const;

 private:
  explicit BellRope(Socket socket) : socket_(std::make_shared<const Socket>(std::move(socket))) {}
  // Shared, so that many links to one rank need one descriptor.
  std::shared_ptr<const Socket> socket_;
};

}  // namespace cadre
