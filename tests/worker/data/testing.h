// Shared by the tests of data sets: files of every format, written by the tests themselves.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/image.h"

namespace cadre::testing {

// A folder for the files of one test.
class DataFolder {
 public:
  // Writes a file, creates its parent folders, and returns its path.
  std::string Write(const std::string& name, absl::string_view bytes) const;
  std::string At(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

std::span<const std::byte> AsBytes(absl::string_view text);

// An IDX file of unsigned bytes.
std::string IdxBytes(const std::vector<uint32_t>& dims, absl::string_view elements);

// Records of CIFAR-10, numbered from `first_number`. Pixel (y, x) of channel c of record n is
// CifarPixel(n, c, y, x).
uint8_t CifarPixel(int64_t number, int64_t channel, int64_t y, int64_t x);
std::string CifarBytes(int64_t first_number, const std::vector<int>& labels);

// Builds a tar archive member by member.
class TarBuilder {
 public:
  // A member with its name in a ustar header. `type`: '0' is a file.
  TarBuilder& Add(absl::string_view name, absl::string_view contents, char type = '0');
  // A hard ('1') or symbolic ('2') link.
  TarBuilder& AddLink(absl::string_view name, absl::string_view target, char type);
  // A member after a pax header with these records.
  TarBuilder& AddPax(const std::vector<std::pair<std::string, std::string>>& records,
                     absl::string_view name, absl::string_view contents);
  // A member after a GNU entry with its name.
  TarBuilder& AddLongName(absl::string_view name, absl::string_view contents);
  // `with_end`: with the blocks that end an archive.
  std::string Bytes(bool with_end = true) const;

 private:
  std::string bytes_;
};
// Writes `text` at `offset` of a header block and corrects its checksum.
void SetTarField(std::string& bytes, size_t block, size_t offset, absl::string_view text);

struct JpegOptions {
  int quality = 95;
  bool progressive = false;
  // Color at half the resolution in both directions.
  bool subsampled = false;
  // Sampling factors, instead of `subsampled`: horizontal and vertical, of the first component and
  // of the others.
  std::array<int, 4> sampling = {};
  int restart_interval = 0;
  bool arithmetic = false;
};
// 1 channel: gray; 3: RGB; 4: CMYK.
std::string JpegBytes(const ImageView& image, const JpegOptions& options = {});

// An image that is smooth enough to survive compression.
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
// A color image all of whose bytes have one value.
std::string PlainJpeg(int64_t height, int64_t width, uint8_t value);

// A small model of images of this shape, or of sequences of `length` tokens; seed 11.
v1::RunSpec ImageSpec(int64_t height, int64_t width, int64_t channels, int64_t classes);
v1::RunSpec TokenSpec(int64_t length, int64_t vocabulary, int64_t classes);

struct Samples {
  std::vector<float> inputs;
  std::vector<int32_t> labels;
  friend bool operator==(const Samples&, const Samples&) = default;
};
// Reads samples; expects success, and that labels and inputs read alone are equal to those.
Samples Get(const Dataset& dataset, const std::vector<SampleRef>& samples);
Samples GetAll(const Dataset& dataset, int64_t epoch = 0);
// The status of reading one sample.
absl::Status TryGet(const Dataset& dataset, int64_t index);
// All samples of an epoch.
std::vector<SampleRef> AllOf(const Dataset& dataset, int64_t epoch = 0);

}  // namespace cadre::testing
