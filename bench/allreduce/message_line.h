// Short JSON messages between the referee's process and a player, over a pair of sockets that keeps
// messages whole.
//
// Thread-compatible.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/transport/socket.h"

namespace cadre::bench {

class MessageLine {
 public:
  // Both ends. Errors: ResourceExhausted.
  static absl::StatusOr<std::pair<MessageLine, MessageLine>> MakePair();

  // Errors: Unavailable, the other end is gone.
  absl::Status Send(const nlohmann::json& message) const;
  absl::StatusOr<nlohmann::json> Receive() const;

  // Readable when a message is there or the other end is gone.
  int fd() const { return socket_.fd(); }

 private:
  explicit MessageLine(Socket socket) : socket_(std::move(socket)) {}

  Socket socket_;
};

}  // namespace cadre::bench
