#include "base/rpc/notify.h"

#include <glog/logging.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cadre {

// The protocol is one datagram (sd_notify(3)); a leading @ names an abstract socket.
void NotifyReady() {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (*path == '@') address.sun_path[0] = '\0';
  const int socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  constexpr char kReady[] = "READY=1";
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (sendto(socket_fd, kReady, sizeof kReady - 1, MSG_NOSIGNAL, to, size) < 0) {
    PLOG(WARNING) << "cannot notify " << path;
  }
  close(socket_fd);
}

}  // namespace cadre
