#include "coordinator/run/prediction_error_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::StartsWith;

// Step times in milliseconds; the step time is the sum of its parts.
v1::StepTimes Times(double compute, double moves, double exposed, double collectives,
                    double update = 0) {
  v1::StepTimes times;
  times.set_step((compute + moves + exposed) * 1e-3);
  times.set_compute(compute * 1e-3);
  times.set_moves(moves * 1e-3);
  times.set_exposed(exposed * 1e-3);
  times.set_collectives(collectives * 1e-3);
  times.set_update(update * 1e-3);
  return times;
}

TEST(PredictionErrorCauseTest, RelativeToMeasuredStep) {
  EXPECT_DOUBLE_EQ(PredictionError(Times(30, 0, 0, 0), Times(40, 0, 0, 0)), -0.25);
  EXPECT_DOUBLE_EQ(PredictionError(Times(50, 0, 0, 0), Times(40, 0, 0, 0)), 0.25);
  EXPECT_EQ(PredictionError(Times(50, 0, 0, 0), v1::StepTimes()), 0);
}

TEST(PredictionErrorCauseTest, NoCauseWithinBound) {
  EXPECT_EQ(PredictionErrorCause(Times(41, 0, 0, 0), Times(50, 0, 0, 0)), "");
  EXPECT_EQ(PredictionErrorCause(Times(59, 0, 0, 0), Times(50, 0, 0, 0)), "");
  EXPECT_NE(PredictionErrorCause(Times(39, 0, 0, 0), Times(50, 0, 0, 0)), "");
}

TEST(PredictionErrorCauseTest, NamesInputAndValues) {
  v1::StepTimes more_work = Times(20, 5, 5, 10);
  more_work.set_step(0.060);
  const struct {
    v1::StepTimes predicted, measured;
    const char* cause;
  } cases[] = {
      {Times(20, 5, 5, 10), Times(40, 6, 8, 13), "compute: layers took 40.0 ms, 20.0 ms predicted"},
      {Times(20, 5, 5, 10), more_work,
       "compute: work outside of layers took 30.0 ms, 0 ms predicted"},
      {Times(20, 5, 2, 10), Times(20, 25, 4, 12), "link: moves took 25.0 ms, 5.00 ms predicted"},
      {Times(20, 0, 2, 11, 1), Times(20, 0, 31, 40, 1),
       "link: collectives and updates took 41.0 ms, 12.0 ms predicted"},
      {Times(20, 0, 2, 30), Times(20, 0, 25, 30),
       "overlap: waiting took 25.0 ms, 2.00 ms predicted"},
      // The collectives are slower by 2 ms, the waiting is longer by 23 ms.
      {Times(20, 0, 2, 30), Times(20, 0, 25, 32), "overlap:"},
      // The predicted step is too long, so the cause is an input that is predicted too long.
      {Times(20, 40, 2, 30), Times(30, 5, 2, 30), "link: moves"},
      {Times(10, 0, 40, 50), Times(12, 0, 5, 10), "link: collectives"},
  };
  for (const auto& [predicted, measured, cause] : cases) {
    EXPECT_THAT(PredictionErrorCause(predicted, measured), StartsWith(cause));
  }
}

// Inputs that explain equally much, in binary fractions of a second.
TEST(PredictionErrorCauseTest, OfEqualCausesTheFirstIsNamed) {
  const auto exact = [](double compute, double moves, double exposed, double collectives) {
    v1::StepTimes exact;
    exact.set_step((compute + moves + exposed) / 64);
    exact.set_compute(compute / 64);
    exact.set_moves(moves / 64);
    exact.set_exposed(exposed / 64);
    exact.set_collectives(collectives / 64);
    return exact;
  };
  v1::StepTimes rest_like_layers = exact(16, 0, 0, 0);
  rest_like_layers.set_step(0.375);
  const struct {
    v1::StepTimes predicted, measured;
    const char* cause;
  } cases[] = {
      {exact(16, 0, 0, 0), exact(24, 8, 0, 0), "compute:"},
      {exact(16, 0, 0, 8), exact(24, 0, 8, 8), "compute:"},
      {exact(16, 0, 0, 8), exact(16, 8, 8, 8), "link: moves"},
      {exact(16, 0, 0, 8), exact(16, 8, 8, 16), "link: collectives"},
      // Collectives that take longer and are hidden as before are no cause.
      {exact(20, 0, 2, 10), exact(40, 0, 2, 60), "compute:"},
      // The layers take 8 / 64 s more, and so does the rest.
      {exact(8, 0, 0, 0), rest_like_layers, "compute: layers"},
  };
  for (const auto& [predicted, measured, cause] : cases) {
    EXPECT_THAT(PredictionErrorCause(predicted, measured), StartsWith(cause));
  }
}

TEST(PredictionErrorCauseTest, Milliseconds) {
  EXPECT_EQ(MillisecondsToText(0.09995), "100 ms");
  EXPECT_EQ(MillisecondsToText(0.0105), "10.5 ms");
  EXPECT_EQ(MillisecondsToText(0.0005), "0.50 ms");
  EXPECT_EQ(MillisecondsToText(0.000007), "0.01 ms");
  EXPECT_EQ(MillisecondsToText(0.000005), "0.01 ms");
  EXPECT_EQ(MillisecondsToText(0), "0 ms");
  EXPECT_EQ(MillisecondsToText(0.0412), "41.2 ms");
  EXPECT_EQ(MillisecondsToText(0.00999), "9.99 ms");
  EXPECT_EQ(MillisecondsToText(0.1234), "123 ms");
  EXPECT_EQ(MillisecondsToText(12.3), "12300 ms");
  EXPECT_EQ(MillisecondsToText(1e-6), "0.001 ms");
}

}  // namespace
}  // namespace cadre
