// Sockets: ownership, addresses, and the few system calls with their errors as Status.
//
// Thread-compatible.
#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// Owns a file descriptor; empty when moved from.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool empty() const { return fd_ < 0; }

 private:
  int fd_ = -1;
};

struct HostPort {
  std::string host;
  int port = 0;
};

// "host:port" or "[v6]:port". Errors: InvalidArgument.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// One address that a name stands for.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// Errors: InvalidArgument for a malformed address, Unavailable for a name that does not resolve.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address, bool to_listen);

// A non-blocking socket that listens; see TcpListener for errors.
absl::StatusOr<Socket> ListenOn(absl::string_view address);
// The port that a listening socket took.
absl::StatusOr<int> LocalPort(const Socket& socket);

// Begins to connect; the socket is writable when that is decided, see ConnectResult.
absl::StatusOr<Socket> StartConnect(const SocketAddress& address);
absl::Status ConnectResult(const Socket& socket);

// What every connection between ranks gets once it stands, before anything is said: no delay,
// non-blocking, and, where the round trip is short, buffers no larger than the way asks for, so
// that what is under way stays in the processor's cache.
void TuneConnection(const Socket& socket);

// Sends all of it or fails. For a few bytes, for which a connection has room while nothing else is
// sent on it. Errors: Unavailable.
absl::Status SendWhole(const Socket& socket, absl::string_view text);
// Reads without waiting, and no further, until `text` has `bytes`. False: more is to come.
// Errors: Unavailable, also when the other end closed the connection.
absl::StatusOr<bool> ReadUntil(const Socket& socket, size_t bytes, std::string* text);

// Where a connection leads. Errors: Unavailable.
absl::StatusOr<SocketAddress> AddressOfPeer(const Socket& socket);
// The smoothed round trip in seconds as the kernel sees it; 0 if it does not say.
double RoundTrip(const Socket& socket);
// Bytes that one connection can have under way, as far as the kernel's limits go.
double LargestWindow();

// A descriptor that becomes readable when written to, for waking a poll. Errors: ResourceExhausted.
absl::StatusOr<Socket> MakeWake();
void Wake(const Socket& wake);
void ClearWake(const Socket& wake);

}  // namespace cadre
