#include "tests/worker/data/testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
// jpeglib.h must follow <cstdio>.
#include <jpeglib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/substitute.h"

namespace cadre::testing {
namespace {

constexpr size_t kBlock = 512;

std::string Padded(absl::string_view contents) {
  std::string bytes(contents);
  bytes.resize((bytes.size() + kBlock - 1) / kBlock * kBlock, '\0');
  return bytes;
}

std::string TarHeader(absl::string_view name, size_t size, char type) {
  std::string block(kBlock, '\0');
  block.replace(0, std::min<size_t>(name.size(), 100), std::string(name.substr(0, 100)));
  block.replace(100, 7, "0000644");
  block.replace(124, 11, absl::StrFormat("%011o", size));
  block[156] = type;
  block.replace(257, 8, std::string("ustar\00000", 8));
  SetTarField(block, 0, 0, "");
  return block;
}

}  // namespace

std::string DataFolder::Write(const std::string& name, absl::string_view bytes) const {
  const std::filesystem::path path = At(name);
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  return path.string();
}

std::span<const std::byte> AsBytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string IdxBytes(const std::vector<uint32_t>& dims, absl::string_view elements) {
  std::string out = {'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(dim >> shift);
  }
  return absl::StrCat(out, elements);
}

uint8_t CifarPixel(int64_t number, int64_t channel, int64_t y, int64_t x) {
  return number * 31 + channel * 67 + y * 5 + x * 3;
}

std::string CifarBytes(int64_t first_number, const std::vector<int>& labels) {
  std::string bytes;
  for (size_t i = 0; i < labels.size(); ++i) {
    bytes.push_back(labels[i]);
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t at = 0; at < 32 * 32; ++at) {
        bytes.push_back(CifarPixel(first_number + i, c, at / 32, at % 32));
      }
    }
  }
  return bytes;
}

void SetTarField(std::string& bytes, size_t block, size_t offset, absl::string_view text) {
  const size_t begin = block * kBlock;
  bytes.replace(begin + offset, text.size(), std::string(text));
  bytes.replace(begin + 148, 8, "        ");
  unsigned sum = 0;
  for (size_t i = 0; i < kBlock; ++i) sum += std::to_integer<unsigned>(AsBytes(bytes)[begin + i]);
  bytes.replace(begin + 148, 7, absl::StrFormat("%06o", sum) + '\0');
}

TarBuilder& TarBuilder::Add(absl::string_view name, absl::string_view contents, char type) {
  bytes_ += TarHeader(name, contents.size(), type) + Padded(contents);
  return *this;
}

TarBuilder& TarBuilder::AddLink(absl::string_view name, absl::string_view target, char type) {
  std::string header = TarHeader(name, 0, type);
  SetTarField(header, 0, 157, target.substr(0, 100));
  bytes_ += header;
  return *this;
}

TarBuilder& TarBuilder::AddPax(const std::vector<std::pair<std::string, std::string>>& records,
                               absl::string_view name, absl::string_view contents) {
  std::string pax;
  for (const auto& [key, value] : records) {
    const std::string record = absl::StrCat(" ", key, "=", value, "\n");
    // The length counts its own digits.
    size_t length = record.size() + 1;
    while (absl::StrCat(length).size() + record.size() != length) ++length;
    absl::StrAppend(&pax, length, record);
  }
  return Add("PaxHeaders/x", pax, 'x').Add(name, contents);
}

TarBuilder& TarBuilder::AddLongName(absl::string_view name, absl::string_view contents) {
  return Add("././@LongLink", absl::StrCat(name, absl::string_view("\0", 1)), 'L')
      .Add(name, contents);
}

std::string TarBuilder::Bytes(bool with_end) const {
  return with_end ? bytes_ + std::string(2 * kBlock, '\0') : bytes_;
}

std::string JpegBytes(const ImageView& image, const JpegOptions& options) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = image.size.height;
  info.image_width = image.size.width;
  info.input_components = image.channels;
  info.in_color_space = image.channels == 1   ? JCS_GRAYSCALE
                        : image.channels == 3 ? JCS_RGB
                                              : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  for (int c = 0; c < info.num_components; ++c) {
    const int factor = options.subsampled && c == 0 ? 2 : 1;
    const auto sampling =
        options.sampling[0] > 0 ? options.sampling : std::array<int, 4>{factor, factor, 1, 1};
    info.comp_info[c].h_samp_factor = sampling[c == 0 ? 0 : 2];
    info.comp_info[c].v_samp_factor = sampling[c == 0 ? 1 : 3];
  }
  info.restart_interval = options.restart_interval;
  info.arith_code = options.arithmetic ? TRUE : FALSE;
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  const int64_t row_bytes = image.size.width * image.channels;
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<unsigned char*>(image.pixels.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const std::string out(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  return out;
}

TestImage::TestImage(int64_t height, int64_t width, int64_t depth, int number)
    : size{.height = height, .width = width}, channels(depth) {
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const double wave = std::sin(0.11 * x + number) + std::cos(0.07 * y + c);
        pixels.push_back(128 + 50 * wave);
      }
    }
  }
}

std::string PlainJpeg(int64_t height, int64_t width, uint8_t value) {
  TestImage image(height, width, 3);
  std::fill(image.pixels.begin(), image.pixels.end(), value);
  return JpegBytes(image.view());
}

v1::RunSpec ImageSpec(int64_t height, int64_t width, int64_t channels, int64_t classes) {
  return Parse<v1::RunSpec>(absl::Substitute(R"(
    model {
      input { height: $0 width: $1 channels: $2 }
      layer { name: "fc" fully_connected { out_features: $3 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    seed: 11)",
                                             height, width, channels, classes));
}

v1::RunSpec TokenSpec(int64_t length, int64_t vocabulary, int64_t classes) {
  return Parse<v1::RunSpec>(absl::Substitute(R"(
    model {
      tokens { length: $0 }
      layer { name: "embedding" embedding { vocabulary: $1 features: 4 } }
      layer { name: "fc" fully_connected { out_features: $2 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    seed: 11)",
                                             length, vocabulary, classes));
}

Samples Get(const Dataset& dataset, const std::vector<SampleRef>& samples) {
  Samples got{std::vector<float>(samples.size() * dataset.sample_shape().elements()),
              std::vector<int32_t>(samples.size() * dataset.labels_per_sample())};
  const absl::Status status = dataset.Get(samples, got.inputs, got.labels);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<int32_t> labels_alone(got.labels.size());
  EXPECT_TRUE(dataset.GetLabels(samples, labels_alone).ok());
  EXPECT_EQ(labels_alone, got.labels);
  std::vector<float> inputs_alone(got.inputs.size());
  EXPECT_TRUE(dataset.Get(samples, inputs_alone, {}).ok());
  EXPECT_EQ(inputs_alone, got.inputs);
  return got;
}

Samples GetAll(const Dataset& dataset, int64_t epoch) {
  return Get(dataset, AllOf(dataset, epoch));
}

absl::Status TryGet(const Dataset& dataset, int64_t index) {
  std::vector<float> inputs(dataset.sample_shape().elements());
  std::vector<int32_t> labels(dataset.labels_per_sample());
  return dataset.Get(std::vector<SampleRef>{{index}}, inputs, labels);
}

std::vector<SampleRef> AllOf(const Dataset& dataset, int64_t epoch) {
  std::vector<SampleRef> all;
  for (int64_t i = 0; i < dataset.size(); ++i) all.push_back({.index = i, .epoch = epoch});
  return all;
}

}  // namespace cadre::testing
