// Sockets: ownership, addresses, and system calls whose errors are Status.
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
#include "base/host_port.h"

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

// "host:port" or "[v6]:port"; the result has no brackets. Errors: InvalidArgument.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// A resolved address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Errors: InvalidArgument for a malformed address, Unavailable for a name that does not resolve.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address, bool to_listen);

// A non-blocking socket that listens; see TcpListener for errors.
absl::StatusOr<Socket> ListenOn(absl::string_view address);
// The port of a listening socket.
absl::StatusOr<int> LocalPort(const Socket& socket);

// Starts a connection. When the attempt has ended, the socket becomes writable and ConnectResult
// returns its outcome.
absl::StatusOr<Socket> StartConnect(const SocketAddress& address);
absl::Status ConnectResult(const Socket& socket);

// Sets the options of a new connection between ranks: non-blocking, no delay, and, if the round
// trip is short, small buffers, so that data in flight stays in the processor's cache.
void TuneConnection(const Socket& socket);

// Sends all of `text` or fails. For short texts on a connection without other data in flight, whose
// buffer has room for them. Errors: Unavailable.
absl::Status SendWhole(const Socket& socket, absl::string_view text);
// Reads without blocking until `text` has `bytes` bytes, and no further. Returns false if some are
// still missing. Errors: Unavailable, also if the peer closed the connection.
absl::StatusOr<bool> ReadUntil(const Socket& socket, size_t bytes, std::string* text);

// The address of the peer. Errors: Unavailable.
absl::StatusOr<SocketAddress> AddressOfPeer(const Socket& socket);
// The kernel's smoothed round trip in seconds; 0 if unknown.
double RoundTrip(const Socket& socket);
// Maximum bytes that one connection can have in flight, given the kernel's limits.
double LargestWindow();

// A descriptor that becomes readable when it is written to; it ends a poll. Errors:
// ResourceExhausted.
absl::StatusOr<Socket> MakeWake();
void Wake(const Socket& wake);
void ClearWake(const Socket& wake);

}  // namespace cadre
