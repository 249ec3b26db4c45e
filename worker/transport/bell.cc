#include "worker/transport/bell.h"

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

struct BellAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// A name in the abstract space: a zero byte, then the name.
absl::StatusOr<BellAddress> AddressOf(absl::string_view name) {
  BellAddress at;
  if (name.empty() || name.size() + 1 > sizeof at.address.sun_path) {
    return absl::NotFoundError(absl::StrCat("'", name, "' is no bell's name"));
  }
  at.address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), at.address.sun_path + 1);
  at.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return at;
}

absl::StatusOr<Socket> NewDatagramSocket() {
  Socket socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.empty())
    return absl::ResourceExhaustedError(absl::StrCat("making a bell: ", std::strerror(errno)));
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bell>> Bell::Make() {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewDatagramSocket());
  std::string name = absl::StrCat("cadre-bell-", NewIdentity());
  CADRE_ASSIGN_OR_RETURN(const BellAddress at, AddressOf(name));
  if (bind(socket.fd(), at.raw(), at.length) != 0) return ErrnoStatus(errno, "naming", name);
  return std::unique_ptr<Bell>(new Bell(std::move(socket), std::move(name)));
}

void Bell::Clear() const {
  char rings[16];
  while (recv(fd(), rings, sizeof rings, MSG_DONTWAIT) >= 0) {
  }
}

absl::StatusOr<BellRope> BellRope::Take(absl::string_view name) {
  CADRE_ASSIGN_OR_RETURN(Socket socket, NewDatagramSocket());
  CADRE_ASSIGN_OR_RETURN(const BellAddress at, AddressOf(name));
  if (connect(socket.fd(), at.raw(), at.length) != 0) {
    return absl::NotFoundError(
        absl::StrCat("no bell of the name ", name, " is in reach: ", std::strerror(errno)));
  }
  return BellRope(std::move(socket));
}

void BellRope::Ring() const {
  // Without room the bell rings already; without an owner nobody hears it.
  const ssize_t sent = send(socket_->fd(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  static_cast<void>(sent);
}

}  // namespace cadre
