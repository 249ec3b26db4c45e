#include "comm/transport/wakeup.h"

#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/identity.h"
#include "base/status.h"

namespace cadre {
namespace {

// An address in the abstract namespace: a zero byte, then the name.
absl::StatusOr<SocketAddress> AddressOf(absl::string_view name) {
  SocketAddress address;
  sockaddr_un unix_address{.sun_family = AF_UNIX};
  if (name.empty() || name.size() + 1 > sizeof unix_address.sun_path) {
    return absl::NotFoundError(absl::StrCat("'", name, "' is not the name of a wakeup"));
  }
  std::copy(name.begin(), name.end(), unix_address.sun_path + 1);
  std::memcpy(&address.storage, &unix_address, sizeof unix_address);
  address.length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return address;
}

absl::StatusOr<Socket> NewDatagramSocket() {
  Socket socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.empty())
    return absl::ResourceExhaustedError(absl::StrCat("creating a wakeup: ", std::strerror(errno)));
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Wakeup>> Wakeup::Make() {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewDatagramSocket());
  std::string name = absl::StrCat("cadre-wakeup-", NewIdentity());
  CADRE_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(name));
  if (bind(socket.fd(), address.raw(), address.length) != 0)
    return ErrnoStatus(errno, "bind", name);
  return std::unique_ptr<Wakeup>(new Wakeup(std::move(socket), std::move(name)));
}

void Wakeup::Clear() const {
  char signals[16];
  while (recv(fd(), signals, sizeof signals, MSG_DONTWAIT) >= 0) {
  }
}

absl::StatusOr<WakeupHandle> WakeupHandle::Take(absl::string_view name) {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewDatagramSocket());
  CADRE_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(name));
  if (connect(socket.fd(), address.raw(), address.length) != 0) {
    return absl::NotFoundError(
        absl::StrCat("wakeup ", name, " is not reachable: ", std::strerror(errno)));
  }
  return WakeupHandle(std::move(socket));
}

void WakeupHandle::Signal() const {
  if (socket_ == nullptr) return;
  // Fails if the wakeup is signaled already (no room) or has no owner any more.
  std::ignore = send(socket_->fd(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace cadre
