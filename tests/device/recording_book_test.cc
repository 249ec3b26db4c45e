// What is known of a recording, without a device.
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

TEST(RecordingBookTest, LanesJoinOnce) {
  CaptureLog book(Stream::kMoves);
  EXPECT_EQ(book.origin(), Stream::kMoves);
  EXPECT_FALSE(book.Join(Stream::kMoves));
  EXPECT_TRUE(book.joined(Stream::kMoves));
  EXPECT_FALSE(book.joined(Stream::kCopies));
  EXPECT_TRUE(book.Join(Stream::kCopies));
  EXPECT_FALSE(book.Join(Stream::kCopies));
  EXPECT_TRUE(book.joined(Stream::kCopies));
}

TEST(RecordingBookTest, EventsAreOfInsideOnceTheyAreRecorded) {
  CaptureLog book(Stream::kCompute);
  const auto before = MakeState();
  const auto inside = MakeState();
  EXPECT_FALSE(book.WaitInside(before));
  EXPECT_FALSE(book.WaitInside(before));
  book.RecordInside(inside);
  book.RecordInside(inside);
  EXPECT_TRUE(book.WaitInside(inside));
  EXPECT_THAT(book.awaited(), ElementsAre(before));
  EXPECT_THAT(book.recorded(), ElementsAre(inside));
  // Waited for first as what it was before, then recorded: both hold.
  book.RecordInside(before);
  EXPECT_TRUE(book.WaitInside(before));
  EXPECT_THAT(book.awaited(), ElementsAre(before));
  EXPECT_THAT(book.recorded(), ElementsAre(inside, before));
}

TEST(RecordingBookTest, TheFirstRefusalIsTold) {
  CaptureLog book(Stream::kCompute);
  EXPECT_FALSE(book.refused());
  book.Refuse("copying out");
  book.Refuse("something later");
  EXPECT_TRUE(book.refused());
  EXPECT_EQ(book.refusal(), "copying out");
}

TEST(RecordingBookTest, CaptureErrorsAreKnown) {
  EXPECT_TRUE(IsCaptureError(cudaErrorStreamCaptureUnsupported));
  EXPECT_TRUE(IsCaptureError(cudaErrorStreamCaptureUnjoined));
  EXPECT_TRUE(IsCaptureError(cudaErrorCapturedEvent));
  EXPECT_FALSE(IsCaptureError(cudaSuccess));
  EXPECT_FALSE(IsCaptureError(cudaErrorIllegalAddress));
  EXPECT_FALSE(IsCaptureError(cudaErrorInvalidValue));
}

}  // namespace
}  // namespace cadre
