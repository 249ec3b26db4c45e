// CaptureLog without a device.
#include "device/cuda/graph_capture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

CaptureLog::Event MakeState() {
  static const CudaApi kNothing = {};
  return std::make_shared<CudaEventState>(kNothing);
}

TEST(CaptureLogTest, StreamsJoinOnce) {
  CaptureLog log(Stream::kMoves);
  EXPECT_EQ(log.origin(), Stream::kMoves);
  EXPECT_FALSE(log.Join(Stream::kMoves));
  EXPECT_TRUE(log.joined(Stream::kMoves));
  EXPECT_FALSE(log.joined(Stream::kCopies));
  EXPECT_TRUE(log.Join(Stream::kCopies));
  EXPECT_FALSE(log.Join(Stream::kCopies));
  EXPECT_TRUE(log.joined(Stream::kCopies));
}

TEST(CaptureLogTest, EventsBelongToTheCaptureOnceRecorded) {
  CaptureLog log(Stream::kCompute);
  const auto before = MakeState();
  const auto inside = MakeState();
  EXPECT_FALSE(log.WaitInside(before));
  EXPECT_FALSE(log.WaitInside(before));
  log.RecordInside(inside);
  log.RecordInside(inside);
  EXPECT_TRUE(log.WaitInside(inside));
  EXPECT_THAT(log.awaited(), ElementsAre(before));
  EXPECT_THAT(log.recorded(), ElementsAre(inside));
  // The work waits for the event first and then records it, so every launch does both.
  log.RecordInside(before);
  EXPECT_TRUE(log.WaitInside(before));
  EXPECT_THAT(log.awaited(), ElementsAre(before));
  EXPECT_THAT(log.recorded(), ElementsAre(inside, before));
}

TEST(CaptureLogTest, FirstRefusalIsKept) {
  CaptureLog log(Stream::kCompute);
  EXPECT_FALSE(log.refused());
  log.Refuse("copying out");
  log.Refuse("something later");
  EXPECT_TRUE(log.refused());
  EXPECT_EQ(log.refusal(), "copying out");
}

TEST(CaptureLogTest, ClassifiesCaptureErrors) {
  EXPECT_TRUE(IsCaptureError(cudaErrorStreamCaptureUnsupported));
  EXPECT_TRUE(IsCaptureError(cudaErrorStreamCaptureUnjoined));
  EXPECT_TRUE(IsCaptureError(cudaErrorCapturedEvent));
  EXPECT_FALSE(IsCaptureError(cudaSuccess));
  EXPECT_FALSE(IsCaptureError(cudaErrorIllegalAddress));
  EXPECT_FALSE(IsCaptureError(cudaErrorInvalidValue));
}

}  // namespace
}  // namespace cadre
