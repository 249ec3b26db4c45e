// Links over one or more TCP connections: order of bytes, elements that arrive in parts, the end of
// a link, and the number of connections.
#include "comm/transport/tcp_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "tests/comm/transport/sockets.h"

namespace cadre {
namespace {

using Bytes = std::vector<std::byte>;

struct LinkPair {
  std::unique_ptr<Link> left;
  std::unique_ptr<Link> right;
};

LinkPair MakePair(int connections) {
  std::vector<Socket> left, right;
  for (int connection = 0; connection < connections; ++connection) {
    SocketPair pair = ConnectedPair();
    left.push_back(std::move(pair.left));
    right.push_back(std::move(pair.right));
  }
  return {MakeTcpLink(std::move(left)), MakeTcpLink(std::move(right))};
}

// The byte at a position of the stream.
std::byte At(uint64_t position) { return std::byte((position * 0x9e3779b97f4a7c15) >> 56); }

Bytes Stream(uint64_t position, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = At(position + i);
  return bytes;
}

// Waits for the link, as a transport does.
void Wait(Link& link, bool to_read, bool to_write) {
  std::vector<pollfd> polled;
  if (link.PrepareWait(to_read, to_write, polled)) {
    EXPECT_GT(poll(polled.data(), polled.size(), 20'000), 0);
  }
  link.EndWait();
}

void WriteAll(Link& link, std::span<const std::byte> first, std::span<const std::byte> second) {
  while (!first.empty() || !second.empty()) {
    const auto wrote = link.Write(first, second);
    ASSERT_TRUE(wrote.ok()) << wrote.status();
    if (*wrote == 0) Wait(link, false, true);
    const size_t from_first = std::min(*wrote, first.size());
    first = first.subspan(from_first);
    second = second.subspan(*wrote - from_first);
  }
}

void ReadAll(Link& link, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto read = link.Read(into);
    ASSERT_TRUE(read.ok()) << read.status();
    if (*read == 0) Wait(link, true, false);
    into = into.subspan(*read);
  }
}

// At least one available byte; waits for it if necessary.
std::span<const std::byte> PeekSome(Link& link, size_t limit) {
  while (true) {
    const auto peeked = link.Peek(limit);
    EXPECT_TRUE(peeked.ok()) << peeked.status();
    if (!peeked.ok() || !peeked->empty()) return peeked.value_or(std::span<const std::byte>());
    Wait(link, true, false);
  }
}

class TcpLinkTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Connections, TcpLinkTest, ::testing::Values(1, 2, 3, 8),
                         ::testing::PrintToStringParamName());

// Parts of random sizes are written in pairs, and read or peeked in other sizes.
TEST_P(TcpLinkTest, PreservesOrder) {
  LinkPair pair = MakePair(GetParam());
  constexpr uint64_t kTotal = 20 << 20;
  std::thread writer([&] {
    std::mt19937_64 random(1);
    for (uint64_t position = 0; position < kTotal;) {
      const size_t limit = random() % 4 == 0 ? 3 << 20 : 200;
      const size_t size = std::min<uint64_t>(kTotal - position, 1 + random() % limit);
      const Bytes bytes = Stream(position, size);
      const size_t first = random() % (size + 1);
      WriteAll(*pair.left, std::span(bytes).first(first), std::span(bytes).subspan(first));
      position += size;
    }
  });
  std::mt19937_64 random(2);
  for (uint64_t position = 0; position < kTotal;) {
    const size_t limit = random() % 4 == 0 ? 3 << 20 : 200;
    const size_t size = std::min<uint64_t>(kTotal - position, 1 + random() % limit);
    if (random() % 2 == 0) {
      Bytes bytes(size);
      ReadAll(*pair.right, bytes);
      ASSERT_EQ(bytes, Stream(position, size)) << position;
      position += size;
    } else {
      const auto peeked = PeekSome(*pair.right, size);
      ASSERT_LE(peeked.size(), size);
      ASSERT_EQ(Bytes(peeked.begin(), peeked.end()), Stream(position, peeked.size())) << position;
      const size_t taken = random() % (peeked.size() + 1);
      pair.right->Consume(taken);
      position += taken;
    }
  }
  writer.join();
}

// Both ends concurrently send more than the kernel buffers.
TEST_P(TcpLinkTest, FullDuplex) {
  LinkPair pair = MakePair(GetParam());
  constexpr size_t kBytes = 24 << 20;
  const auto exchange = [](Link& link, uint64_t own, uint64_t peers) {
    const Bytes out = Stream(own, kBytes);
    Bytes in(kBytes);
    size_t sent = 0, received = 0;
    while (sent < kBytes || received < kBytes) {
      size_t moved = 0;
      if (sent < kBytes) {
        const auto wrote = link.Write(std::span(out).subspan(sent), {});
        ASSERT_TRUE(wrote.ok());
        moved += *wrote;
        sent += *wrote;
      }
      if (received < kBytes) {
        const auto read = link.Read(std::span(in).subspan(received));
        ASSERT_TRUE(read.ok());
        moved += *read;
        received += *read;
      }
      if (moved == 0) Wait(link, received < kBytes, sent < kBytes);
    }
    EXPECT_EQ(in, Stream(peers, kBytes));
  };
  std::thread other([&] { exchange(*pair.right, 77, 0); });
  exchange(*pair.left, 0, 77);
  other.join();
}

// A payload that begins at a multiple of 64 in the stream is staged at such an address, however the
// bytes before it were read and however it is divided.
TEST_P(TcpLinkTest, PeekPreservesAlignment) {
  LinkPair pair = MakePair(GetParam());
  std::mt19937_64 random(3);
  uint64_t position = 0;
  for (int message = 0; message < 200; ++message) {
    const size_t prefix = 64 + -position % 64;
    const size_t payload = 8 * (1 + random() % 3000);
    const Bytes bytes = Stream(position, prefix + payload);
    const size_t cut = random() % (bytes.size() + 1);
    WriteAll(*pair.left, std::span(bytes).first(cut), {});
    std::thread rest([&] { WriteAll(*pair.left, std::span(bytes).subspan(cut), {}); });
    Bytes head(prefix);
    ReadAll(*pair.right, head);
    for (size_t done = 0; done < payload;) {
      const auto peeked = PeekSome(*pair.right, payload - done);
      ASSERT_EQ((reinterpret_cast<uintptr_t>(peeked.data()) - done) % 8, 0U);
      const size_t whole = peeked.size() / 8 * 8;
      for (size_t i = 0; i < whole; ++i) ASSERT_EQ(peeked[i], At(position + prefix + done + i));
      pair.right->Consume(whole);
      done += whole;
      if (whole == 0) Wait(*pair.right, true, false);
    }
    rest.join();
    position += bytes.size();
  }
}

// The reader may sleep while an element is incomplete, and then gets it as a whole.
TEST_P(TcpLinkTest, IncompleteElementAllowsSleep) {
  LinkPair pair = MakePair(GetParam());
  const Bytes element = Stream(0, 8);
  WriteAll(*pair.left, std::span(element).first(3), {});
  auto peeked = PeekSome(*pair.right, 8);
  ASSERT_EQ(peeked.size(), 3U);
  pair.right->Consume(0);
  std::vector<pollfd> polled;
  ASSERT_TRUE(pair.right->PrepareWait(true, false, polled));
  EXPECT_EQ(poll(polled.data(), polled.size(), 20), 0);
  pair.right->EndWait();
  WriteAll(*pair.left, std::span(element).subspan(3), {});
  EXPECT_EQ(poll(polled.data(), polled.size(), 20'000), 1);
  peeked = PeekSome(*pair.right, 8);
  EXPECT_EQ(Bytes(peeked.begin(), peeked.end()), element);
}

TEST_P(TcpLinkTest, StagedBytesPreventSleep) {
  LinkPair pair = MakePair(GetParam());
  const Bytes bytes = Stream(0, 200);
  WriteAll(*pair.left, bytes, {});
  Bytes head(10);
  ReadAll(*pair.right, head);
  std::vector<pollfd> polled;
  if (pair.right->PrepareWait(true, false, polled)) {
    EXPECT_EQ(poll(polled.data(), polled.size(), 20'000), 1);
  }
  pair.right->EndWait();
  EXPECT_EQ(PeekSome(*pair.right, 50).size(), 50U);
  // 140 more bytes are staged.
  polled.clear();
  EXPECT_FALSE(pair.right->PrepareWait(true, false, polled));
  EXPECT_TRUE(polled.empty());
  Bytes rest(190);
  ReadAll(*pair.right, rest);
  EXPECT_EQ(rest, Stream(10, 190));
  const auto nothing = pair.right->Read(rest);
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(*nothing, 0U);
  const auto none = pair.right->Peek(8);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
}

TEST_P(TcpLinkTest, DeliversDataBeforeEnd) {
  LinkPair pair = MakePair(GetParam());
  const Bytes bytes = Stream(0, 1000);
  WriteAll(*pair.left, bytes, {});
  pair.left.reset();
  Bytes read(1000);
  ReadAll(*pair.right, read);
  EXPECT_EQ(read, bytes);
  Wait(*pair.right, true, false);
  EXPECT_EQ(pair.right->Read(read).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.right->Peek(8).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TcpLinkTest, EndWithinElementFails) {
  LinkPair pair = MakePair(GetParam());
  WriteAll(*pair.left, Stream(0, 3), {});
  pair.left.reset();
  absl::Status status;
  for (int tries = 0; status.ok() && tries < 10; ++tries) {
    status = pair.right->Peek(8).status();
    if (status.ok()) Wait(*pair.right, true, false);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// Shutdown also wakes threads that sleep on either end.
TEST_P(TcpLinkTest, ShutdownClosesBothEnds) {
  LinkPair pair = MakePair(GetParam());
  const auto sleep_and_read = [](Link& link) {
    Wait(link, true, false);
    Bytes bytes(8);
    EXPECT_EQ(link.Read(bytes).status().code(), absl::StatusCode::kUnavailable);
  };
  std::thread local([&] { sleep_and_read(*pair.left); });
  std::thread other([&] { sleep_and_read(*pair.right); });
  pair.left->Shutdown();
  local.join();
  other.join();
  EXPECT_EQ(pair.left->Write(Bytes(8), {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ConnectionsForTest, FollowsBandwidthDelayProduct) {
  constexpr double kWindow = 4e6;
  EXPECT_EQ(ConnectionsFor(0, 1.25e9, kWindow), 1);
  EXPECT_EQ(ConnectionsFor(50e-6, 1.25e9, kWindow), 1);
  EXPECT_EQ(ConnectionsFor(3.2e-3, 1.25e9, kWindow), 1);
  EXPECT_EQ(ConnectionsFor(3.3e-3, 1.25e9, kWindow), 2);
  EXPECT_EQ(ConnectionsFor(10e-3, 1.25e9, kWindow), 4);
  EXPECT_EQ(ConnectionsFor(1.0, 1.25e9, kWindow), kMaxConnections);
  EXPECT_EQ(ConnectionsFor(1e300, 1e300, kWindow), kMaxConnections);
  EXPECT_EQ(ConnectionsFor(std::nan(""), 1.25e9, kWindow), kMaxConnections);
}

TEST(SocketTest, KernelStatistics) {
  SocketPair pair = ConnectedPair();
  EXPECT_GT(RoundTrip(pair.left), 0.0);
  EXPECT_LT(RoundTrip(pair.left), 1.0);
  EXPECT_GE(LargestWindow(), 64 << 10);
  EXPECT_TRUE(AddressOfPeer(pair.left).ok());
}

TEST(SocketTest, ReadUntilStopsAtLimit) {
  SocketPair pair = ConnectedPair();
  std::string text;
  EXPECT_FALSE(ReadUntil(pair.right, 3, &text).value());
  ASSERT_TRUE(SendWhole(pair.left, "abcdef").ok());
  pollfd entry{.fd = pair.right.fd(), .events = POLLIN};
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);
  EXPECT_TRUE(ReadUntil(pair.right, 3, &text).value());
  EXPECT_EQ(text, "abc");
  EXPECT_TRUE(ReadUntil(pair.right, 6, &text).value());
  EXPECT_EQ(text, "abcdef");
  pair.left = Socket();
  poll(&entry, 1, 10'000);
  EXPECT_EQ(ReadUntil(pair.right, 7, &text).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cadre
