#include "worker/train/step_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace cadre {
namespace {

using ::testing::ElementsAre;

TraceInterval IntervalNamed(const std::string& name, int64_t begin_us, int64_t duration_us = 1) {
  return {.name = name, .category = "compute", .begin_us = begin_us, .duration_us = duration_us};
}

std::vector<std::string> Names(const v1::Traced& traced) {
  std::vector<std::string> names;
  for (const v1::TraceEvent& event : traced.events()) names.push_back(event.name());
  return names;
}

TEST(TracedFromTest, ConvertsAllFields) {
  const v1::Traced traced = TracedFrom({{.name = "all-gather bucket 1",
                                         .category = "collective",
                                         .track = 1,
                                         .begin_us = 1'700'000'000'000'000,
                                         .duration_us = 250,
                                         .bytes = 4096,
                                         .step = 17}},
                                       0, 10);
  ASSERT_EQ(traced.events_size(), 1);
  const v1::TraceEvent& event = traced.events(0);
  EXPECT_EQ(event.name(), "all-gather bucket 1");
  EXPECT_EQ(event.category(), "collective");
  EXPECT_EQ(event.track(), 1U);
  EXPECT_EQ(event.begin_us(), 1'700'000'000'000'000);
  EXPECT_EQ(event.duration_us(), 250);
  EXPECT_EQ(event.bytes(), 4096U);
  EXPECT_EQ(event.step(), 17U);
  EXPECT_EQ(traced.dropped(), 0U);
}

TEST(TracedFromTest, OmitsBytesIfThereIsNoTransfer) {
  TraceInterval empty = IntervalNamed("empty", 2);
  empty.bytes = 0;
  const v1::Traced traced = TracedFrom({IntervalNamed("none", 1), empty}, 0, 10);
  EXPECT_FALSE(traced.events(0).has_bytes());
  ASSERT_TRUE(traced.events(1).has_bytes());
  EXPECT_EQ(traced.events(1).bytes(), 0U);
}

TEST(TracedFromTest, KeepsTheEarliestAndCountsTheRest) {
  const std::vector<TraceInterval> intervals = {IntervalNamed("d", 40), IntervalNamed("b", 10, 5),
                                                IntervalNamed("a", 10, 50), IntervalNamed("c", 20)};
  EXPECT_THAT(Names(TracedFrom(intervals, 0, 4)), ElementsAre("a", "b", "c", "d"));
  const v1::Traced cut = TracedFrom(intervals, 7, 3);
  EXPECT_THAT(Names(cut), ElementsAre("a", "b", "c"));
  EXPECT_EQ(cut.dropped(), 8U);
  EXPECT_EQ(TracedFrom(intervals, 0, 0).dropped(), 4U);
}

TEST(TracedFromTest, TruncatesLongNamesBetweenCharacters) {
  // 72 bytes are 24 characters of 3 bytes; the byte before them moves the limit into a character.
  std::string name = "x";
  for (int i = 0; i < 40; ++i) name += "層";
  const v1::Traced traced = TracedFrom({IntervalNamed(name, 1)}, 0, 10);
  EXPECT_EQ(traced.events(0).name(), name.substr(0, 1 + 23 * 3));
  EXPECT_EQ(TracedFrom({IntervalNamed("cut \xE5\xB1", 1)}, 0, 10).events(0).name(), "?");
}

TEST(TracedFromTest, BoundsTheSizeOfEvents) {
  const TraceInterval worst = {.name = std::string(5000, 'n'),
                               .category = std::string(5000, 'c'),
                               .track = std::numeric_limits<int>::max(),
                               .begin_us = -1,
                               .duration_us = -1,
                               .bytes = std::numeric_limits<int64_t>::max(),
                               .step = std::numeric_limits<uint32_t>::max()};
  const v1::Traced one = TracedFrom({worst}, 0, 10);
  const v1::Traced two = TracedFrom({worst, worst}, 0, 10);
  EXPECT_LE(two.ByteSizeLong() - one.ByteSizeLong(), kMaxTraceEventBytes);
}

}  // namespace
}  // namespace cadre
