// JPEG files come back as they went in, as far as compression lets them; others are refused in
// time.
#include "worker/data/jpeg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<JpegImage> Read(const std::string& bytes, int channels, int eighths = 8) {
  JpegReader reader;
  const absl::StatusOr<ImageSize> size = reader.Open(AsBytes(bytes));
  if (!size.ok()) return size.status();
  JpegImage image;
  const absl::Status status = reader.Decode(channels, eighths, image);
  if (!status.ok()) return status;
  return image;
}

// The largest distance of a pixel from the original.
int Distance(const JpegImage& image, const TestImage& original) {
  EXPECT_EQ(image.size, original.size);
  EXPECT_EQ(image.channels, original.channels);
  int most = 0;
  for (size_t i = 0; i < original.pixels.size(); ++i) {
    most = std::max(most, std::abs(image.pixels[i] - original.pixels[i]));
  }
  return most;
}

TEST(JpegTest, RoundTripsInEveryForm) {
  for (const int64_t channels : {1, 3}) {
    for (const bool progressive : {false, true}) {
      for (const bool subsampled : {false, true}) {
        for (const int restart : {0, 2}) {
          const TestImage original(37, 53, channels);
          const std::string bytes = JpegBytes(
              original.view(),
              {.progressive = progressive, .subsampled = subsampled, .restart_interval = restart});
          const auto image = Read(bytes, static_cast<int>(channels));
          ASSERT_TRUE(image.ok()) << image.status();
          // The image is smooth: what is lost is quantisation at quality 95.
          EXPECT_LE(Distance(*image, original), 12);
        }
      }
    }
  }
}

TEST(JpegTest, GreyAndColourBecomeOneAnother) {
  const TestImage grey(16, 24, 1);
  const auto as_colour = Read(JpegBytes(grey.view()), 3);
  ASSERT_TRUE(as_colour.ok()) << as_colour.status();
  for (int64_t i = 0; i < 16 * 24 * 3; ++i) {
    ASSERT_NEAR(as_colour->pixels[i], grey.pixels[i / 3], 8);
  }
  TestImage colour(16, 24, 3);
  const auto as_grey = Read(JpegBytes(colour.view()), 1);
  ASSERT_TRUE(as_grey.ok()) << as_grey.status();
  EXPECT_EQ(as_grey->channels, 1);
  for (int64_t i = 0; i < 16 * 24; ++i) {
    const auto at = static_cast<size_t>(3 * i);
    const double luminance =
        0.299 * colour.pixels[at] + 0.587 * colour.pixels[at + 1] + 0.114 * colour.pixels[at + 2];
    ASSERT_NEAR(as_grey->pixels[i], luminance, 8);
  }
}

TEST(JpegTest, ScalesByEighths) {
  const TestImage original(64, 100, 3);
  const std::string bytes = JpegBytes(original.view());
  for (const int eighths : {1, 2, 4, 8}) {
    const auto image = Read(bytes, 3, eighths);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->size, (ImageSize{8 * eighths, (100 * eighths + 7) / 8}));
    // A pixel of the small image is about the middle of those it stands for.
    const int64_t step = 8 / eighths;
    for (int64_t y = 0; y < image->size.height; ++y) {
      for (int64_t x = 0; x < 96 / step; ++x) {
        const auto at = static_cast<size_t>((y * image->size.width + x) * 3);
        ASSERT_NEAR(image->pixels[at], original.at(y * step + step / 2, x * step + step / 2, 0),
                    20);
      }
    }
  }
}

TEST(JpegTest, OneReaderReadsManyFiles) {
  JpegReader reader;
  JpegImage image;
  const std::string good = JpegBytes(TestImage(40, 40, 3).view());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.Open(AsBytes(good)).ok());
    EXPECT_FALSE(reader.Open(AsBytes("rubbish")).ok());
    ASSERT_TRUE(reader.Open(AsBytes(good)).ok());
    ASSERT_TRUE(reader.Decode(3, 8, image).ok());
    const std::string cut = good.substr(0, good.size() - 60);
    ASSERT_TRUE(reader.Open(AsBytes(cut)).ok());
    EXPECT_FALSE(reader.Decode(3, 8, image).ok());
  }
}

// Wherever the file is cut off: in its header, or in its data. Only what is behind the last block
// of data may be missing.
TEST(JpegTest, FilesCutShortAreDataLoss) {
  for (const bool progressive : {false, true}) {
    const std::string whole = JpegBytes(TestImage(40, 40, 3).view(), {.progressive = progressive});
    for (size_t size = 0; size + 3 < whole.size(); size += 7) {
      const auto image = Read(whole.substr(0, size), 3);
      ASSERT_EQ(image.status().code(), absl::StatusCode::kDataLoss) << size << image.status();
    }
  }
}

TEST(JpegTest, RefusesWhatIsNotRead) {
  EXPECT_EQ(Read("", 3).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(std::string(1000, 'x'), 3).status().code(), absl::StatusCode::kDataLoss);
  const auto cmyk = Read(JpegBytes(TestImage(8, 8, 4).view()), 3);
  EXPECT_EQ(cmyk.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cmyk.status().message()), HasSubstr("4 colour components"));
  const auto arithmetic = Read(JpegBytes(TestImage(8, 8, 3).view(), {.arithmetic = true}), 3);
  EXPECT_EQ(arithmetic.status().code(), absl::StatusCode::kInvalidArgument);
}

// The frame header's height and width, high byte first, follow its marker, length and precision.
std::string WithSize(std::string bytes, int height, int width) {
  const size_t frame = bytes.find("\xff\xc0");
  EXPECT_NE(frame, std::string::npos);
  for (const auto& [at, value] : {std::pair{frame + 5, height}, {frame + 7, width}}) {
    bytes[at] = static_cast<char>(value >> 8);
    bytes[at + 1] = static_cast<char>(value);
  }
  return bytes;
}

TEST(JpegTest, RefusesClaimsThatCannotBeTrue) {
  const std::string small = JpegBytes(TestImage(16, 16, 3).view());
  const auto huge = Read(WithSize(small, 65000, 65000), 3);
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("65000 x 65000"));
  const auto large = Read(WithSize(small, 8000, 8000), 3);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(large.status().message()), HasSubstr("cannot hold"));
  EXPECT_EQ(Read(WithSize(small, 0, 16), 3).status().code(), absl::StatusCode::kDataLoss);
}

// The end of the file is repeated scans of a progressive image: few bytes, much work.
TEST(JpegTest, RefusesEndlessScans) {
  const std::string whole = JpegBytes(TestImage(64, 64, 1).view(), {.progressive = true});
  const size_t last_scan = whole.rfind("\xff\xda");
  ASSERT_NE(last_scan, std::string::npos);
  const std::string scan = whole.substr(last_scan, whole.size() - 2 - last_scan);
  std::string many = whole.substr(0, whole.size() - 2);
  for (int i = 0; i < 300; ++i) many += scan;
  many += whole.substr(whole.size() - 2);
  EXPECT_TRUE(Read(whole, 1).ok());
  EXPECT_EQ(Read(many, 1).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cadre::testing
