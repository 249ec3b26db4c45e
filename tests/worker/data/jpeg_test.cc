// JPEG files are decoded up to compression errors; malformed files are rejected in bounded time.
#include "worker/data/jpeg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"

namespace cadre::testing {
namespace {

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
  int largest = 0;
  for (size_t i = 0; i < original.pixels.size(); ++i) {
    largest = std::max(largest, std::abs(image.pixels[i] - original.pixels[i]));
  }
  return largest;
}

TEST(JpegTest, DecodesEveryEncoding) {
  for (const int64_t channels : {1, 3}) {
    for (const bool progressive : {false, true}) {
      for (const bool subsampled : {false, true}) {
        for (const int restart : {0, 2}) {
          const TestImage original(37, 53, channels);
          const std::string bytes = JpegBytes(
              original.view(),
              {.progressive = progressive, .subsampled = subsampled, .restart_interval = restart});
          const auto image = Read(bytes, channels);
          ASSERT_TRUE(image.ok()) << image.status();
          // The image is smooth, so the error is only the error of quantization at quality 95.
          EXPECT_LE(Distance(*image, original), 12);
        }
      }
    }
  }
}

TEST(JpegTest, ConvertsBetweenGrayAndColor) {
  const TestImage gray(16, 24, 1);
  const auto as_color = Read(JpegBytes(gray.view()), 3);
  ASSERT_TRUE(as_color.ok()) << as_color.status();
  for (int64_t i = 0; i < 16 * 24 * 3; ++i) {
    ASSERT_NEAR(as_color->pixels[i], gray.pixels[i / 3], 8);
  }
  TestImage color(16, 24, 3);
  const auto as_gray = Read(JpegBytes(color.view()), 1);
  ASSERT_TRUE(as_gray.ok()) << as_gray.status();
  EXPECT_EQ(as_gray->channels, 1);
  for (int64_t i = 0; i < 16 * 24; ++i) {
    const int64_t at = 3 * i;
    const double luminance =
        0.299 * color.pixels[at] + 0.587 * color.pixels[at + 1] + 0.114 * color.pixels[at + 2];
    ASSERT_NEAR(as_gray->pixels[i], luminance, 8);
  }
}

TEST(JpegTest, ScalesByEighths) {
  const TestImage original(64, 100, 3);
  const std::string bytes = JpegBytes(original.view());
  for (const int eighths : {1, 2, 4, 8}) {
    const auto image = Read(bytes, 3, eighths);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->size, (ImageSize{8 * eighths, (100 * eighths + 7) / 8}));
    // A pixel of the small image is close to the center of the pixels that it covers.
    const int64_t step = 8 / eighths;
    for (int64_t y = 0; y < image->size.height; ++y) {
      for (int64_t x = 0; x < 96 / step; ++x) {
        const int64_t at = (y * image->size.width + x) * 3;
        ASSERT_NEAR(image->pixels[at], original.at(y * step + step / 2, x * step + step / 2, 0),
                    20);
      }
    }
  }
}

TEST(JpegTest, ReaderIsReusable) {
  JpegReader reader;
  JpegImage image;
  const std::string good = JpegBytes(TestImage(40, 40, 3).view());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.Open(AsBytes(good)).ok());
    EXPECT_FALSE(reader.Open(AsBytes("not a JPEG")).ok());
    ASSERT_TRUE(reader.Open(AsBytes(good)).ok());
    ASSERT_TRUE(reader.Decode(3, 8, image).ok());
    const std::string cut = good.substr(0, good.size() - 60);
    ASSERT_TRUE(reader.Open(AsBytes(cut)).ok());
    EXPECT_FALSE(reader.Decode(3, 8, image).ok());
  }
}

// Truncates the file in the header or in the data. Only bytes after the last data may be missing.
TEST(JpegTest, TruncatedFilesAreDataLoss) {
  for (const bool progressive : {false, true}) {
    const std::string whole = JpegBytes(TestImage(40, 40, 3).view(), {.progressive = progressive});
    for (size_t size = 0; size + 3 < whole.size(); size += 7) {
      const auto image = Read(whole.substr(0, size), 3);
      ASSERT_EQ(image.status().code(), absl::StatusCode::kDataLoss) << size << image.status();
    }
  }
}

TEST(JpegTest, RejectsUnsupportedFiles) {
  EXPECT_EQ(Read("", 3).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(std::string(1000, 'x'), 3).status().code(), absl::StatusCode::kDataLoss);
  const auto cmyk = Read(JpegBytes(TestImage(8, 8, 4).view()), 3);
  EXPECT_THAT(cmyk, IsError(kInvalidArgument, "4 color components"));
  const auto arithmetic = Read(JpegBytes(TestImage(8, 8, 3).view(), {.arithmetic = true}), 3);
  EXPECT_EQ(arithmetic.status().code(), absl::StatusCode::kInvalidArgument);
}

// Changes the size in the frame header: height and width, high byte first, follow its marker,
// length and precision.
std::string WithSize(std::string bytes, int height, int width) {
  const size_t frame = bytes.find("\xff\xc0");
  EXPECT_NE(frame, std::string::npos);
  for (const auto& [at, value] : {std::pair{frame + 5, height}, {frame + 7, width}}) {
    bytes[at] = value >> 8;
    bytes[at + 1] = value;
  }
  return bytes;
}

TEST(JpegTest, RejectsImpossibleSizes) {
  const std::string small = JpegBytes(TestImage(16, 16, 3).view());
  const auto huge = Read(WithSize(small, 65000, 65000), 3);
  EXPECT_THAT(huge, IsError(kInvalidArgument, "65000 x 65000"));
  const auto large = Read(WithSize(small, 8000, 8000), 3);
  EXPECT_THAT(large, IsError(kDataLoss, "cannot contain"));
  EXPECT_EQ(Read(WithSize(small, 0, 16), 3).status().code(), absl::StatusCode::kDataLoss);
}

// The file ends with repeated scans of a progressive image, which need few bytes and much work.
TEST(JpegTest, RejectsTooManyScans) {
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
