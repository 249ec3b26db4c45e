#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/backoff.h"
#include "base/status.h"
#include "worker/comm/socket_transport.h"
#include "worker/comm/tcp_transport.h"

namespace cadre {
namespace {

// How often a waiting rank looks at its deadline, its cancellation and the ranks it has.
constexpr absl::Duration kTick = absl::Milliseconds(10);
// Waits between calls to a peer that refuses or drops the connection.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(10);
constexpr absl::Duration kLastRetry = absl::Milliseconds(500);

// One rank's attempt to connect with all others.
class Connecting {
 public:
  Connecting(TcpListener& listener, const GroupIdentity& group, int rank,
             const std::vector<std::string>& peers, const ConnectOptions& options)
      : listener_(listener),
        group_(group),
        rank_(rank),
        peers_(peers),
        options_(options),
        sockets_(peers.size()) {}

  absl::StatusOr<std::vector<Socket>> Run();

 private:
  Socket& At(int rank) { return sockets_[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(peers_.size()); }

  // Calls a lower rank until it welcomes us.
  absl::Status Call(int to);
  // One try. Unavailable: worth another; other errors are final.
  absl::StatusOr<Socket> TryCall(int to);
  absl::StatusOr<Socket> TryAddress(int to, const SocketAddress& address);
  absl::Status SendGreeting(int to, const Socket& socket);
  absl::Status ReadAnswer(int to, const Socket& socket);
  // Reads exactly `bytes` more.
  absl::Status ReadMore(const Socket& socket, size_t bytes, std::string* text);
  // Waits for a higher rank to call.
  absl::Status AwaitCall(int from);

  // Waits for `events` on the socket, or until Check says to stop.
  absl::Status WaitFor(const Socket& socket, short events);
  absl::Status Check();
  absl::Status CheckConnected();
  absl::Status MissingRanks();

  TcpListener& listener_;
  const GroupIdentity& group_;
  const int rank_;
  const std::vector<std::string>& peers_;
  const ConnectOptions& options_;
  std::vector<Socket> sockets_;
  // Why the last call failed.
  absl::Status last_failure_;
};

absl::StatusOr<std::vector<Socket>> Connecting::Run() {
  for (const std::string& peer : peers_) CADRE_RETURN_IF_ERROR(ParseHostPort(peer).status());
  CADRE_RETURN_IF_ERROR(listener_.Expect(group_, rank_, ranks()));
  const absl::Cleanup forget = [this] { listener_.Forget(group_); };
  for (int to = 0; to < rank_; ++to) CADRE_RETURN_IF_ERROR(Call(to));
  for (int from = rank_ + 1; from < ranks(); ++from) CADRE_RETURN_IF_ERROR(AwaitCall(from));
  return std::move(sockets_);
}

absl::Status Connecting::Call(int to) {
  Backoff backoff(kFirstRetry, kLastRetry, group_.generation * 1000 + static_cast<uint64_t>(rank_));
  while (true) {
    absl::StatusOr<Socket> socket = TryCall(to);
    if (socket.ok()) {
      At(to) = *std::move(socket);
      return absl::OkStatus();
    }
    if (!absl::IsUnavailable(socket.status())) return socket.status();
    last_failure_ = socket.status();
    const absl::Time again = absl::Now() + backoff.Next();
    while (absl::Now() < again) {
      CADRE_RETURN_IF_ERROR(Check());
      absl::SleepFor(std::min(kTick, again - absl::Now()));
    }
  }
}

absl::StatusOr<Socket> Connecting::TryCall(int to) {
  // Asked again at every try: a name may move.
  const std::string& peer = peers_[static_cast<size_t>(to)];
  CADRE_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(peer, false));
  absl::StatusOr<Socket> socket = absl::UnavailableError("no address");
  for (const SocketAddress& address : addresses) {
    socket = TryAddress(to, address);
    if (socket.ok() || !absl::IsUnavailable(socket.status())) break;
  }
  if (socket.ok()) return socket;
  return Annotate(socket.status(), absl::StrCat("rank ", to, " at ", peer));
}

absl::StatusOr<Socket> Connecting::TryAddress(int to, const SocketAddress& address) {
  CADRE_ASSIGN_OR_RETURN(Socket socket, StartConnect(address));
  CADRE_RETURN_IF_ERROR(WaitFor(socket, POLLOUT));
  CADRE_RETURN_IF_ERROR(ConnectResult(socket));
  TuneConnection(socket);
  CADRE_RETURN_IF_ERROR(SendGreeting(to, socket));
  CADRE_RETURN_IF_ERROR(ReadAnswer(to, socket));
  return socket;
}

absl::Status Connecting::SendGreeting(int to, const Socket& socket) {
  const std::string greeting = Encode(Greeting{.group = group_,
                                               .from = static_cast<uint32_t>(rank_),
                                               .to = static_cast<uint32_t>(to),
                                               .ranks = static_cast<uint32_t>(ranks())});
  // A fresh connection has room for it.
  const ssize_t sent = send(socket.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(greeting.size())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("sending the greeting: ", std::strerror(errno)));
}

absl::Status Connecting::ReadAnswer(int to, const Socket& socket) {
  std::string text;
  CADRE_RETURN_IF_ERROR(ReadMore(socket, kAnswerHeadBytes, &text));
  CADRE_RETURN_IF_ERROR(ReadMore(socket, AnswerBytes(text) - text.size(), &text));
  CADRE_ASSIGN_OR_RETURN(const Answer answer, DecodeAnswer(text));
  switch (answer.code) {
    case Answer::Code::kWelcome:
      return absl::OkStatus();
    case Answer::Code::kStaleGeneration:
      return absl::AbortedError(absl::StrCat("refused by rank ", to, ": ", answer.reason));
    case Answer::Code::kWrongSchema:
    case Answer::Code::kWrongPlace:
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat("refused by rank ", to, ": ", answer.reason));
}

absl::Status Connecting::ReadMore(const Socket& socket, size_t bytes, std::string* text) {
  while (bytes > 0) {
    CADRE_RETURN_IF_ERROR(WaitFor(socket, POLLIN));
    char part[256];
    const ssize_t got = recv(socket.fd(), part, std::min(bytes, sizeof part), 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    if (got < 0) return absl::UnavailableError(std::strerror(errno));
    if (got == 0) return absl::UnavailableError("the connection was closed without an answer");
    text->append(part, static_cast<size_t>(got));
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status Connecting::AwaitCall(int from) {
  while (At(from).empty()) {
    At(from) = listener_.TakeArrived(group_, from, kTick);
    if (At(from).empty()) CADRE_RETURN_IF_ERROR(Check());
  }
  return absl::OkStatus();
}

absl::Status Connecting::WaitFor(const Socket& socket, short events) {
  while (true) {
    pollfd entry{.fd = socket.fd(), .events = events};
    const int ready = poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kTick)));
    if (ready > 0) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(Check());
  }
}

absl::Status Connecting::Check() {
  if (options_.cancelled && options_.cancelled()) {
    return absl::CancelledError("connecting the group was cancelled");
  }
  CADRE_RETURN_IF_ERROR(CheckConnected());
  return absl::Now() < options_.deadline ? absl::OkStatus() : MissingRanks();
}

absl::Status Connecting::CheckConnected() {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (At(rank).empty()) continue;
    pollfd entry{.fd = At(rank).fd(), .events = POLLRDHUP};
    if (poll(&entry, 1, 0) > 0) {
      // Not Unavailable for the caller's loop to try again: this attempt is over.
      return absl::AbortedError(
          absl::StrCat("rank ", rank, " hung up while the group was connecting"));
    }
  }
  return absl::OkStatus();
}

absl::Status Connecting::MissingRanks() {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_ || !At(rank).empty()) continue;
    if (rank > rank_) At(rank) = listener_.TakeArrived(group_, rank, absl::ZeroDuration());
    if (At(rank).empty()) missing.push_back(rank);
  }
  std::string message = absl::StrCat("connecting rank ", rank_, " with its group: no connection ",
                                     "with rank ", absl::StrJoin(missing, ", "));
  if (!last_failure_.ok()) absl::StrAppend(&message, " (", last_failure_.message(), ")");
  return absl::DeadlineExceededError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options) {
  CHECK(rank >= 0 && rank < static_cast<int>(peers.size())) << rank << " of " << peers.size();
  CADRE_ASSIGN_OR_RETURN(std::vector<Socket> sockets,
                         Connecting(listener, group, rank, peers, options).Run());
  return MakeSocketTransport(rank, std::move(sockets), options.timeout);
}

}  // namespace cadre
