#include "server/block_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

class BlockFileTest : public ::testing::Test {
 protected:
  // Blocks "aaaa", "bbbb", "cc".
  std::unique_ptr<BlockFile> Write(uint64_t blocks) {
    auto file = BlockFile::Create(PosixFileSystem(), path_, {"meta", 4, 10});
    EXPECT_TRUE(file.ok()) << file.status();
    for (uint64_t i = 0; i < blocks; ++i) {
      const std::string data((*file)->head().BytesOf(i), static_cast<char>('a' + i));
      EXPECT_TRUE((*file)->WriteBlock(i, data, Crc32c(data)).ok());
    }
    return *std::move(file);
  }

  std::unique_ptr<BlockFile> Reopen() {
    auto file = BlockFile::Open(PosixFileSystem(), path_, Access::kReadWrite);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/file";
};

TEST_F(BlockFileTest, WriteAndRead) {
  Write(3);
  const auto file = Reopen();
  EXPECT_EQ(file->head().meta, "meta");
  EXPECT_EQ(file->head().blocks(), 3u);
  EXPECT_TRUE(file->Verify().ok());
  std::string data(2, ' ');
  EXPECT_TRUE(file->ReadBlock(2, data).ok());
  EXPECT_EQ(data, "cc");
  std::string across(7, ' ');
  EXPECT_TRUE(file->ReadUnchecked(2, across).ok());
  EXPECT_EQ(across, "aabbbbc");
}

TEST_F(BlockFileTest, BlocksInAnyOrder) {
  auto file = Write(0);
  for (const int i : {2, 0, 1, 0}) {
    const std::string data(file->head().BytesOf(i), static_cast<char>('a' + i));
    EXPECT_TRUE(file->WriteBlock(i, data, Crc32c(data)).ok());
  }
  EXPECT_TRUE(file->Verify().ok());
}

TEST_F(BlockFileTest, MetaIsReplacedInPlace) {
  const std::unique_ptr<BlockFile> file = Write(3);
  file->RewriteHead("META", file->head().data_bytes).IgnoreError();
  EXPECT_EQ(Reopen()->head().meta, "META");
  EXPECT_TRUE(Reopen()->Verify().ok());
}

TEST_F(BlockFileTest, FileWithoutDataIsComplete) {
  auto file = BlockFile::Create(PosixFileSystem(), path_, {"", 4, 0});
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(Reopen()->Verify().ok());
  EXPECT_EQ(*Reopen()->CountWholeBlocks(), 0u);
}

TEST_F(BlockFileTest, CountsLeadingBlocks) {
  for (uint64_t blocks = 0; blocks <= 3; ++blocks) {
    Write(blocks);
    EXPECT_EQ(*Reopen()->CountWholeBlocks(), blocks);
    EXPECT_EQ(Reopen()->Verify().ok(), blocks == 3);
  }
}

TEST_F(BlockFileTest, EveryTruncationIsFound) {
  Write(3);
  const std::string whole = ReadAll(path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteAll(path_, whole.substr(0, size));
    const auto file = BlockFile::Open(PosixFileSystem(), path_, Access::kRead);
    EXPECT_THAT(file.ok() ? (*file)->Verify() : file.status(),
                IsError(absl::StatusCode::kDataLoss, path_))
        << size;
  }
  WriteAll(path_, whole + "x");
  EXPECT_EQ(Reopen()->Verify().code(), absl::StatusCode::kDataLoss);
}

TEST_F(BlockFileTest, EveryFlippedBitIsFound) {
  Write(3);
  const std::string whole = ReadAll(path_);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    WriteAll(path_, flipped);
    const auto file = BlockFile::Open(PosixFileSystem(), path_, Access::kRead);
    const absl::Status status = file.ok() ? (*file)->Verify() : file.status();
    // The last four bytes of the fixed header are unused.
    const bool padding = bit / 8 >= 28 && bit / 8 < 32;
    EXPECT_EQ(status.ok(), padding) << "bit " << bit << ": " << status;
  }
}

TEST_F(BlockFileTest, NewerFormatIsRefused) {
  Write(3);
  const std::string whole = ReadAll(path_);
  std::string newer = whole;
  newer[7] = '2';
  WriteAll(path_, newer);
  const auto open = [&] { return BlockFile::Open(PosixFileSystem(), path_, Access::kRead); };
  EXPECT_THAT(open(), IsError(absl::StatusCode::kDataLoss, path_)) << "only the number is changed";
  const uint32_t crc = Crc32c(newer.substr(0, 24) + "meta");
  std::memcpy(newer.data() + 24, &crc, sizeof(crc));
  WriteAll(path_, newer);
  EXPECT_THAT(open(), IsError(absl::StatusCode::kFailedPrecondition, path_ + ": format 2"));
  EXPECT_THAT(open(), IsError(absl::StatusCode::kFailedPrecondition, "formats up to 1"));
}

// Parts that are written in any order give the file that whole blocks give.
TEST_F(BlockFileTest, WriterTakesParts) {
  Write(3);
  const std::string whole = ReadAll(path_);
  const std::string data = "aaaabbbbcc";
  using Parts = std::vector<std::pair<size_t, size_t>>;
  for (const Parts& parts :
       {Parts{{0, 10}}, Parts{{3, 7}, {0, 1}, {2, 1}, {1, 1}},
        Parts{{9, 1}, {5, 2}, {7, 2}, {0, 5}}, Parts{{0, 4}, {4, 4}, {8, 2}}}) {
    auto file = BlockFile::Create(PosixFileSystem(), path_, {"META", 4, 0});
    ASSERT_TRUE(file.ok()) << file.status();
    BlockWriter writer(*std::move(file), data.size());
    for (const auto& [offset, size] : parts) {
      EXPECT_TRUE(writer.Write(offset, absl::string_view(data).substr(offset, size)).ok());
    }
    ASSERT_TRUE(writer.Finish("meta", data.size()).ok());
    EXPECT_EQ(ReadAll(path_), whole);
  }
}

TEST_F(BlockFileTest, ScanFindsEveryFlippedBit) {
  Write(3);
  const std::string whole = ReadAll(path_);
  const auto scan = [&](const std::vector<size_t>& cuts) -> absl::Status {
    auto file = BlockFile::Open(PosixFileSystem(), path_, Access::kRead);
    EXPECT_TRUE(file.ok()) << file.status();
    BlockScan scan(*std::move(file));
    std::string data(10, ' ');
    // The last part first.
    for (size_t i = cuts.size() - 1; i > 0; --i) {
      const absl::Status read =
          scan.Read(cuts[i - 1], std::span(data).subspan(cuts[i - 1], cuts[i] - cuts[i - 1]));
      if (!read.ok()) return read;
    }
    const absl::Status checked = scan.Check();
    EXPECT_TRUE(!checked.ok() || data == "aaaabbbbcc");
    return checked;
  };
  // After the header of 32 bytes and the meta of four.
  for (const std::vector<size_t>& cuts :
       {std::vector<size_t>{0, 10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {0, 3, 9, 10}}) {
    for (size_t bit = 36 * 8; bit < whole.size() * 8; ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
      WriteAll(path_, flipped);
      EXPECT_THAT(scan(cuts), IsError(absl::StatusCode::kDataLoss, path_)) << bit;
    }
    for (size_t size = 36; size < whole.size(); ++size) {
      WriteAll(path_, whole.substr(0, size));
      EXPECT_THAT(scan(cuts), IsError(absl::StatusCode::kDataLoss, path_)) << size;
    }
    WriteAll(path_, whole + "x");
    EXPECT_THAT(scan(cuts), IsError(absl::StatusCode::kDataLoss, "after its end"));
    WriteAll(path_, whole);
    EXPECT_EQ(scan(cuts), absl::OkStatus());
  }
}

TEST_F(BlockFileTest, CreateKeepsOpenOldFile) {
  auto old = Write(1);
  auto renewed = Write(2);
  const std::string late = "zzzz";
  EXPECT_TRUE(old->WriteBlock(1, late, Crc32c(late)).ok());
  std::string data(4, ' ');
  EXPECT_TRUE(renewed->ReadBlock(1, data).ok());
  EXPECT_EQ(data, "bbbb");
}

TEST_F(BlockFileTest, FullDiskHasPath) {
  auto file = Write(1);
  const FileSizeLimit full(48);
  const absl::Status status = file->WriteBlock(2, "cc", Crc32c("cc"));
  EXPECT_THAT(status, IsError(absl::StatusCode::kResourceExhausted, path_));
  const FileSizeLimit fuller(8);
  EXPECT_EQ(BlockFile::Create(PosixFileSystem(), path_ + "2", {"meta", 4, 10}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(BlockFileTest, ForeignFilesAreNamed) {
  EXPECT_EQ(BlockFile::Open(PosixFileSystem(), path_, Access::kRead).status().code(),
            absl::StatusCode::kNotFound);
  WriteAll(path_, std::string(100, 'x'));
  EXPECT_EQ(BlockFile::Open(PosixFileSystem(), path_, Access::kRead).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cadre::testing
