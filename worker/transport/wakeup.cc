#include "worker/transport/wakeup.h"

#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/identity.h"
#include "base/status.h"

namespace cadre {
namespace {

struct WakeupAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// A name in the abstract space: a zero byte, then the name.
absl::StatusOr<WakeupAddress> AddressOf(absl::string_view name) {
  WakeupAddress at;
  if (name.empty() || name.size() + 1 > sizeof at.address.sun_path) {
    return absl::NotFoundError(absl::StrCat("'", name, "' is no wakeup's name"));
  }
  at.address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), at.address.sun_path + 1);
  at.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return at;
}

absl::StatusOr<Socket> NewDatagramSocket() {
  Socket socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.empty())
    return absl::ResourceExhaustedError(absl::StrCat("making a wakeup: ", std::strerror(errno)));
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Wakeup>> Wakeup::Make() {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewDatagramSocket());
  std::string name = absl::StrCat("cadre-wakeup-", NewIdentity());
  CADRE_ASSIGN_OR_RETURN(const WakeupAddress at, AddressOf(name));
  if (bind(socket.fd(), at.raw(), at.length) != 0) return ErrnoStatus(errno, "naming", name);
  return std::unique_ptr<Wakeup>(new Wakeup(std::move(socket), std::move(name)));
}

void Wakeup::Clear() const {
  char rings[16];
  while (recv(fd(), rings, sizeof rings, MSG_DONTWAIT) >= 0) {
  }
}

absl::StatusOr<WakeupHandle> WakeupHandle::Take(absl::string_view name) {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewDatagramSocket());
  CADRE_ASSIGN_OR_RETURN(const WakeupAddress at, AddressOf(name));
  if (connect(socket.fd(), at.raw(), at.length) != 0) {
    return absl::NotFoundError(
        absl::StrCat("no wakeup of the name ", name, " is in reach: ", std::strerror(errno)));
  }
  return WakeupHandle(std::move(socket));
}

void WakeupHandle::Signal() const {
  // Without room the wakeup rings already; without an owner nobody hears it.
  const ssize_t sent = send(socket_->fd(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  static_cast<void>(sent);
}

}  // namespace cadre
