#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / name; }

  const TemporaryFolder folder_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
  for (const std::string& bytes :
       {std::string(), std::string("text\n"), std::string("a\0b", 3), std::string(300'000, 'x')}) {
    ASSERT_TRUE(WriteFileAtomically(Path("f"), bytes).ok());
    const auto read = ReadFile(Path("f"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, bytes);
  }
  // No temporary file is left.
  EXPECT_EQ(folder_.Entries(), 1);
}

TEST_F(FileTest, ReplacesAtomically) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "a longer text").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "short").ok());
  EXPECT_EQ(*ReadFile(Path("f")), "short");
}

TEST_F(FileTest, IgnoresLeftoverTemporary) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "old").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("f.new"), std::string(1000, 'h')).ok());
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "new").ok());
  EXPECT_EQ(*ReadFile(Path("f")), "new");
  EXPECT_EQ(folder_.Entries(), 1);
}

TEST_F(FileTest, RelativeNames) {
  const std::filesystem::path before = std::filesystem::current_path();
  absl::Cleanup back = [&] { std::filesystem::current_path(before); };
  std::filesystem::current_path(folder_.path());
  ASSERT_TRUE(WriteFileAtomically("f", "here").ok());
  EXPECT_EQ(*ReadFile(Path("f")), "here");
}

TEST_F(FileTest, MissingFilesAreNotFound) {
  const auto read = ReadFile(Path("missing"));
  EXPECT_THAT(read, IsError(absl::StatusCode::kNotFound, Path("missing")));
  const auto written = WriteFileAtomically(Path("missing/f"), "x");
  EXPECT_THAT(written, IsError(absl::StatusCode::kNotFound, Path("missing/f")));
}

TEST_F(FileTest, FoldersAreNotFiles) {
  EXPECT_FALSE(ReadFile(folder_.path()).ok());
  ASSERT_TRUE(MakeFolder(Path("d")).ok());
  const absl::Status status = WriteFileAtomically(Path("d"), "x");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(Path("d")));
  EXPECT_TRUE(std::filesystem::is_directory(Path("d")));
  // The temporary file was removed.
  EXPECT_EQ(folder_.Entries(), 1);
}

// A reader of a named pipe would block until it has a writer.
TEST_F(FileTest, RejectsSpecialFiles) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const absl::Status& status :
       {ReadFile(Path("pipe")).status(), OpenRegularFile(Path("pipe")).status(),
        ReadFile("/dev/zero").status()}) {
    EXPECT_THAT(status, IsError(absl::StatusCode::kInvalidArgument, "is not a regular file"));
  }
}

TEST_F(FileTest, LimitsFileSize) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "12345").ok());
  EXPECT_EQ(ReadFile(Path("f"), 5).value(), "12345");
  const absl::Status status = ReadFile(Path("f"), 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            Path("f") + ": has more than the 4 bytes that are allowed");
  // The file is sparse and takes no space.
  ASSERT_TRUE(WriteFileAtomically(Path("hole"), "").ok());
  std::filesystem::resize_file(Path("hole"), kMaxReadBytes + 1);
  EXPECT_EQ(ReadFile(Path("hole")).status().code(), absl::StatusCode::kInvalidArgument);
}

// Files of /proc report a size of 0; the limit applies to the bytes that are read.
TEST_F(FileTest, LimitsFilesOfUnknownSize) {
  const auto whole = ReadFile("/proc/self/status");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(*whole, HasSubstr("Pid:"));
  EXPECT_EQ(ReadFile("/proc/self/status", 10).status().code(), absl::StatusCode::kInvalidArgument);
}

// There is room for half of the file, so the first write succeeds partly and the second fails.
TEST_F(FileTest, FullDiskKeepsOldFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "old").ok());
  absl::Status status;
  {
    const FileSizeLimit limit(1 << 20);
    status = WriteFileAtomically(Path("f"), std::string(2 << 20, 'x'));
  }
  EXPECT_THAT(status, IsError(absl::StatusCode::kResourceExhausted, Path("f")));
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  EXPECT_EQ(folder_.Entries(), 1);
}

TEST_F(FileTest, MakeFolderIsIdempotent) {
  EXPECT_TRUE(MakeFolder(Path("a/b/c")).ok());
  EXPECT_TRUE(MakeFolder(Path("a/b/c")).ok());
  EXPECT_TRUE(std::filesystem::is_directory(Path("a/b/c")));
  EXPECT_TRUE(SyncFolder(Path("a/b")).ok());
  EXPECT_EQ(SyncFolder(Path("missing")).code(), absl::StatusCode::kNotFound);
}

TEST_F(FileTest, OnlyOwnerHasAccess) {
  using std::filesystem::perms;
  ASSERT_TRUE(MakeFolder(Path("a/b")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("a/f"), "x").ok());
  const auto lock = PosixFileSystem().Lock(Path("a/lock"));
  const auto permissions = [&](const std::string& name) {
    return std::filesystem::status(Path(name)).permissions();
  };
  EXPECT_EQ(permissions("a"), perms::owner_all);
  EXPECT_EQ(permissions("a/b"), perms::owner_all);
  EXPECT_EQ(permissions("a/f"), perms::owner_read | perms::owner_write);
  EXPECT_EQ(permissions("a/lock"), perms::owner_read | perms::owner_write);
}

TEST_F(FileTest, MakeFolderFailsOnFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  const absl::Status status = MakeFolder(Path("f/d"));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(Path("f/d")));
}

TEST(ErrnoStatusTest, Codes) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open", "p").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EACCES, "open", "p").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(EPERM, "open", "p").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "write", "p").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EDQUOT, "write", "p").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EFBIG, "write", "p").code(), absl::StatusCode::kResourceExhausted);
  // A sample or a checkpoint may be readable later.
  EXPECT_NE(ErrnoStatus(EIO, "read", "p").code(), absl::StatusCode::kDataLoss);
  for (const int error : {ENOENT, ENOSPC, EIO, EISDIR}) {
    EXPECT_FALSE(ErrnoStatus(error, "open", "p").ok());
    EXPECT_THAT(ErrnoStatus(error, "open", "some/path").message(), HasSubstr("open some/path"));
  }
}

}  // namespace
}  // namespace cadre
