#include "model/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<NamedShape> kTensors = {
    {"conv/weight", Shape({2, 3})}, {"empty", Shape({0})}, {"conv/bias", Shape({5})}};

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string Bytes(const std::string& json, const std::string& data) {
  return Raw<uint64_t>({json.size()}) + json + data;
}

// Writes these bytes to a file in a temporary folder and opens it. The folder is removed on return.
absl::StatusOr<SafetensorsFile> OpenBytes(const std::string& bytes) {
  const TemporaryFolder folder;
  return SafetensorsFile::Open(folder.Write("bytes", bytes));
}

std::vector<float> Counting(int n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

// Writes 1, 2, ..., 11 in appends of `step` elements.
void WriteCounting(const std::string& path, size_t step) {
  auto writer = SafetensorsWriter::Create(path, kTensors, {{"format", "cadre"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<float> values = Counting(11);
  for (size_t i = 0; i < values.size(); i += step) {
    ASSERT_TRUE(
        writer->Append(std::span(values).subspan(i, std::min(step, values.size() - i))).ok());
  }
  ASSERT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->Finish().ok());
}

TEST(Safetensors, WritesAndReads) {
  const TemporaryFolder folder;
  for (const size_t step : {1, 4, 11}) {
    const std::string path = folder / absl::StrCat(step);
    WriteCounting(path, step);
    auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->metadata().at("format"), "cadre");
    ASSERT_EQ(file->tensors().size(), 3U);
    const StoredTensor* weight = file->Find("conv/weight");
    const StoredTensor* bias = file->Find("conv/bias");
    ASSERT_TRUE(weight != nullptr && bias != nullptr);
    EXPECT_EQ(file->Find("conv"), nullptr);
    EXPECT_EQ(weight->shape, Shape({2, 3}));
    std::vector<float> values(6);
    ASSERT_TRUE(file->Read(*weight, 0, values).ok());
    EXPECT_EQ(values, Counting(6));
    // Every part of a tensor.
    for (int64_t first = 0; first <= 5; ++first) {
      for (int64_t n = 0; first + n <= 5; ++n) {
        std::vector<float> part(n);
        ASSERT_TRUE(file->Read(*bias, first, part).ok());
        for (int64_t i = 0; i < n; ++i) EXPECT_EQ(part[i], 7 + first + i);
      }
    }
  }
  EXPECT_EQ(folder.Entries(), 3);
}

TEST(Safetensors, RemovesUnfinishedFiles) {
  const TemporaryFolder folder;
  {
    auto writer = SafetensorsWriter::Create(folder / "f", kTensors, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(writer->Append(Counting(3)).ok());
  }
  EXPECT_EQ(folder.Entries(), 0);
}

TEST(Safetensors, FullDiskLeavesNoFile) {
  const TemporaryFolder folder;
  const std::vector<float> values(1 << 16);
  absl::Status status;
  {
    const FileSizeLimit limit(100'000);
    auto writer =
        SafetensorsWriter::Create(folder / "f", {{"x", Shape({1 << 16})}}, {{"format", "cadre"}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    status = writer->Append(values);
  }
  EXPECT_THAT(status, IsError(absl::StatusCode::kResourceExhausted, folder / "f"));
  EXPECT_EQ(folder.Entries(), 0);
}

TEST(Safetensors, ConvertsOtherTypes) {
  const std::string json = R"({"brain":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
                           R"("double":{"dtype":"F64","shape":[2],"data_offsets":[6,22]},)"
                           R"("long":{"dtype":"I64","shape":[1],"data_offsets":[22,30]}})";
  const std::vector<uint16_t> brain = {0x3f80, 0xc020, 0x7f80};  // 1, -2.5, inf
  const std::string bytes =
      Bytes(json, Raw(brain) + Raw<double>({0.1, -1e300}) + Raw<int64_t>({7}));
  auto file = OpenBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values(2);
  ASSERT_TRUE(file->Read(*file->Find("brain"), 1, values).ok());
  EXPECT_EQ(values, (std::vector<float>{-2.5F, inf}));
  ASSERT_TRUE(file->Read(*file->Find("double"), 0, values).ok());
  EXPECT_EQ(values, (std::vector<float>{0.1F, -inf}));
  values.resize(1);
  const absl::Status status = file->Read(*file->Find("long"), 0, values);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("bytes"), HasSubstr("'long'"), HasSubstr("I64")));
}

// Compares every half with the value that its bits define.
TEST(Safetensors, ConvertsEveryHalf) {
  std::vector<uint16_t> halves(1 << 16);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  const std::string bytes =
      Bytes(R"({"x":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", Raw(halves));
  auto file = OpenBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> values(halves.size());
  ASSERT_TRUE(file->Read(*file->Find("x"), 0, values).ok());
  for (size_t i = 0; i < halves.size(); ++i) {
    const int exponent = (halves[i] >> 10) & 31, fraction = halves[i] & 1023;
    EXPECT_EQ(std::signbit(values[i]), (halves[i] & 0x8000) != 0) << i;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(values[i]), fraction != 0);
      EXPECT_EQ(std::isinf(values[i]), fraction == 0);
      continue;
    }
    const double size =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(values[i], (halves[i] & 0x8000) != 0 ? -size : size) << i;
  }
}

TEST(Safetensors, DetectsEveryTruncation) {
  const TemporaryFolder folder;
  WriteCounting(folder / "whole", 11);
  const std::string whole = *ReadFile(folder / "whole");
  for (int size = 0; size < std::ssize(whole); ++size) {
    const auto file = SafetensorsFile::Open(folder.Write("cut", whole.substr(0, size)));
    ASSERT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(folder / "cut")) << size;
  }
  EXPECT_FALSE(OpenBytes(whole + "x").ok());
}

TEST(Safetensors, RefusesHugeHeadersBeforeAllocation) {
  for (const uint64_t length :
       {uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{1} << 63}) {
    const auto file = OpenBytes(Raw<uint64_t>({length}) + "        ");
    EXPECT_THAT(file, IsError(absl::StatusCode::kInvalidArgument, "at most 100000000"));
  }
}

TEST(Safetensors, RefusesAllButRegularFiles) {
  const TemporaryFolder folder;
  EXPECT_EQ(SafetensorsFile::Open(folder / "missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(folder.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Safetensors, ShrinkingFileIsDataLoss) {
  const TemporaryFolder folder;
  WriteCounting(folder / "f", 11);
  auto file = SafetensorsFile::Open(folder / "f");
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(folder / "f", std::filesystem::file_size(folder / "f") - 4);
  std::vector<float> values(5);
  const absl::Status status = file->Read(*file->Find("conv/bias"), 0, values);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder / "f"), HasSubstr("conv/bias")));
}

// The nearest value of the type by trying all of them; of two equally near ones, the one with an
// even last bit. Requires: `value` is finite and between values of the type.
uint16_t NearestByTrial(float value, const std::vector<float>& values) {
  uint16_t nearest = 0;
  for (uint32_t bits = 0; bits < values.size(); ++bits) {
    if (!std::isfinite(values[bits]) || std::signbit(values[bits]) != std::signbit(value)) continue;
    const double distance = std::abs(double{value} - values[bits]);
    const double best = std::abs(double{value} - values[nearest]);
    const bool other_sign = std::signbit(values[nearest]) != std::signbit(value);
    if (other_sign || distance < best || (distance == best && bits % 2 == 0)) {
      nearest = static_cast<uint16_t>(bits);
    }
  }
  return nearest;
}

// All values of a type, by their bits, as this reader converts them.
std::vector<float> AllValues(const std::string& type) {
  const TemporaryFolder folder;
  const int64_t count = 1 << 16;
  std::string header = absl::StrCat(R"({"x":{"dtype":")", type, R"(","shape":[)", count,
                                    R"(],"data_offsets":[0,)", 2 * count, "]}}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += header;
  for (uint32_t bits = 0; bits < count; ++bits) {
    bytes.push_back(static_cast<char>(bits & 0xff));
    bytes.push_back(static_cast<char>(bits >> 8));
  }
  EXPECT_TRUE(WriteFileAtomically(folder / "all", bytes).ok());
  auto file = SafetensorsFile::Open(folder / "all");
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<float> values(count);
  EXPECT_TRUE(file->Read(file->tensors()[0], 0, values).ok());
  return values;
}

TEST(SafetensorsTest, ValuesAreRoundedToNearest) {
  const TemporaryFolder folder;
  for (const auto& [type, name] : {std::pair(FloatType::kBF16, "BF16"), {FloatType::kF16, "F16"}}) {
    const std::vector<float> all = AllValues(name);
    std::vector<float> values = {0.0F, -0.0F, INFINITY, -INFINITY, NAN};
    const uint16_t infinity = type == FloatType::kBF16 ? 0x7f80 : 0x7c00;
    // Values of the type, the middles between them, and what is next to these: of subnormal and of
    // normal numbers, and the largest ones.
    for (uint32_t bits : {0U, 1U, 2U, 0x3ffU, 0x400U, 0x7fU, 0x80U, 0x3c00U, 0x3f80U, 0x3f81U,
                          0x4248U, infinity - 2U}) {
      for (const uint32_t sign : {0U, 0x8000U}) {
        const float low = all[bits | sign];
        const float middle = low + (all[(bits + 1) | sign] - low) / 2;
        for (const float value :
             {low, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 2 * middle)}) {
          values.push_back(value);
        }
      }
    }
    const std::vector<NamedShape> tensors = {{"x", Shape({std::ssize(values)})}};
    ASSERT_TRUE(WriteSafetensors(folder / "f", tensors, values, TorchMetadata(), type).ok());
    auto file = SafetensorsFile::Open(folder / "f");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->metadata().at("format"), "pt");
    ASSERT_EQ(file->tensors()[0].type, name);
    std::vector<float> read(values.size());
    ASSERT_TRUE(file->Read(file->tensors()[0], 0, read).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        EXPECT_TRUE(std::isnan(read[i]));
      } else if (std::isinf(values[i])) {
        EXPECT_EQ(read[i], values[i]);
      } else {
        const float expected = all[NearestByTrial(values[i], all)];
        EXPECT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(expected))
            << values[i] << " as " << name;
      }
    }
  }
}

TEST(SafetensorsTest, ValuesThatATypeCannotHoldAreRefused) {
  const TemporaryFolder folder;
  const std::vector<NamedShape> tensors = {{"v", Shape({2})}, {"w", Shape({2})}};
  const std::vector<float> values = {1, 65519, 2, -65520};
  const absl::Status status = WriteSafetensors(folder / "f", tensors, values, {}, FloatType::kF16);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("element 1 of tensor 'w' is -65520, which is too large for F16"));
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
  EXPECT_TRUE(WriteSafetensors(folder / "f", tensors, values, {}, FloatType::kBF16).ok());
  EXPECT_FALSE(ParseFloatType("float").ok());
}

}  // namespace
}  // namespace cadre
