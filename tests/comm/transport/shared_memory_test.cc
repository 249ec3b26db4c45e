// Links over shared memory, and their wakeups. failure_test.cc kills processes that use them.
#include "comm/transport/shared_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/comm/transport/messages.h"

namespace cadre {
namespace {

struct Ends {
  std::unique_ptr<Wakeup> wakeups[2];
  std::unique_ptr<Link> links[2];
};

Ends MakeEnds(std::shared_ptr<SharedSegment> left, std::shared_ptr<SharedSegment> right,
              int channel = 0) {
  Ends ends;
  for (auto& wakeup : ends.wakeups) wakeup = *Wakeup::Make();
  ends.links[0] =
      MakeSharedMemoryLink(std::move(left), channel, 0,
                           *WakeupHandle::Take(ends.wakeups[1]->name()), LinkKind::kThreads);
  ends.links[1] =
      MakeSharedMemoryLink(std::move(right), channel, 1,
                           *WakeupHandle::Take(ends.wakeups[0]->name()), LinkKind::kThreads);
  return ends;
}

Ends MakeEnds() {
  const auto segment = *SharedSegment::MakeForThreads();
  return MakeEnds(segment, segment);
}

bool IsSignaled(const Wakeup& wakeup) {
  pollfd entry{.fd = wakeup.fd(), .events = POLLIN};
  return poll(&entry, 1, 0) == 1;
}

TEST(WakeupTest, SignaledUntilCleared) {
  const auto wakeup = *Wakeup::Make();
  const auto handle = *WakeupHandle::Take(wakeup->name());
  EXPECT_FALSE(IsSignaled(*wakeup));
  // More signals than the kernel queues: Signal never blocks.
  for (int i = 0; i < 10'000; ++i) handle.Signal();
  EXPECT_TRUE(IsSignaled(*wakeup));
  wakeup->Clear();
  EXPECT_FALSE(IsSignaled(*wakeup));
  handle.Signal();
  EXPECT_TRUE(IsSignaled(*wakeup));
}

TEST(WakeupTest, UnknownNames) {
  auto wakeup = *Wakeup::Make();
  const std::string name = wakeup->name();
  const auto handle = *WakeupHandle::Take(name);
  wakeup.reset();
  handle.Signal();
  EXPECT_EQ(WakeupHandle::Take(name).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WakeupHandle::Take("").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WakeupHandle::Take(std::string(500, 'b')).status().code(), absl::StatusCode::kNotFound);
}

TEST(SharedSegmentTest, OpensByDescription) {
  const auto made = *SharedSegment::Make();
  EXPECT_LE(made->description().size(), 200U);
  const auto opened = SharedSegment::Open(made->description());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Ends ends = MakeEnds(made, *opened, 1);
  const auto sent = Pattern(1000, 1);
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 1000U);
  Bytes got(1000);
  ASSERT_EQ(*ends.links[1]->Read(got), 1000U);
  EXPECT_EQ(got, sent);
}

TEST(SharedSegmentTest, RejectsInvalidDescriptions) {
  const auto made = *SharedSegment::Make();
  const std::string nonce = made->description().substr(made->description().rfind(' ') + 1);
  for (const std::string& description :
       {std::string(), std::string("1 2"), std::string("a b c"), absl::StrCat("0 0 ", nonce),
        absl::StrCat(getpid(), " 0 ", nonce), absl::StrCat(getpid(), " 99999 ", nonce),
        made->description().substr(1) + "0"}) {
    EXPECT_FALSE(SharedSegment::Open(description).ok()) << description;
  }
  // A valid segment, but not the described one.
  std::string other = made->description();
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_EQ(SharedSegment::Open(other).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SharedMemoryLinkTest, PartialWritesAndWrapAround) {
  const Ends ends = MakeEnds();
  constexpr size_t kRing = SharedSegment::kRingBytes;
  const auto sent = Pattern(3 * kRing, 5);
  size_t written = 0;
  size_t read = 0;
  Bytes got(sent.size());
  size_t step = 1;
  while (read < sent.size()) {
    step = step * 3 % 100'003;
    const auto rest = std::span(sent).subspan(written);
    // Header and payload.
    const size_t first = std::min(rest.size(), step % 97);
    const size_t second = std::min(rest.size() - first, 2 * step);
    if (first + second > 0) {
      written += *ends.links[0]->Write(rest.first(first), rest.subspan(first, second));
    }
    ASSERT_LE(written - read, kRing);
    read += *ends.links[1]->Read(std::span(got).subspan(read, std::min(got.size() - read, step)));
  }
  EXPECT_TRUE(got == sent);
  // The reader frees room in batches.
  EXPECT_GE(*ends.links[0]->Write(sent, {}), kRing - kRing / 8);
  EXPECT_EQ(*ends.links[0]->Write(sent, {}), 0U);
}

TEST(SharedMemoryLinkTest, PeekDoesNotConsume) {
  const Ends ends = MakeEnds();
  const auto sent = Pattern(100, 2);
  EXPECT_TRUE(ends.links[1]->Peek(100)->empty());
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 100U);
  EXPECT_EQ(ends.links[1]->Peek(10)->size(), 10U);
  const auto peeked = *ends.links[1]->Peek(1000);
  EXPECT_TRUE(std::equal(peeked.begin(), peeked.end(), sent.begin(), sent.end()));
  ends.links[1]->Consume(40);
  EXPECT_EQ(ends.links[1]->Peek(1000)->size(), 60U);
}

TEST(SharedMemoryLinkTest, SignalsOnlySleepers) {
  const Ends ends = MakeEnds();
  const auto sent = Pattern(SharedSegment::kRingBytes, 2);
  std::vector<pollfd> polled;
  ASSERT_EQ(*ends.links[0]->Write(std::span(sent).first(8), {}), 8U);
  EXPECT_FALSE(IsSignaled(*ends.wakeups[1]));
  // Data is available already.
  EXPECT_FALSE(ends.links[1]->PrepareWait(true, false, polled));
  ends.links[1]->EndWait();
  Bytes got(8);
  ASSERT_EQ(*ends.links[1]->Read(got), 8U);
  EXPECT_TRUE(ends.links[1]->PrepareWait(true, false, polled));
  EXPECT_TRUE(polled.empty());
  EXPECT_GT(*ends.links[0]->Write(sent, {}), 0U);
  EXPECT_TRUE(IsSignaled(*ends.wakeups[1]));
  ends.links[1]->EndWait();
  // A writer without room.
  while (*ends.links[0]->Write(sent, {}) > 0) {
  }
  EXPECT_TRUE(ends.links[0]->PrepareWait(false, true, polled));
  got.resize(SharedSegment::kRingBytes / 2);
  EXPECT_GT(*ends.links[1]->Read(got), 0U);
  EXPECT_TRUE(IsSignaled(*ends.wakeups[0]));
  EXPECT_FALSE(ends.links[0]->PrepareWait(false, true, polled));
  ends.links[0]->EndWait();
}

TEST(SharedMemoryLinkTest, DeliversDataSentBeforeClose) {
  Ends ends = MakeEnds();
  std::vector<pollfd> polled;
  EXPECT_TRUE(ends.links[1]->PrepareWait(true, false, polled));
  const auto sent = Pattern(100, 2);
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 100U);
  ends.wakeups[1]->Clear();
  EXPECT_FALSE(ends.links[1]->PrepareWait(true, false, polled));
  ends.links[0].reset();
  EXPECT_TRUE(IsSignaled(*ends.wakeups[1]));
  Bytes got(100);
  ASSERT_EQ(*ends.links[1]->Read(got), 100U);
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(ends.links[1]->PrepareWait(true, false, polled));
  EXPECT_EQ(ends.links[1]->Read(got).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ends.links[1]->Peek(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ends.links[1]->Write(sent, {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(SharedMemoryLinkTest, ShutdownClosesBothEnds) {
  const Ends ends = MakeEnds();
  const auto sent = Pattern(100, 2);
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 100U);
  ends.links[0]->Shutdown();
  Bytes got(100);
  std::vector<pollfd> polled;
  for (const auto& link : ends.links) {
    EXPECT_EQ(link->Read(got).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(link->Peek(1).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(link->Write(sent, {}).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(link->PrepareWait(true, true, polled));
    link->EndWait();
  }
}

}  // namespace
}  // namespace cadre
