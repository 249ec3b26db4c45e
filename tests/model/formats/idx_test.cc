#include "model/formats/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/base/temporary_folder.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::IdxBytes;
using ::cadre::testing::WriteGzip;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Both functions refuse the file with the same message, which names the file.
void ExpectRefused(const std::string& path, absl::StatusCode code, const std::string& what) {
  const absl::Status read = ReadIdx(path).status();
  EXPECT_EQ(read.code(), code) << read;
  EXPECT_THAT(std::string(read.message()), AllOf(HasSubstr(path), HasSubstr(what)));
  EXPECT_EQ(CheckIdx(path).status(), read);
}

TEST(IdxTest, ReadsPlainAndCompressedFiles) {
  const TemporaryFolder folder;
  const std::string bytes = IdxBytes({2, 3, 1}, std::string("\x00\x01\x02\xfd\xfe\xff", 6));
  for (const std::string& path :
       {folder.Write("plain", bytes), WriteGzip(folder / "compressed.gz", bytes)}) {
    const auto array = ReadIdx(path);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_THAT(array->dims, ElementsAre(2, 3, 1));
    EXPECT_THAT(array->data, ElementsAre(0, 1, 2, 253, 254, 255));
    EXPECT_EQ(CheckIdx(path).value(), array->dims);
  }
}

TEST(IdxTest, ReadsSeveralBlocks) {
  const TemporaryFolder folder;
  constexpr uint32_t kElements = (3 << 20) + 17;
  std::string elements;
  for (uint32_t i = 0; i < kElements; ++i) elements.push_back(static_cast<char>(i * 31 >> 7));
  const auto array = ReadIdx(WriteGzip(folder / "large.gz", IdxBytes({kElements}, elements)));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(std::string(array->data.begin(), array->data.end()), elements);
}

TEST(IdxTest, NamesOtherFormats) {
  const TemporaryFolder folder;
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\n";
  for (const auto& [path, what] :
       {std::pair{folder.Write("pointer", lfs), "it is a Git LFS pointer"},
        std::pair{WriteGzip(folder / "page.gz", "<html>not found"), "it is a page of HTML"},
        std::pair{folder.Write("array", std::string("\x93NUMPY\x01\0", 8)), "it is a NumPy array"},
        std::pair{folder.Write("zip", std::string("PK\x03\x04", 4)), "it is a zip archive"}}) {
    ExpectRefused(path, absl::StatusCode::kInvalidArgument,
                  absl::StrCat("is not an IDX file, which starts with two zero bytes: ", what));
  }
}

TEST(IdxTest, AcceptsEmptyArrays) {
  const TemporaryFolder folder;
  const auto array = ReadIdx(folder.Write("none", IdxBytes({0, 28, 28}, "")));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_THAT(array->dims, ElementsAre(0, 28, 28));
  EXPECT_TRUE(array->data.empty());
}

TEST(IdxTest, DetectsEveryTruncation) {
  const TemporaryFolder folder;
  const std::string whole = IdxBytes({2, 2}, "abcd");
  for (int length = 0; length < std::ssize(whole); ++length) {
    SCOPED_TRACE(length);
    const std::string cut = whole.substr(0, length);
    const std::string message = length < 12
                                    ? absl::StrCat("ends after ", length, " bytes of its header")
                                    : absl::StrCat("ends after ", length - 12, " bytes of the 4");
    for (const std::string& path : {folder.Write("plain", cut), WriteGzip(folder / "gzip", cut)}) {
      ExpectRefused(path, absl::StatusCode::kDataLoss, message);
    }
  }
}

TEST(IdxTest, DetectsEveryTruncationOfCompressedFiles) {
  const TemporaryFolder folder;
  const std::string whole = *ReadFile(WriteGzip(folder / "whole.gz", IdxBytes({3}, "xyz")));
  for (int length = 0; length < std::ssize(whole); ++length) {
    SCOPED_TRACE(length);
    const std::string path = folder.Write("cut.gz", whole.substr(0, length));
    EXPECT_FALSE(ReadIdx(path).ok());
    EXPECT_FALSE(CheckIdx(path).ok());
  }
}

TEST(IdxTest, DetectsDamageOfCompressedFiles) {
  const TemporaryFolder folder;
  const std::string whole = *ReadFile(WriteGzip(folder / "whole.gz", IdxBytes({3}, "xyz")));
  // The checksum is the first half of the last eight bytes.
  std::string damaged = whole;
  damaged[whole.size() - 8] ^= 1;
  ExpectRefused(folder.Write("checksum.gz", damaged), absl::StatusCode::kDataLoss, "damaged");
  damaged = whole;
  damaged[11] ^= 0x7f;
  EXPECT_FALSE(ReadIdx(folder.Write("body.gz", damaged)).ok());
}

TEST(IdxTest, RefusesTrailingBytes) {
  const TemporaryFolder folder;
  const std::string bytes = IdxBytes({3}, "xyz") + "!";
  for (const std::string& path :
       {folder.Write("plain", bytes), WriteGzip(folder / "gzip", bytes)}) {
    ExpectRefused(path, absl::StatusCode::kDataLoss, "has bytes after");
  }
}

TEST(IdxTest, RefusesInvalidHeaders) {
  struct Case {
    int byte;
    char value;
    const char* message;
  };
  const TemporaryFolder folder;
  for (const Case& c :
       {Case{0, 'P', "is not an IDX file"}, Case{2, '\x0d', "another type than unsigned bytes"},
        Case{3, '\x00', "dimensions"}, Case{3, '\x05', "dimensions"},
        Case{3, '\xff', "dimensions"}}) {
    std::string bytes = IdxBytes({1}, "x");
    bytes[c.byte] = c.value;
    ExpectRefused(folder.Write("file", bytes), absl::StatusCode::kInvalidArgument, c.message);
  }
}

// The number of elements overflows 64 bits, exceeds the limit or exceeds the file.
TEST(IdxTest, RefusesHugeExtentsBeforeAllocation) {
  const TemporaryFolder folder;
  const uint32_t max = std::numeric_limits<uint32_t>::max();
  ExpectRefused(folder.Write("overflow", IdxBytes({max, max, max, max}, "x")),
                absl::StatusCode::kInvalidArgument, "elements; at most");
  ExpectRefused(folder.Write("large", IdxBytes({1U << 17, 1U << 16}, "x")),
                absl::StatusCode::kInvalidArgument, "elements; at most");
  ExpectRefused(folder.Write("short", IdxBytes({max}, "x")), absl::StatusCode::kDataLoss,
                "ends after 1 bytes of the 4294967295");
}

// Opening a named pipe would block until it has a writer.
TEST(IdxTest, RefusesAllButRegularFiles) {
  const TemporaryFolder folder;
  ExpectRefused(folder / "missing", absl::StatusCode::kNotFound, "cannot open");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder.path(), folder / "pipe"}) {
    ExpectRefused(path, absl::StatusCode::kInvalidArgument, "is not a regular file");
  }
}

}  // namespace
}  // namespace cadre
