// What the tests of data sets share: files of every format, written by the tests themselves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/image.h"

namespace cadre::testing {

// A folder for one test, removed with all it holds.
class DataFolder {
 public:
  DataFolder();
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;
  ~DataFolder();

  // Writes a file, in folders that it makes, and returns its path.
  std::string Write(const std::string& name, absl::string_view bytes) const;
  std::string At(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::span<const std::byte> AsBytes(absl::string_view text);

// An IDX file of unsigned bytes.
std::string IdxBytes(const std::vector<uint32_t>& dims, absl::string_view elements);

// Records of CIFAR-10. Pixel (y, x) of channel c of a record with number n is CifarPixel(n, c, y,
// x).
uint8_t CifarPixel(int64_t number, int64_t channel, int64_t y, int64_t x);
std::string CifarBytes(int64_t first_number, const std::vector<int>& labels);

// Tar archives, entry by entry.
class TarBuilder {
 public:
  // A member of type `type` ('0': a file), with the name in a header of ustar.
  TarBuilder& Add(absl::string_view name, absl::string_view contents, char type = '0');
  // The same with a pax header of its own before it.
  TarBuilder& AddPax(const std::vector<std::pair<std::string, std::string>>& records,
                     absl::string_view name, absl::string_view contents);
  // The same with a GNU entry for its name before it.
  TarBuilder& AddLongName(absl::string_view name, absl::string_view contents);
  // With the end of the archive, unless told otherwise.
  std::string Bytes(bool with_end = true) const;

 private:
  std::string bytes_;
};
// Of a header block: writes `text` at `offset` and makes the checksum right.
void SetTarField(std::string& bytes, size_t block, size_t offset, absl::string_view text);

struct JpegOptions {
  int quality = 95;
  bool progressive = false;
  // Colour at half the resolution both ways.
  bool subsampled = false;
  int restart_interval = 0;
  bool arithmetic = false;
};
// 1 channel: grey; 3: RGB; 4: CMYK.
std::string JpegBytes(const ImageView& image, const JpegOptions& options = {});

// An image that changes slowly enough to survive compression.
struct TestImage {
  TestImage(int64_t height, int64_t width, int64_t channels, int number = 0);

  ImageView view() const { return {.pixels = pixels, .size = size, .channels = channels}; }
  uint8_t at(int64_t y, int64_t x, int64_t c) const {
    return pixels[(y * size.width + x) * channels + c];
  }

  ImageSize size;
  int64_t channels;
  std::vector<uint8_t> pixels;
};
// An image of one value.
std::string PlainJpeg(int64_t height, int64_t width, uint8_t value);

// A small model of images of this shape, or of sequences of `length` tokens; seed 11.
v1::RunSpec ImageSpec(int64_t height, int64_t width, int64_t channels, int64_t classes);
v1::RunSpec TokenSpec(int64_t length, int64_t vocabulary, int64_t classes);

struct Samples {
  std::vector<float> inputs;
  std::vector<int32_t> labels;
  friend bool operator==(const Samples&, const Samples&) = default;
};
// Fails the test unless the samples come, and their labels alone are the same.
Samples Get(const Dataset& dataset, const std::vector<SampleRef>& samples);
Samples GetAll(const Dataset& dataset, int64_t epoch = 0);
// All samples of an epoch.
std::vector<SampleRef> AllOf(const Dataset& dataset, int64_t epoch = 0);

}  // namespace cadre::testing
