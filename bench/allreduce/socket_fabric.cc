// An all-reduce between two ranks must move at least the bytes of the buffer in each direction. The
// loop here, over one non-blocking connection, does only that: it sends and receives whatever the
// socket accepts and polls when neither is possible, so that no full buffer blocks both processes.
// The TCP transport is compared with it (share_of_socket).
#include "bench/allreduce/fabric.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/socket.h"

namespace cadre::bench {
namespace {

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Waits for one of the poll events, or for a signal. Errors: DeadlineExceeded after a minute.
absl::Status WaitFor(const Socket& socket, short events) {
  pollfd polled{.fd = socket.fd(), .events = events, .revents = 0};
  const int ready = poll(&polled, 1, 60'000);
  if (ready > 0 || (ready < 0 && errno == EINTR)) return absl::OkStatus();
  return absl::DeadlineExceededError("the other process is silent");
}

// Sends as many bytes of `left` as the socket accepts, and removes them from the front.
absl::Status SendSome(const Socket& socket, std::span<const std::byte>& left) {
  const ssize_t sent = send(socket.fd(), left.data(), left.size(), MSG_NOSIGNAL);
  if (sent > 0) left = left.subspan(sent);
  return sent >= 0 || errno == EAGAIN || errno == EINTR ? absl::OkStatus() : SystemError("send");
}

absl::Status ReceiveSome(const Socket& socket, std::span<std::byte>& left) {
  const ssize_t received = recv(socket.fd(), left.data(), left.size(), 0);
  if (received == 0) return absl::UnavailableError("the other process hung up");
  if (received > 0) left = left.subspan(received);
  return received > 0 || errno == EAGAIN || errno == EINTR ? absl::OkStatus() : SystemError("recv");
}

// Sends all of `out` and fills `in`.
absl::Status Exchange(const Socket& socket, std::span<const std::byte> out,
                      std::span<std::byte> in) {
  while (!out.empty() || !in.empty()) {
    const size_t before = out.size() + in.size();
    if (!out.empty()) CADRE_RETURN_IF_ERROR(SendSome(socket, out));
    if (!in.empty()) CADRE_RETURN_IF_ERROR(ReceiveSome(socket, in));
    if (out.size() + in.size() < before) continue;
    CADRE_RETURN_IF_ERROR(WaitFor(
        socket, static_cast<short>((out.empty() ? 0 : POLLOUT) | (in.empty() ? 0 : POLLIN))));
  }
  return absl::OkStatus();
}

class SocketExchange final : public AllReduce {
 public:
  explicit SocketExchange(const Socket& socket) : socket_(socket) {}

  absl::Status Prepare(const Task& task) override {
    received_.resize(task.data.size());
    data_ = task.data;
    return absl::OkStatus();
  }
  absl::Status Run() override { return Exchange(socket_, data_, received_); }
  void Finish() override { received_ = {}; }
  bool computes_sum() const override { return false; }
  std::string name() const override { return "copy"; }

 private:
  const Socket& socket_;
  std::span<const std::byte> data_;
  std::vector<std::byte> received_;
};

}  // namespace

absl::StatusOr<Fabric> ConnectSocket(BoardRank& self) {
  CADRE_ASSIGN_OR_RETURN(const Socket listening, ListenOn("127.0.0.1:0"));
  CADRE_ASSIGN_OR_RETURN(const int port, LocalPort(listening));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> peers,
                         self.AllGather(absl::StrCat("127.0.0.1:", port)));
  Socket socket;
  if (self.rank() == 0) {
    CADRE_RETURN_IF_ERROR(WaitFor(listening, POLLIN));
    socket = Socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.empty()) return SystemError("accept");
  } else {
    CADRE_ASSIGN_OR_RETURN(const auto addresses, Resolve(peers[0], /*to_listen=*/false));
    CADRE_ASSIGN_OR_RETURN(socket, StartConnect(addresses.front()));
    CADRE_RETURN_IF_ERROR(WaitFor(socket, POLLOUT));
    CADRE_RETURN_IF_ERROR(ConnectResult(socket));
  }
  TuneConnection(socket);
  return [shared = std::make_shared<Socket>(std::move(socket))](
             absl::string_view) -> absl::StatusOr<std::unique_ptr<AllReduce>> {
    return std::make_unique<SocketExchange>(*shared);
  };
}

}  // namespace cadre::bench
