// JPEG files are decoded up to compression errors; malformed files are rejected in bounded time.
#include "worker/data/jpeg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
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

// The elements of a part, and of two pixels around it, that differ from those of the whole image.
int64_t PixelsThatDiffer(const JpegImage& image, const JpegImage& whole, const ImageRect& part,
                         int eighths) {
  if (image.size != whole.size || image.pixels.size() != whole.pixels.size()) return -1;
  const double scale = eighths / 8.0;
  const auto begin = [&](double at) {
    return std::max<int64_t>(0, static_cast<int64_t>(std::floor(at * scale)) - 2);
  };
  const auto end = [&](double at, int64_t extent) {
    return std::min<int64_t>(extent, static_cast<int64_t>(std::ceil(at * scale)) + 2);
  };
  int64_t differ = 0;
  for (int64_t y = begin(part.top); y < end(part.top + part.height, image.size.height); ++y) {
    const int64_t from = (y * image.size.width + begin(part.left)) * image.channels;
    const int64_t to =
        (y * image.size.width + end(part.left + part.width, image.size.width)) * image.channels;
    for (int64_t at = from; at < to; ++at) differ += image.pixels[at] != whole.pixels[at] ? 1 : 0;
  }
  return differ;
}

// A part, and two pixels around it, have the values of the whole image.
TEST(JpegTest, PartsEqualTheWholeImage) {
  uint64_t draws = 0;
  const auto below = [&](uint64_t n) {
    return static_cast<int64_t>(RandomBits(1, RandomStream::kTest, 0, draws++) % n);
  };
  for (int i = 0; i < 400; ++i) {
    const int64_t channels = i % 5 == 0 ? 1 : 3;
    TestImage original(17 + below(150), 17 + below(150), channels);
    for (uint8_t& pixel : original.pixels) pixel ^= below(64);
    const std::string bytes = JpegBytes(
        original.view(), {.quality = 80, .progressive = i % 2 == 0, .subsampled = i % 3 > 0});
    const int eighths = 1 << (i % 4);
    const absl::StatusOr<JpegImage> whole = Read(bytes, channels, eighths);
    ASSERT_TRUE(whole.ok()) << whole.status();
    const ImageSize& full = original.size;
    ImageRect part = {.height = 1.0 + below(full.height), .width = 1.0 + below(full.width)};
    part.top = below(full.height - static_cast<int64_t>(part.height) + 1);
    part.left = below(full.width - static_cast<int64_t>(part.width) + 1);
    JpegReader reader;
    ASSERT_TRUE(reader.Open(AsBytes(bytes)).ok());
    JpegImage image;
    ASSERT_EQ(reader.Decode(channels, eighths, image, &part), absl::OkStatus());
    ASSERT_EQ(image.size, whole->size);
    ASSERT_EQ(PixelsThatDiffer(image, *whole, part, eighths), 0) << "image " << i;
  }
}

// Positions at the limits of one side: its ends, one pixel, and around the borders of blocks.
std::vector<std::pair<int64_t, int64_t>> SpansOf(int64_t extent) {
  std::vector<std::pair<int64_t, int64_t>> spans;  // begin, size
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17},
                              extent / 2, extent - 9, extent - 1}) {
    for (const int64_t size : {int64_t{1}, int64_t{8}, extent - begin}) {
      if (begin >= 0 && size > 0 && begin + size <= extent) spans.emplace_back(begin, size);
    }
  }
  std::sort(spans.begin(), spans.end());
  spans.erase(std::unique(spans.begin(), spans.end()), spans.end());
  return spans;
}

// What libjpeg-turbo leaves out depends on the sampling of the components, the scale, and the
// position of the part relative to blocks and to the ends of the image.
struct Sampling {
  const char* name;
  std::array<int, 4> factors;
};

class JpegPartsTest : public ::testing::TestWithParam<Sampling> {};

TEST_P(JpegPartsTest, EqualTheWholeImageAtItsLimits) {
  const ImageSize sizes[] = {{1, 1}, {1, 37}, {37, 1}, {9, 16}, {33, 33}, {31, 67}, {67, 31}};
  uint64_t draws = 0;
  for (const ImageSize& size : sizes) {
    TestImage original(size.height, size.width, 3);
    for (uint8_t& pixel : original.pixels) {
      pixel ^= RandomBits(1, RandomStream::kTest, 1, draws++) % 128;
    }
    for (const bool progressive : {false, true}) {
      const std::string bytes =
          JpegBytes(original.view(),
                    {.quality = 80, .progressive = progressive, .sampling = GetParam().factors});
      for (const int eighths : {1, 2, 4, 8}) {
        for (const int channels : {1, 3}) {
          const auto whole = Read(bytes, channels, eighths);
          ASSERT_TRUE(whole.ok()) << whole.status();
          JpegReader reader;
          for (const auto& [top, height] : SpansOf(size.height)) {
            // Every span of the one side, with some of the other.
            const auto spans = SpansOf(size.width);
            for (size_t s = draws++ % 4; s < spans.size(); s += 4) {
              const ImageRect part = {.top = 1.0 * top,
                                      .left = 1.0 * spans[s].first,
                                      .height = 1.0 * height,
                                      .width = 1.0 * spans[s].second};
              ASSERT_TRUE(reader.Open(AsBytes(bytes)).ok());
              JpegImage image;
              ASSERT_EQ(reader.Decode(channels, eighths, image, &part), absl::OkStatus());
              EXPECT_EQ(PixelsThatDiffer(image, *whole, part, eighths), 0)
                  << size.height << " x " << size.width << ", " << eighths << "/8, " << channels
                  << " channels, rows " << top << " + " << height << ", columns " << spans[s].first
                  << " + " << spans[s].second;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, JpegPartsTest,
    ::testing::Values(Sampling{"S444", {1, 1, 1, 1}}, Sampling{"S422", {2, 1, 1, 1}},
                      Sampling{"S440", {1, 2, 1, 1}}, Sampling{"S420", {2, 2, 1, 1}},
                      Sampling{"S411", {4, 1, 1, 1}}, Sampling{"S441", {1, 4, 1, 1}},
                      Sampling{"S410", {4, 2, 1, 1}}, Sampling{"S2x4", {2, 4, 1, 1}},
                      Sampling{"S3x1", {3, 1, 1, 1}}, Sampling{"S1x3", {1, 3, 1, 1}},
                      Sampling{"S2x3", {2, 3, 1, 1}}, Sampling{"ColorWider", {1, 1, 2, 1}},
                      Sampling{"ColorHigher", {1, 1, 1, 2}},
                      Sampling{"BrightnessWiderColorHigher", {2, 1, 1, 2}},
                      Sampling{"S420AsMultiples", {2, 2, 2, 1}},
                      Sampling{"S422AsMultiples", {2, 2, 1, 2}},
                      Sampling{"ColorFiner", {1, 1, 2, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

// Damage below a part is not read.
TEST(JpegTest, DamageOfAPartIsDataLoss) {
  const std::string bytes = JpegBytes(TestImage(200, 40, 3).view());
  const std::string cut = bytes.substr(0, bytes.size() / 2);
  const auto status = [&](double top) {
    JpegReader reader;
    EXPECT_TRUE(reader.Open(AsBytes(cut)).ok());
    JpegImage image;
    const ImageRect part = {.top = top, .height = 20, .width = 40};
    return reader.Decode(3, 8, image, &part).code();
  };
  EXPECT_EQ(status(0), absl::StatusCode::kOk);
  EXPECT_EQ(status(180), absl::StatusCode::kDataLoss);
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

// The result does not depend on the images before.
TEST(JpegTest, TablesOfEarlierImagesAreNotUsed) {
  const std::string good = JpegBytes(TestImage(40, 40, 3).view());
  std::string without_tables = good;
  // The markers of quantization tables become comments.
  for (size_t at = 0; (at = without_tables.find("\xff\xdb", at)) != std::string::npos;) {
    without_tables[at + 1] = '\xfe';
  }
  ASSERT_NE(without_tables, good);
  JpegReader reader;
  JpegImage image;
  ASSERT_TRUE(reader.Open(AsBytes(good)).ok());
  ASSERT_TRUE(reader.Decode(3, 8, image).ok());
  ASSERT_TRUE(reader.Open(AsBytes(without_tables)).ok());
  EXPECT_EQ(reader.Decode(3, 8, image).code(), absl::StatusCode::kDataLoss);
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
