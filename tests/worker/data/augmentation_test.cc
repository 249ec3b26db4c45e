// Crops lie inside the image and have the specified distribution; resampling is compared with known
// results.
#include "worker/data/augmentation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/worker/data/testing.h"

namespace cadre::testing {
namespace {

ImageTransform Transform(const v1::Augmentation& augmentation, const Shape& shape,
                         Split split = Split::kTrain, uint64_t seed = 5) {
  auto transform = ImageTransform::Make(augmentation, shape, split, seed);
  EXPECT_TRUE(transform.ok()) << transform.status();
  return std::move(transform).value();
}

std::vector<float> Apply(const ImageTransform& transform, const TestImage& image,
                         const Crop& crop) {
  std::vector<float> out(transform.sample_shape().elements());
  transform.Apply(image.view(), image.size, crop, out);
  return out;
}

v1::Augmentation Crops() {
  v1::Augmentation augmentation;
  augmentation.set_random_resized_crop(true);
  return augmentation;
}

TEST(AugmentationTest, RandomCropsHaveSpecifiedAreaAndAspect) {
  const ImageTransform transform = Transform(Crops(), {224, 224, 3});
  for (const ImageSize size : {ImageSize{375, 500}, ImageSize{500, 375}, ImageSize{64, 64}}) {
    double mean_area = 0;
    constexpr int kSamples = 3000;
    for (int i = 0; i < kSamples; ++i) {
      const ImageRect rect = transform.ChooseCrop(size, {.index = i, .epoch = 2}).rect;
      ASSERT_GE(rect.top, 0);
      ASSERT_GE(rect.left, 0);
      ASSERT_LE(rect.top + rect.height, size.height);
      ASSERT_LE(rect.left + rect.width, size.width);
      const double share = rect.height * rect.width / (size.height * size.width);
      // Sides are rounded to whole pixels, up to 3 % of the smallest side, 18.
      ASSERT_GE(share, 0.08 * 0.94);
      ASSERT_LE(share, 1.0);
      ASSERT_GE(rect.width / rect.height, 0.75 * 0.94);
      ASSERT_LE(rect.width / rect.height, 4.0 / 3 * 1.06);
      mean_area += share / kSamples;
    }
    // A uniform distribution on [0.08, 1] would have mean 0.54; large crops that do not fit are
    // drawn again.
    EXPECT_GT(mean_area, 0.4);
    EXPECT_LT(mean_area, 0.56);
  }
}

TEST(AugmentationTest, RandomCropsAreCenteredOnAverage) {
  const ImageTransform transform = Transform(Crops(), {32, 32, 3});
  double top = 0;
  double left = 0;
  constexpr int kSamples = 4000;
  for (int i = 0; i < kSamples; ++i) {
    const ImageRect rect = transform.ChooseCrop({100, 200}, {.index = i}).rect;
    top += (rect.top + rect.height / 2) / kSamples;
    left += (rect.left + rect.width / 2) / kSamples;
  }
  // The standard deviation of a center is below a third of the side, so the standard deviation of
  // the mean of 4000 centers is below half a percent.
  EXPECT_NEAR(top, 50, 1.5);
  EXPECT_NEAR(left, 100, 3);
}

TEST(AugmentationTest, CropsOfLongAndTinyImagesLieInside) {
  const ImageTransform transform = Transform(Crops(), {32, 32, 3});
  for (const ImageSize size :
       {ImageSize{1, 1}, ImageSize{1, 5000}, ImageSize{5000, 1}, ImageSize{10, 1000}}) {
    for (int i = 0; i < 50; ++i) {
      const ImageRect rect = transform.ChooseCrop(size, {.index = i}).rect;
      ASSERT_GE(rect.top, 0);
      ASSERT_GE(rect.left, 0);
      ASSERT_GE(rect.height, 1);
      ASSERT_GE(rect.width, 1);
      ASSERT_LE(rect.top + rect.height, size.height);
      ASSERT_LE(rect.left + rect.width, size.width);
    }
  }
}

TEST(AugmentationTest, HalfOfSamplesAreMirrored) {
  v1::Augmentation augmentation;
  augmentation.set_flip(true);
  const ImageTransform transform = Transform(augmentation, {8, 8, 3});
  int mirrored = 0;
  int changed = 0;
  for (int i = 0; i < 4000; ++i) {
    const bool now = transform.ChooseCrop({8, 8}, {.index = i, .epoch = 0}).mirrored;
    const bool then = transform.ChooseCrop({8, 8}, {.index = i, .epoch = 1}).mirrored;
    mirrored += now;
    changed += now != then;
  }
  // The standard deviation is 32.
  EXPECT_NEAR(mirrored, 2000, 160);
  EXPECT_NEAR(changed, 2000, 160);
}

TEST(AugmentationTest, CropPaddingShiftsUniformly) {
  v1::Augmentation augmentation;
  augmentation.set_crop_padding(4);
  const ImageTransform transform = Transform(augmentation, {32, 32, 3});
  std::map<int64_t, int> by_y;
  std::map<int64_t, int> by_x;
  for (int i = 0; i < 9000; ++i) {
    const Crop crop = transform.ChooseCrop({32, 32}, {.index = i});
    ++by_y[crop.shift_y];
    ++by_x[crop.shift_x];
  }
  for (const auto* counts : {&by_y, &by_x}) {
    EXPECT_EQ(counts->size(), 9U);
    EXPECT_EQ(counts->begin()->first, -4);
    EXPECT_EQ(counts->rbegin()->first, 4);
    // The standard deviation is 30.
    for (const auto& [shift, count] : *counts) EXPECT_NEAR(count, 1000, 150) << shift;
  }
}

TEST(AugmentationTest, CropDependsOnSeedEpochAndSample) {
  const ImageTransform transform = Transform(Crops(), {32, 32, 3});
  const ImageTransform other = Transform(Crops(), {32, 32, 3}, Split::kTrain, 6);
  const ImageSize size{300, 400};
  const ImageRect rect = transform.ChooseCrop(size, {.index = 9, .epoch = 4}).rect;
  EXPECT_EQ(transform.ChooseCrop(size, {.index = 9, .epoch = 4}).rect, rect);
  EXPECT_FALSE(transform.ChooseCrop(size, {.index = 9, .epoch = 5}).rect == rect);
  EXPECT_FALSE(transform.ChooseCrop(size, {.index = 10, .epoch = 4}).rect == rect);
  EXPECT_FALSE(other.ChooseCrop(size, {.index = 9, .epoch = 4}).rect == rect);
}

TEST(AugmentationTest, TestImagesAreCenterCropped) {
  v1::Augmentation augmentation = Crops();
  augmentation.set_flip(true);
  const ImageTransform transform = Transform(augmentation, {224, 224, 3}, Split::kTest);
  for (int i = 0; i < 20; ++i) {
    const Crop crop = transform.ChooseCrop({512, 1024}, {.index = i});
    // The shorter side is scaled to 256, so 224 output pixels are 448 pixels of the image.
    EXPECT_EQ(crop.rect, (ImageRect{32, 288, 448, 448}));
    EXPECT_FALSE(crop.mirrored);
  }
  EXPECT_EQ(transform.ChooseCrop({224, 224}, {}).rect, (ImageRect{0, 0, 224, 224}));
}

TEST(AugmentationTest, ImageOfInputSizeIsNotResized) {
  const ImageTransform transform = Transform({}, {9, 12, 3});
  const TestImage image(9, 12, 3);
  const std::vector<float> out = Apply(transform, image, transform.ChooseCrop(image.size, {}));
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], image.pixels[i] * (1.0F / 255.0F));
  }
}

TEST(AugmentationTest, ShiftsAndMirrors) {
  const ImageTransform transform = Transform({}, {4, 5, 3});
  const TestImage image(4, 5, 3);
  for (const bool mirrored : {false, true}) {
    for (const int64_t shift_y : {-9, -4, -1, 0, 3}) {
      for (const int64_t shift_x : {-5, -2, 0, 1, 11}) {
        const std::vector<float> out = Apply(
            transform, image,
            {.rect = {0, 0, 4, 5}, .shift_y = shift_y, .shift_x = shift_x, .mirrored = mirrored});
        for (int64_t y = 0; y < 4; ++y) {
          for (int64_t x = 0; x < 5; ++x) {
            const int64_t from_y = y + shift_y;
            const int64_t from_x = (mirrored ? 4 - x : x) + shift_x;
            const bool inside = from_y >= 0 && from_y < 4 && from_x >= 0 && from_x < 5;
            for (int64_t c = 0; c < 3; ++c) {
              const float expected = inside ? image.at(from_y, from_x, c) * (1.0F / 255.0F) : 0.0F;
              ASSERT_EQ(out[(y * 5 + x) * 3 + c], expected)
                  << y << " " << x << " " << shift_y << " " << shift_x << " " << mirrored;
            }
          }
        }
      }
    }
  }
}

// Bilinear interpolation is exact for linear functions of the coordinates.
TEST(AugmentationTest, ResizingIsExactForLinearImages) {
  TestImage image(40, 50, 1);
  for (int64_t i = 0; i < 40 * 50; ++i) {
    image.pixels[i] = 2 * (i / 50) + 3 * (i % 50);
  }
  const ImageTransform transform = Transform({}, {16, 32, 1});
  const ImageRect rect{.top = 3, .left = 7, .height = 30, .width = 25};
  const std::vector<float> out = Apply(transform, image, {.rect = rect});
  for (int64_t y = 0; y < 16; ++y) {
    for (int64_t x = 0; x < 32; ++x) {
      const double at_y = 3 + (y + 0.5) * 30 / 16 - 0.5;
      const double at_x = 7 + (x + 0.5) * 25 / 32 - 0.5;
      ASSERT_NEAR(out[y * 32 + x] * 255, 2 * at_y + 3 * at_x, 1e-3);
    }
  }
}

// The crop refers to the full image; a scaled-down image gives nearly the same sample.
TEST(AugmentationTest, CropAppliesToScaledImage) {
  const TestImage whole(80, 120, 3);
  TestImage half(40, 60, 3);
  for (int64_t y = 0; y < 40; ++y) {
    for (int64_t x = 0; x < 60; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const int sum = whole.at(2 * y, 2 * x, c) + whole.at(2 * y, 2 * x + 1, c) +
                        whole.at(2 * y + 1, 2 * x, c) + whole.at(2 * y + 1, 2 * x + 1, c);
        half.pixels[(y * 60 + x) * 3 + c] = sum / 4;
      }
    }
  }
  const ImageTransform transform = Transform({}, {20, 20, 3});
  const Crop crop{.rect = {.top = 10, .left = 33, .height = 44, .width = 51}};
  const std::vector<float> expected = Apply(transform, whole, crop);
  std::vector<float> out(expected.size());
  transform.Apply(half.view(), whole.size, crop, out);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 3.0F / 255);
}

TEST(AugmentationTest, RejectsInvalidSpecs) {
  const auto expect_bad = [](const v1::Augmentation& augmentation, const Shape& shape,
                             const std::string& what) {
    const auto transform = ImageTransform::Make(augmentation, shape, Split::kTrain, 1);
    EXPECT_THAT(transform, IsError(kInvalidArgument, what));
  };
  v1::Augmentation augmentation;
  expect_bad(augmentation, {8, 8, 2}, "1 or 3 channels");
  expect_bad(augmentation, {8}, "1 or 3 channels");
  augmentation.add_mean(0.5F);
  expect_bad(augmentation, {8, 8, 3}, "augmentation.mean has 1");
  augmentation.clear_mean();
  for (const float stddev : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    augmentation.clear_stddev();
    augmentation.add_stddev(stddev);
    expect_bad(augmentation, {8, 8, 1}, "stddev");
  }
  augmentation = Crops();
  augmentation.set_crop_padding(2);
  expect_bad(augmentation, {8, 8, 3}, "cannot be combined");
}

}  // namespace
}  // namespace cadre::testing
