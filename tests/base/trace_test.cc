#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

TraceInterval Interval(const std::string& name, int64_t begin_us, int64_t duration_us = 1) {
  return {.name = name, .category = "compute", .begin_us = begin_us, .duration_us = duration_us};
}

// The events of a document whose phase ("ph") is `phase`.
std::vector<Json> EventsOf(const std::string& document, const std::string& phase) {
  std::vector<Json> events;
  const Json parsed = Json::parse(document);
  for (const Json& event : parsed.at("traceEvents")) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

std::vector<std::string> NamesOf(const std::vector<Json>& events) {
  std::vector<std::string> names;
  for (const Json& event : events) names.push_back(event["name"]);
  return names;
}

TEST(TraceTest, StartsInactive) {
  Trace trace;
  EXPECT_FALSE(trace.on());
  trace.Add(Interval("a", 1));
  EXPECT_THAT(trace.Stop(), IsEmpty());
  EXPECT_EQ(trace.dropped(), 0U);
}

TEST(TraceTest, RecordsBetweenStartAndStop) {
  Trace trace;
  trace.Start();
  EXPECT_TRUE(trace.on());
  trace.Add({.name = "reduce-scatter bucket 2",
             .category = "collective",
             .track = 1,
             .begin_us = 10,
             .duration_us = 5,
             .bytes = 4096,
             .step = 7});
  const std::vector<TraceInterval> kept = trace.Stop();
  EXPECT_FALSE(trace.on());
  trace.Add(Interval("too late", 20));
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].name, "reduce-scatter bucket 2");
  EXPECT_EQ(kept[0].track, 1);
  EXPECT_EQ(kept[0].bytes, 4096);
  EXPECT_EQ(kept[0].step, 7);
  EXPECT_THAT(trace.Stop(), IsEmpty());
}

TEST(TraceTest, StartDiscardsIntervals) {
  Trace trace;
  trace.Start();
  for (size_t i = 0; i <= Trace::kMaxIntervals; ++i) trace.Add(Interval("old", 1));
  EXPECT_EQ(trace.dropped(), 1U);
  trace.Start();
  EXPECT_EQ(trace.dropped(), 0U);
  trace.Add(Interval("new", 2));
  const std::vector<TraceInterval> kept = trace.Stop();
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].name, "new");
}

TEST(TraceTest, CountsDroppedIntervals) {
  Trace trace;
  trace.Start();
  for (size_t i = 0; i < Trace::kMaxIntervals + 3; ++i) {
    trace.Add(Interval("a", i));
  }
  EXPECT_EQ(trace.dropped(), 3U);
  const std::vector<TraceInterval> kept = trace.Stop();
  ASSERT_THAT(kept, SizeIs(Trace::kMaxIntervals));
  EXPECT_EQ(kept.back().begin_us, std::ssize(kept) - 1);
  // The count remains after Stop.
  EXPECT_EQ(trace.dropped(), 3U);
}

TEST(TraceTest, ThreadsLoseNothing) {
  Trace trace;
  trace.Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) trace.Add(Interval("a", i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(trace.Stop(), SizeIs(4000));
}

TEST(TraceTest, ConcurrentStartStopAdd) {
  Trace trace;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> added{0};
  std::thread other([&] {
    while (!done.load()) {
      trace.Add(Interval("a", 1));
      ++added;
    }
  });
  size_t kept = 0;
  // At least one interval must be kept, however the threads are scheduled.
  for (int i = 0; i < 100 || kept == 0; ++i) {
    trace.Start();
    kept += trace.Stop().size();
    std::this_thread::yield();
  }
  done = true;
  other.join();
  EXPECT_LE(kept, added.load());
}

TEST(ChromeTraceTest, EmptyDocument) {
  EXPECT_THAT(EventsOf(ChromeTraceJson({}), "X"), IsEmpty());
  EXPECT_THAT(EventsOf(ChromeTraceJson({{.name = "idle"}}), "X"), IsEmpty());
}

TEST(ChromeTraceTest, IntervalsAreCompleteEvents) {
  TraceInterval interval = Interval("reduce-scatter bucket 2", 1'700'000'000'123'456, 789);
  interval.category = "collective";
  interval.track = 1;
  interval.bytes = 4096;
  interval.step = 12;
  const std::vector<Json> events =
      EventsOf(ChromeTraceJson({{.name = "rank 0", .intervals = {interval}}}), "X");
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0], Json::parse(R"({"ph": "X", "pid": 0, "tid": 1, "ts": 1700000000123456,
                                       "dur": 789, "name": "reduce-scatter bucket 2",
                                       "cat": "collective",
                                       "args": {"step": 12, "bytes": 4096}})"));
}

TEST(ChromeTraceTest, OnlyTransfersHaveBytes) {
  TraceInterval none = Interval("a", 1);
  TraceInterval empty = Interval("b", 2);
  empty.bytes = 0;
  const std::vector<Json> events =
      EventsOf(ChromeTraceJson({{.name = "rank 0", .intervals = {none, empty}}}), "X");
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_FALSE(events[0]["args"].contains("bytes"));
  EXPECT_EQ(events[1]["args"]["bytes"], 0);
}

TEST(ChromeTraceTest, NamesProcessesAndTracks) {
  TraceInterval other = Interval("b", 2);
  other.track = 1;
  const std::string document =
      ChromeTraceJson({{.name = "group 0 rank 0 (w1)", .intervals = {other, Interval("a", 1)}},
                       {.name = "group 0 rank 1 (w2)", .intervals = {Interval("c", 3)}}});
  std::vector<std::string> names;
  for (const Json& event : EventsOf(document, "M")) {
    if (!event["args"].contains("name")) continue;
    names.push_back(event["name"].get<std::string>() + " " + event["pid"].dump() + " " +
                    event["tid"].dump() + " " + event["args"]["name"].get<std::string>());
  }
  EXPECT_THAT(names,
              ElementsAre("process_name 0 0 group 0 rank 0 (w1)", "thread_name 0 0 compute",
                          "thread_name 0 1 communication", "process_name 1 0 group 0 rank 1 (w2)",
                          "thread_name 1 0 compute"));
}

TEST(ChromeTraceTest, SortsEnclosingFirst) {
  const std::string document =
      ChromeTraceJson({{.name = "rank 0",
                        .intervals = {Interval("late", 30), Interval("inner", 10, 2),
                                      Interval("step", 10, 40), Interval("first", 5)}}});
  EXPECT_THAT(NamesOf(EventsOf(document, "X")), ElementsAre("first", "step", "inner", "late"));
}

TEST(ChromeTraceTest, EscapesNames) {
  std::string control;
  for (char c = 1; c < 0x20; ++c) control += c;
  const std::vector<std::string> names = {"quote \" backslash \\ slash / and \x7F", control,
                                          std::string("nul\0inside", 10),
                                          "größe 層 \xF0\x9F\x9A\x80 \xEE\x80\x80", ""};
  for (const std::string& name : names) {
    const std::string document =
        ChromeTraceJson({{.name = name, .intervals = {Interval(name, 1)}}});
    const std::vector<Json> events = EventsOf(document, "X");
    ASSERT_THAT(events, SizeIs(1));
    EXPECT_EQ(events[0]["name"].get<std::string>(), name);
    EXPECT_EQ(EventsOf(document, "M")[0]["args"]["name"].get<std::string>(), name);
  }
}

// The parser rejects a document with a string that is not UTF-8, as browsers do.
TEST(ChromeTraceTest, ReplacesInvalidUtf8) {
  const std::string replacement = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xFF b", "a" + replacement + " b"},
      {"cut \xE5\xB1", "cut " + replacement},
      {"overlong \xC0\xAF", "overlong " + replacement + replacement},
  };
  for (const auto& [name, read] : cases) {
    const std::vector<Json> events =
        EventsOf(ChromeTraceJson({{.name = "rank 0", .intervals = {Interval(name, 1)}}}), "X");
    ASSERT_THAT(events, SizeIs(1));
    EXPECT_EQ(events[0]["name"].get<std::string>(), read);
  }
}

}  // namespace
}  // namespace cadre
