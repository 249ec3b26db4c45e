#include "comm/transport/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

// Maximum number of connections that wait in the kernel to be accepted.
constexpr int kBacklog = 128;

// Seconds below which buffers are small: 10 Gbit/s carry 125 KB in this time, much less than such a
// buffer.
constexpr double kSmallBufferRoundTrip = 100e-6;
// The kernel may grant less: twice net.core.wmem_max and rmem_max, usually 416 KiB.
constexpr int kSmallBuffer = 512 << 10;

// Linux' default maximum of a send buffer, which is smaller than that of a receive buffer.
constexpr double kDefaultMaxBuffer = 4 << 20;
// The default of a new connection, which every kernel grants.
constexpr double kMinWindow = 64 << 10;

absl::StatusOr<Socket> NewSocket(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.empty()) return ErrnoStatus(errno, "create", "a socket");
  return socket;
}

absl::StatusOr<Socket> ListenAt(const SocketAddress& at, absl::string_view address) {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewSocket(at.storage.ss_family));
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.fd(), at.raw(), at.length) != 0 || listen(socket.fd(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(
          absl::StrCat("cannot listen on ", address, ": the port is in use"));
    }
    return ErrnoStatus(errno, "listen on", address);
  }
  return socket;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (!empty()) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (!empty()) close(fd_);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  absl::StatusOr<HostPort> parts = SplitHostPort(address, "the address");
  if (!parts.ok()) return parts;
  absl::string_view host = parts->host;
  const bool brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  // Without brackets, the last part of an IPv6 address could be the port.
  if (host.empty() || (!brackets && absl::StrContains(host, ':'))) {
    return absl::InvalidArgumentError(absl::StrCat("the address '", address, "' is not host:port"));
  }
  parts->host = std::string(host);
  return parts;
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address, bool to_listen) {
  CADRE_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* first = nullptr;
  // Minimal containers have no hosts file that defines localhost.
  const std::string host =
      absl::EqualsIgnoreCase(host_port.host, "localhost") ? "127.0.0.1" : host_port.host;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(host_port.port).c_str(), &hints, &first);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve ", host_port.host, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_list = [first] { freeaddrinfo(first); };
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = first; info != nullptr; info = info->ai_next) {
    SocketAddress& resolved = addresses.emplace_back();
    std::memcpy(&resolved.storage, info->ai_addr, info->ai_addrlen);
    resolved.length = info->ai_addrlen;
  }
  return addresses;
}

absl::StatusOr<Socket> ListenOn(absl::string_view address) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(address, true));
  absl::StatusOr<Socket> socket = absl::UnavailableError(absl::StrCat(address, " has no address"));
  for (const SocketAddress& at : addresses) {
    socket = ListenAt(at, address);
    if (socket.ok()) return socket;
  }
  // A host whose kernel lacks IPv6 listens on all of its IPv4 addresses instead.
  constexpr absl::string_view kAnyIpv6 = "[::]:";
  if (!absl::ConsumePrefix(&address, kAnyIpv6)) return socket;
  return ListenOn(absl::StrCat("0.0.0.0:", address));
}

absl::StatusOr<int> LocalPort(const Socket& socket) {
  sockaddr_in6 local{};
  socklen_t length = sizeof local;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return ErrnoStatus(errno, "get the port of", "a socket");
  }
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(local.sin6_port);
}

absl::StatusOr<Socket> StartConnect(const SocketAddress& address) {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewSocket(address.storage.ss_family));
  if (connect(socket.fd(), address.raw(), address.length) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(absl::StrCat("cannot connect: ", std::strerror(errno)));
  }
  return socket;
}

absl::Status ConnectResult(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot connect: ", std::strerror(error)));
}

void TuneConnection(const Socket& socket) {
  const int flags = fcntl(socket.fd(), F_GETFL);
  fcntl(socket.fd(), F_SETFL, flags | O_NONBLOCK);
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Autotuning would let buffers grow to many times this size.
  const double round_trip = RoundTrip(socket);
  if (round_trip == 0 || round_trip > kSmallBufferRoundTrip) return;
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &kSmallBuffer, sizeof kSmallBuffer);
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &kSmallBuffer, sizeof kSmallBuffer);
}

absl::Status SendWhole(const Socket& socket, absl::string_view text) {
  const ssize_t sent = send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL);
  if (sent == std::ssize(text)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot send: ", sent < 0 ? std::strerror(errno) : "the connection is full"));
}

absl::StatusOr<bool> ReadUntil(const Socket& socket, size_t bytes, std::string* text) {
  while (text->size() < bytes) {
    char part[512];
    const ssize_t got = recv(socket.fd(), part, std::min(bytes - text->size(), sizeof part), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got < 0) return absl::UnavailableError(std::strerror(errno));
    if (got == 0) return absl::UnavailableError("the connection was closed");
    text->append(part, got);
  }
  return true;
}

absl::StatusOr<SocketAddress> AddressOfPeer(const Socket& socket) {
  SocketAddress address{.length = sizeof(sockaddr_storage)};
  auto* raw = reinterpret_cast<sockaddr*>(&address.storage);
  if (getpeername(socket.fd(), raw, &address.length) == 0) return address;
  return absl::UnavailableError(
      absl::StrCat("cannot get the address of a peer: ", std::strerror(errno)));
}

double RoundTrip(const Socket& socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return info.tcpi_rtt * 1e-6;
}

double LargestWindow() {
  // Each file has a minimum, a default and a maximum. Half of a buffer holds data, the other half
  // the kernel's bookkeeping.
  double window = kDefaultMaxBuffer;
  for (const char* limit : {"/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/ipv4/tcp_rmem"}) {
    std::ifstream file(limit);
    double minimum = 0, initial = 0, maximum = 0;
    if (file >> minimum >> initial >> maximum) window = std::min(window, maximum);
  }
  return std::max(window / 2, kMinWindow);
}

absl::StatusOr<Socket> MakeWake() {
  Socket wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake.empty()) return ErrnoStatus(errno, "create", "an event descriptor");
  return wake;
}

void Wake(const Socket& wake) {
  // Fails only if the counter is full; then the descriptor is readable already.
  std::ignore = eventfd_write(wake.fd(), 1);
}

void ClearWake(const Socket& wake) {
  eventfd_t count = 0;
  std::ignore = eventfd_read(wake.fd(), &count);
}

}  // namespace cadre
