// Listeners, identities and calls with which tests connect groups.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "base/digest.h"
#include "tests/comm/transport/messages.h"
#include "tests/comm/transport/ranks.h"
#include "tests/comm/transport/sockets.h"

namespace cadre {

using TransportOr = absl::StatusOr<std::unique_ptr<Transport>>;

inline std::unique_ptr<TcpListener> Listen(const TcpListener::Options& options = {}) {
  auto listener = TcpListener::Listen(options);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

inline ConnectOptions Within(absl::Duration time) {
  return {.deadline = absl::Now() + time, .timeout = absl::Seconds(30)};
}

inline constexpr SecretKey kKey = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

inline GroupIdentity Generation(uint64_t generation) {
  return {.protocol = 7, .run = "run-1", .group = 2, .generation = generation, .key = kKey};
}

inline Header MakeHeader(uint64_t generation, uint32_t ranks = 2, uint32_t from = 1,
                         uint32_t to = 0) {
  const GroupIdentity group = Generation(generation);
  Header header{.run = TextDigest(group.run),
                .generation = generation,
                .group = group.group,
                .ranks = ranks,
                .from = from,
                .to = to,
                .protocol = group.protocol,
                .connections = 1};
  return header;
}

inline TransportOr Connect(Listeners& listeners, int rank, const GroupIdentity& group,
                           const ConnectOptions& options = Within(absl::Seconds(20))) {
  return ConnectGroup(listeners.At(rank), group, rank, listeners.peers, options);
}

// Connects all ranks and exchanges messages on every channel.
inline void ExpectConnects(Listeners& listeners, const GroupIdentity& group) {
  OnRanks(listeners.ranks(), [&](int rank) {
    auto transport = Connect(listeners, rank, group);
    ASSERT_TRUE(transport.ok()) << transport.status();
    for (int channel = 0; channel < Transport::kChannels; ++channel) {
      EXPECT_EQ(ExchangeWithAll(**transport, channel), absl::OkStatus());
    }
  });
}

// A connection on which the test sends arbitrary bytes after the listener's greeting.
class RawCaller {
 public:
  explicit RawCaller(const TcpListener& listener) : RawCaller(ConnectTo(listener.address())) {}
  explicit RawCaller(Socket socket) : socket_(std::move(socket)), greeting_(ReadGreeting()) {}
  RawCaller(const TcpListener& listener, Header header) : RawCaller(listener) {
    Send(Signed(header));
  }

  // The header as a rank with the key sends it on this connection.
  std::string Signed(Header header) const {
    Sign(kKey, header, greeting_.challenge);
    return std::string(BytesOf(header));
  }

  void Send(absl::string_view bytes) const {
    EXPECT_EQ(send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }

  // All bytes that the listener sends until it closes the connection.
  std::string ReadToEnd() const { return Read(std::string::npos); }

  // At most `size` bytes.
  std::string Read(size_t size) const {
    std::string received;
    std::array<char, 512> part;
    const absl::Time until = absl::Now() + absl::Seconds(5);
    while (received.size() < size && absl::Now() < until) {
      pollfd entry{.fd = socket_.fd(), .events = POLLIN};
      poll(&entry, 1, 20);
      const ssize_t got =
          recv(socket_.fd(), part.data(), std::min(part.size(), size - received.size()), 0);
      if (got > 0) received.append(part.data(), got);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return received;
    }
    EXPECT_EQ(received.size(), size) << "the connection was not closed";
    return received;
  }

  Answer::Code ReadCode() const {
    const std::string answer = Read(sizeof(Answer));
    EXPECT_EQ(answer.size(), sizeof(Answer));
    return answer.size() == sizeof(Answer) ? FromBytes<Answer>(answer).code : Answer::Code{};
  }

  // Sends a byte about every 10 ms. Returns the number of bytes when the listener has closed the
  // connection.
  size_t SendSlowly(absl::string_view bytes) const {
    for (size_t sent = 0; sent < bytes.size(); ++sent) {
      pollfd entry{.fd = socket_.fd(), .events = POLLIN};
      if (poll(&entry, 1, 10) > 0) return sent;
      std::ignore = send(socket_.fd(), &bytes[sent], 1, MSG_NOSIGNAL);
    }
    return bytes.size();
  }

 private:
  Greeting ReadGreeting() const {
    const std::string greeting = Read(sizeof(Greeting));
    EXPECT_EQ(greeting.size(), sizeof(Greeting));
    return greeting.size() == sizeof(Greeting) ? FromBytes<Greeting>(greeting) : Greeting();
  }

  const Socket socket_;
  const Greeting greeting_;
};

}  // namespace cadre
