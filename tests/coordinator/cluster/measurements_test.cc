#include "coordinator/cluster/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

v1::Measured MeasuredOf(const std::string& layer, uint32_t samples, double forward) {
  v1::Measured measured;
  measured.mutable_times()->set_step(1);
  measured.set_update_seconds(1e-9);
  measured.set_copy_seconds(2e-9);
  v1::LayerTime& time = *measured.mutable_layers()->add_time();
  time.set_layer(layer);
  time.set_samples(samples);
  time.set_forward(forward);
  return measured;
}

v1::LinkProfile LinkOf(double beta) {
  v1::LinkProfile link;
  link.set_beta(beta);
  return link;
}

absl::Status Check(const v1::Measured& measured) {
  return CheckMeasured(measured, /*limit=*/absl::Seconds(10));
}

TEST(MeasurementsTest, NewTimesReplaceOld) {
  Measurements all;
  EXPECT_EQ(all.TimesOf("cpu", "m"), nullptr);
  all.Record("cpu", "m", MeasuredOf("fc1", 16, 1));
  all.Record("cpu", "m", MeasuredOf("fc1", 32, 2));
  v1::Measured again = MeasuredOf("fc1", 16, 3);
  again.mutable_layers()->mutable_time(0)->set_rows(1);
  const auto update = all.Record("cpu", "m", again);
  EXPECT_EQ(update.key, LayerTimesKey("cpu", "m"));
  EXPECT_EQ(update.evicted, "");
  ASSERT_EQ(update.record->times().time_size(), 2);
  EXPECT_EQ(update.record->times().time(0).samples(), 32u);
  EXPECT_EQ(update.record->times().time(1).forward(), 3);
  EXPECT_EQ(update.record->update_seconds(), 1e-9);
  EXPECT_EQ(update.record->copy_seconds(), 2e-9);
  EXPECT_EQ(all.TimesOf("cpu", "other"), nullptr);
  EXPECT_EQ(all.TimesOf("gpu", "m"), nullptr);
}

TEST(MeasurementsTest, IsBounded) {
  Measurements all;
  std::string evicted;
  for (int i = 0; i <= 1024; ++i) {
    evicted = all.Record("cpu", absl::StrCat("m", i), MeasuredOf("fc1", 1, 1)).evicted;
    EXPECT_EQ(evicted.empty(), i < 1024);
  }
  EXPECT_EQ(evicted, LayerTimesKey("cpu", "m0")) << "the oldest record";
  EXPECT_EQ(all.TimesOf("cpu", "m0"), nullptr);
  v1::Measured many = MeasuredOf("fc1", 1, 1);
  for (uint32_t samples = 2; samples <= kMaxLayerTimes + 10; ++samples) {
    *many.mutable_layers()->add_time() = MeasuredOf("fc1", samples, 1).layers().time(0);
  }
  all.Record("cpu", "m1", many);
  const v1::LayerTimesRecord& record = *all.TimesOf("cpu", "m1");
  ASSERT_EQ(record.times().time_size(), kMaxLayerTimes);
  EXPECT_EQ(record.times().time(kMaxLayerTimes - 1).samples(), kMaxLayerTimes + 10);
  all.Record("cpu", "m1", MeasuredOf("fc1", 1, 1));
  EXPECT_EQ(record.times().time_size(), kMaxLayerTimes) << "one more replaces the oldest";
  EXPECT_EQ(record.times().time(kMaxLayerTimes - 1).samples(), 1U);
  EXPECT_EQ(record.times().time(0).samples(), 12U);
  EXPECT_EQ(all.Record("cpu", "m7", MeasuredOf("fc1", 1, 1)).evicted, "") << "it has a place";
  for (size_t i = 0; i < kMaxLinks; ++i) all.RecordLink({"a", absl::StrCat("b", i)}, LinkOf(i + 1));
  EXPECT_TRUE(all.LinkOf({"a", "b0"}).has_value());
  all.RecordLink({"b0", "a"}, LinkOf(7));
  all.RecordLink({"a", "c"}, LinkOf(8));
  EXPECT_EQ(all.LinkOf({"a", "b0"})->beta(), 7);
  EXPECT_FALSE(all.LinkOf({"a", "b1"}).has_value()) << "the oldest record";
  EXPECT_TRUE(all.LinkOf({"a", "b2"}).has_value());
  all.RecordLink({"a", "d"}, LinkOf(9));
  EXPECT_FALSE(all.LinkOf({"a", "b2"}).has_value());
  EXPECT_TRUE(all.LinkOf({"a", "b3"}).has_value());
}

TEST(MeasurementsTest, NameStaysUntilTheNextOne) {
  Measurements all;
  v1::Measured named = MeasuredOf("fc1", 1, 1);
  named.mutable_layers()->set_name("mlp");
  named.set_update_seconds(2);
  named.set_copy_seconds(3);
  all.Record("cpu", "m", named);
  v1::Measured later = MeasuredOf("fc1", 1, 1);
  later.clear_update_seconds();
  later.clear_copy_seconds();
  all.Record("cpu", "m", later);
  EXPECT_EQ(all.TimesOf("cpu", "m")->times().name(), "mlp");
  EXPECT_EQ(all.TimesOf("cpu", "m")->times().model(), "m");
  EXPECT_EQ(all.TimesOf("cpu", "m")->device(), "cpu");
  EXPECT_EQ(all.TimesOf("cpu", "m")->update_seconds(), 2);
  EXPECT_EQ(all.TimesOf("cpu", "m")->copy_seconds(), 3);
}

TEST(MeasurementsTest, LinksByHosts) {
  Measurements all;
  EXPECT_FALSE(all.LinkOf({"a", "a"}).has_value());
  all.RecordLink({"a", "a"}, LinkOf(1));
  all.RecordLink({"a", "b"}, LinkOf(2));
  all.RecordLink({"a", "a", "a", "a"}, LinkOf(4));
  EXPECT_EQ(all.LinkOf({"a", "a"})->beta(), 1);
  EXPECT_EQ(all.LinkOf({"b", "a"})->beta(), 2) << "the order of hosts does not matter";
  EXPECT_EQ(all.LinkOf({"a", "a", "a"})->beta(), 4) << "the newest link of any number of ranks";
  EXPECT_EQ(all.LinkOf({"a", "b", "b"})->beta(), 2);
  EXPECT_FALSE(all.LinkOf({"b", "b"}).has_value());
  EXPECT_FALSE(all.LinkOf({"a", "c"}).has_value());
  all.RecordLink({"a", "a"}, LinkOf(5));
  EXPECT_EQ(all.LinkOf({"a", "a"})->beta(), 5);
  EXPECT_EQ(all.LinkOf({"a", "a", "a"})->beta(), 5);
}

TEST(MeasurementsTest, InvalidTimesAreRefused) {
  EXPECT_TRUE(Check(MeasuredOf("fc1", 1, 1)).ok());
  v1::Measured none = MeasuredOf("fc1", 1, 1);
  none.mutable_times()->set_step(0);
  EXPECT_THAT(Check(none).message(), HasSubstr("step time"));
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    v1::Measured step = MeasuredOf("fc1", 1, 1);
    step.mutable_times()->set_moves(bad);
    EXPECT_EQ(Check(step).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Check(MeasuredOf("fc1", 1, bad)).message(), HasSubstr("is not a duration"));
  }
  v1::Measured backward = MeasuredOf("fc1", 1, 1);
  backward.mutable_layers()->mutable_time(0)->set_backward(-1);
  EXPECT_EQ(Check(backward).code(), absl::StatusCode::kInvalidArgument);
  v1::Measured copy = MeasuredOf("fc1", 1, 1);
  copy.set_copy_seconds(-1);
  EXPECT_EQ(Check(copy).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Check(MeasuredOf("fc1", 1, 10)).ok());
  EXPECT_EQ(Check(MeasuredOf("fc1", 1, 10.5)).message(),
            "10.5 seconds are claimed, but it began only 10 seconds ago");
  v1::Measured step = MeasuredOf("fc1", 1, 1);
  step.mutable_times()->set_step(1e9);
  EXPECT_THAT(Check(step).message(), HasSubstr("1e+09 seconds"));
  v1::Measured many = MeasuredOf("fc1", 1, 1);
  while (many.layers().time_size() < kMaxLayerTimes) {
    *many.mutable_layers()->add_time() = many.layers().time(0);
  }
  EXPECT_TRUE(Check(many).ok()) << "the number of layers of the largest model";
  *many.mutable_layers()->add_time() = many.layers().time(0);
  EXPECT_THAT(Check(many).message(), HasSubstr("32769 layer times"));
}

TEST(MeasurementsTest, InvalidPartsAreRefused) {
  const uint32_t max = 1U << 30;
  for (void (*set)(v1::LayerTime&, uint32_t) : {
           +[](v1::LayerTime&time, uint32_t value) { time.set_samples(value); },
           +[](v1::LayerTime&time, uint32_t value) { time.set_rows(value); },
           +[](v1::LayerTime&time, uint32_t value) { time.set_outs(value); },
           +[](v1::LayerTime&time, uint32_t value) { time.set_ins(value); },
       }) {
    v1::Measured measured = MeasuredOf("fc1", 1, 1);
    set(*measured.mutable_layers()->mutable_time(0), max);
    EXPECT_TRUE(Check(measured).ok());
    set(*measured.mutable_layers()->mutable_time(0), max + 1);
    EXPECT_EQ(Check(measured).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(Check(MeasuredOf("fc1", 0, 1)).ok());
  EXPECT_TRUE(Check(MeasuredOf(std::string(1000, 'x'), 1, 1)).ok());
  EXPECT_FALSE(Check(MeasuredOf(std::string(1001, 'x'), 1, 1)).ok());
  v1::Measured named = MeasuredOf("fc1", 1, 1);
  named.mutable_layers()->set_name(std::string(1000, 'x'));
  EXPECT_TRUE(Check(named).ok());
  named.mutable_layers()->set_name(std::string(1001, 'x'));
  EXPECT_FALSE(Check(named).ok());
}

}  // namespace
}  // namespace cadre
