#include "model/formats/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::IdxBytes;
using ::cadre::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file is refused by all that read it to the end, by name.
void ExpectRefused(const std::string& path, absl::StatusCode code, const std::string& what) {
  const absl::Status read = ReadIdx(path).status();
  EXPECT_EQ(read.code(), code) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr(path));
  EXPECT_THAT(std::string(read.message()), HasSubstr(what));
  EXPECT_EQ(CheckIdx(path).status(), read);
}

TEST(IdxTest, ReadsPlainAndGzipAlike) {
  const TemporaryFolder folder;
  const std::string bytes = IdxBytes({2, 3, 1}, std::string("\x00\x01\x02\xfd\xfe\xff", 6));
  for (const std::string& path :
       {folder.Write("plain", bytes), folder.WriteGzip("compressed.gz", bytes)}) {
    const auto array = ReadIdx(path);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_THAT(array->dims, ElementsAre(2, 3, 1));
    EXPECT_THAT(array->data, ElementsAre(0, 1, 2, 253, 254, 255));
    EXPECT_EQ(ReadIdxDims(path).value(), array->dims);
    EXPECT_EQ(CheckIdx(path).value(), array->dims);
  }
}

// What is read from a file is read from its bytes, and refused with the same words.
TEST(IdxTest, ParsesBytesAsItReadsFiles) {
  const TemporaryFolder folder;
  const std::string whole = IdxBytes({2, 3}, "abcdef");
  for (size_t size = 0; size <= whole.size() + 1; ++size) {
    const std::string bytes = (whole + "x").substr(0, size);
    const std::string path = folder.Write("file", bytes);
    const auto read = ReadIdx(path);
    const auto parsed = ParseIdx(path, std::as_bytes(std::span(bytes.data(), bytes.size())));
    ASSERT_EQ(parsed.status(), read.status()) << size;
    ASSERT_EQ(parsed.ok(), size == whole.size());
    if (!parsed.ok()) continue;
    EXPECT_EQ(parsed->dims, read->dims);
    EXPECT_EQ(parsed->data, read->data);
  }
}

TEST(IdxTest, ReadsMoreThanOneBlock) {
  const TemporaryFolder folder;
  std::string elements((3 << 20) + 17, '\0');
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<char>(i * 31 >> 7);
  const std::string bytes = IdxBytes({static_cast<uint32_t>(elements.size())}, elements);
  const auto array = ReadIdx(folder.WriteGzip("large.gz", bytes));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(std::string(array->data.begin(), array->data.end()), elements);
}

TEST(IdxTest, AnEmptyArrayIsLegal) {
  const TemporaryFolder folder;
  const auto array = ReadIdx(folder.Write("none", IdxBytes({0, 28, 28}, "")));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_THAT(array->dims, ElementsAre(0, 28, 28));
  EXPECT_TRUE(array->data.empty());
}

TEST(IdxTest, TruncationIsSeenAtEveryByte) {
  const TemporaryFolder folder;
  const std::string whole = IdxBytes({2, 2}, "abcd");
  for (size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    const std::string cut = whole.substr(0, length);
    const std::string what = length < 12
                                 ? absl::StrCat("ends after ", length, " bytes of its header")
                                 : absl::StrCat("ends after ", length - 12, " bytes of the 4");
    ExpectRefused(folder.Write(absl::StrCat("plain", length), cut), absl::StatusCode::kDataLoss,
                  what);
    ExpectRefused(folder.WriteGzip(absl::StrCat("gzip", length), cut), absl::StatusCode::kDataLoss,
                  what);
  }
}

// Whatever byte the compressed file ends at, the array is refused.
TEST(IdxTest, DetectsTruncatedGzip) {
  const TemporaryFolder folder;
  const std::string whole = FileBytes(folder.WriteGzip("whole.gz", IdxBytes({3}, "xyz")));
  for (size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    const std::string path = folder.Write("cut.gz", whole.substr(0, length));
    EXPECT_FALSE(ReadIdx(path).ok());
    EXPECT_FALSE(CheckIdx(path).ok());
  }
}

TEST(IdxTest, DamagedGzipIsRefused) {
  const TemporaryFolder folder;
  const std::string whole = FileBytes(folder.WriteGzip("whole.gz", IdxBytes({3}, "xyz")));
  // The checksum is the first half of the last eight bytes.
  std::string damaged = whole;
  damaged[whole.size() - 8] = static_cast<char>(damaged[whole.size() - 8] ^ 1);
  ExpectRefused(folder.Write("checksum.gz", damaged), absl::StatusCode::kDataLoss, "damaged");
  damaged = whole;
  damaged[11] = static_cast<char>(damaged[11] ^ 0x7f);
  EXPECT_FALSE(ReadIdx(folder.Write("body.gz", damaged)).ok());
}

TEST(IdxTest, TrailingBytesAreRefused) {
  const TemporaryFolder folder;
  const std::string bytes = IdxBytes({3}, "xyz") + "!";
  ExpectRefused(folder.Write("plain", bytes), absl::StatusCode::kDataLoss, "has bytes after");
  ExpectRefused(folder.WriteGzip("compressed", bytes), absl::StatusCode::kDataLoss,
                "has bytes after");
  EXPECT_THAT(ReadIdxDims(folder.At("plain")).value(), ElementsAre(3)) << "only the header is read";
}

TEST(IdxTest, WhatIsNoIdxFileIsRefused) {
  const TemporaryFolder folder;
  std::string bytes = IdxBytes({1}, "x");
  bytes[0] = 'P';
  ExpectRefused(folder.Write("magic", bytes), absl::StatusCode::kInvalidArgument,
                "starts with bytes 50 00; an IDX file starts with 00 00");
  bytes = IdxBytes({1}, "x");
  bytes[2] = 0x0d;
  ExpectRefused(folder.Write("type", bytes), absl::StatusCode::kInvalidArgument, "type 0x0d");
  for (const char dims : {'\x00', '\x05', '\xff'}) {
    bytes = IdxBytes({1}, "x");
    bytes[3] = dims;
    ExpectRefused(folder.Write("dims", bytes), absl::StatusCode::kInvalidArgument, "dimensions");
  }
}

// The sizes would overflow, or fill the memory, if the header were believed.
TEST(IdxTest, HugeSizesFailBeforeAllocation) {
  const TemporaryFolder folder;
  const uint32_t most = 0xffffffff;
  ExpectRefused(folder.Write("overflow", IdxBytes({most, most, most, most}, "x")),
                absl::StatusCode::kInvalidArgument, "elements; at most");
  ExpectRefused(folder.Write("large", IdxBytes({1U << 17, 1U << 16}, "x")),
                absl::StatusCode::kInvalidArgument, "elements; at most");
  ExpectRefused(folder.Write("claim", IdxBytes({most}, "x")), absl::StatusCode::kDataLoss,
                "ends after 1 bytes of the 4294967295");
}

TEST(IdxTest, ErrorsNameFile) {
  const TemporaryFolder folder;
  ExpectRefused(folder.At("missing"), absl::StatusCode::kNotFound, "cannot open");
  EXPECT_EQ(ReadIdxDims(folder.At("missing")).status().code(), absl::StatusCode::kNotFound);
  const absl::Status status = ReadIdx(folder.At("")).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not a regular file"));
}

// Whoever waited for its writer would wait for ever.
TEST(IdxTest, NamedPipesFail) {
  const TemporaryFolder folder;
  const std::string path = folder.At("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ExpectRefused(path, absl::StatusCode::kInvalidArgument, "is not a regular file");
  EXPECT_EQ(ReadIdxDims(path).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre
