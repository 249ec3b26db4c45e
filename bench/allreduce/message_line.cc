#include "bench/allreduce/message_line.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre::bench {
namespace {

// The longest tells the addresses of all ranks on all networks.
constexpr size_t kMaxLineBytes = size_t{64} << 10;

}  // namespace

absl::StatusOr<std::pair<MessageLine, MessageLine>> MessageLine::MakePair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  return std::pair(MessageLine(Socket(ends[0])), MessageLine(Socket(ends[1])));
}

absl::Status MessageLine::Send(const nlohmann::json& message) const {
  const std::string text = message.dump();
  ssize_t sent;
  do {
    sent = send(socket_.fd(), text.data(), text.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("message not sent: ", std::strerror(errno)));
}

absl::StatusOr<nlohmann::json> MessageLine::Receive() const {
  std::string text(kMaxLineBytes, '\0');
  ssize_t received;
  do {
    received = recv(socket_.fd(), text.data(), text.size(), 0);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) return absl::UnavailableError("the process at the other end is gone");
  text.resize(received);
  nlohmann::json message = nlohmann::json::parse(text, nullptr, false);
  if (!message.is_object()) return absl::InternalError("a message that is not JSON");
  return message;
}

}  // namespace cadre::bench
