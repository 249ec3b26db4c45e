// TCP connections over loopback, for the tests of this room.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/transport/socket.h"

namespace cadre {

struct SocketPair {
  Socket left;
  Socket right;
};

// Connected and non-blocking.
inline SocketPair ConnectedPair() {
  auto listening = ListenOn("127.0.0.1:0");
  EXPECT_TRUE(listening.ok()) << listening.status();
  auto addresses = Resolve("127.0.0.1:" + std::to_string(*LocalPort(*listening)), false);
  EXPECT_TRUE(addresses.ok());
  auto left = StartConnect(addresses->front());
  EXPECT_TRUE(left.ok());
  pollfd entry{.fd = listening->fd(), .events = POLLIN};
  EXPECT_EQ(poll(&entry, 1, 10'000), 1);
  Socket right(accept4(listening->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_FALSE(right.empty());
  EXPECT_TRUE(ConnectResult(*left).ok());
  TuneConnection(*left);
  TuneConnection(right);
  return {*std::move(left), std::move(right)};
}

}  // namespace cadre
