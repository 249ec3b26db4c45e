// Viewers of one stream: what each reads, and when it waits or ends.
#include "base/http/event_stream.h"

#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

// What the viewer can read now; "end" if its connection ends.
std::string ReadAll(EventStream& stream, uint64_t viewer, size_t block = 100) {
  std::string text;
  std::string buffer(block, '\0');
  while (true) {
    const ssize_t n = stream.Read(viewer, buffer.data(), block, [] {});
    if (n < 0) return "end";
    if (n == 0) return text;
    text.append(buffer, 0, n);
  }
}

TEST(EventStreamTest, ViewersReadTheSameEvents) {
  EventStream stream;
  const uint64_t one = stream.Join(0, [] {});
  const uint64_t two = stream.Join(0, [] {});
  stream.Publish("a", "{}");
  stream.Publish("b", "[1]");
  const std::string text = "id: 1\nevent: a\ndata: {}\n\nid: 2\nevent: b\ndata: [1]\n\n";
  EXPECT_EQ(ReadAll(stream, one), text);
  EXPECT_EQ(ReadAll(stream, two, 7), text);
  EXPECT_EQ(ReadAll(stream, one), "");
  EXPECT_EQ(stream.viewers(), 2U);
}

TEST(EventStreamTest, NewViewerBeginsWithTheNewestEvent) {
  EventStream stream;
  stream.Publish("a", "1");
  stream.Publish("a", "2");
  EXPECT_EQ(ReadAll(stream, stream.Join(0, [] {})), "id: 2\nevent: a\ndata: 2\n\n");
}

// The newest event is always kept.
TEST(EventStreamTest, KeptEventsHaveALimitInBytes) {
  EventStream stream;
  const std::string large(10 << 20, 'x');
  stream.Publish("a", "1");
  const uint64_t behind = stream.Join(0, [] {});
  stream.Publish("a", large);
  const uint64_t newest = stream.Join(0, [] {});
  EXPECT_GT(ReadAll(stream, newest, 1 << 20).size(), large.size());
  stream.Publish("a", large);
  EXPECT_EQ(ReadAll(stream, behind), "end");
  EXPECT_GT(ReadAll(stream, newest, 1 << 20).size(), large.size());
}

TEST(EventStreamTest, ViewerContinuesAfterItsLastEvent) {
  EventStream stream;
  for (const char* data : {"1", "2", "3"}) stream.Publish("a", data);
  EXPECT_EQ(ReadAll(stream, stream.Join(2, [] {})), "id: 3\nevent: a\ndata: 3\n\n");
  EXPECT_EQ(ReadAll(stream, stream.Join(3, [] {})), "");
}

TEST(EventStreamTest, WakesViewersThatWait) {
  EventStream stream;
  int woken = 0;
  int waited = 0;
  const uint64_t viewer = stream.Join(0, [&] { ++woken; });
  char buffer[100];
  EXPECT_EQ(stream.Read(viewer, buffer, sizeof buffer, [&] { ++waited; }), 0);
  EXPECT_EQ(waited, 1);
  stream.Publish("a", "1");
  stream.Publish("a", "2");
  EXPECT_EQ(woken, 1);
}

TEST(EventStreamTest, ViewerThatIsTooSlowEnds) {
  EventStream stream(2);
  const uint64_t slow = stream.Join(0, [] {});
  const uint64_t fast = stream.Join(0, [] {});
  for (int i = 0; i < 3; ++i) {
    stream.Publish("a", "1");
    EXPECT_NE(ReadAll(stream, fast), "end");
  }
  EXPECT_EQ(ReadAll(stream, slow), "end");
}

TEST(EventStreamTest, CloseEndsAllViewers) {
  EventStream stream;
  int woken = 0;
  const uint64_t viewer = stream.Join(0, [&] { ++woken; });
  EXPECT_EQ(ReadAll(stream, viewer), "");
  stream.Close();
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(ReadAll(stream, viewer), "end");
  EXPECT_EQ(ReadAll(stream, stream.Join(0, [] {})), "end");
  stream.Leave(viewer);
}

}  // namespace
}  // namespace cadre
