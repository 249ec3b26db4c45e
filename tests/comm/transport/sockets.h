// TCP connections over loopback, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "comm/transport/socket.h"

namespace cadre {

// Connects to a listening socket at host:port.
inline Socket ConnectTo(absl::string_view address) {
  auto addresses = Resolve(address, false);
  EXPECT_TRUE(addresses.ok()) << addresses.status();
  auto socket = StartConnect(addresses->front());
  EXPECT_TRUE(socket.ok()) << socket.status();
  pollfd entry{.fd = socket->fd(), .events = POLLOUT};
  EXPECT_EQ(poll(&entry, 1, 10'000), 1);
  EXPECT_TRUE(ConnectResult(*socket).ok());
  return *std::move(socket);
}

struct SocketPair {
  Socket left;
  Socket right;
};

// Connected and non-blocking.
inline SocketPair ConnectedPair() {
  auto listening = ListenOn("127.0.0.1:0");
  EXPECT_TRUE(listening.ok()) << listening.status();
  Socket left = ConnectTo("127.0.0.1:" + std::to_string(*LocalPort(*listening)));
  Socket right(accept4(listening->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_FALSE(right.empty());
  TuneConnection(left);
  TuneConnection(right);
  return {std::move(left), std::move(right)};
}

}  // namespace cadre
