#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "absl/cleanup/cleanup.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// A folder of its own for each test, gone afterwards.
class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "cadre_file_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  int Entries() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_),
                                          std::filesystem::directory_iterator()));
  }

  std::string folder_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
  for (const std::string& bytes :
       {std::string(), std::string("text\n"), std::string("a\0b", 3), std::string(300'000, 'x')}) {
    ASSERT_TRUE(WriteFileAtomically(Path("f"), bytes).ok());
    const auto read = ReadFile(Path("f"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, bytes);
  }
  // Nothing is left beside it.
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FileTest, ReplacesAtOnce) {
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
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FileTest, NamesWithoutFolderAreHere) {
  const std::filesystem::path before = std::filesystem::current_path();
  absl::Cleanup back = [&] { std::filesystem::current_path(before); };
  std::filesystem::current_path(folder_);
  ASSERT_TRUE(WriteFileAtomically("f", "here").ok());
  EXPECT_EQ(*ReadFile(Path("f")), "here");
}

TEST_F(FileTest, MissingFilesAreNotFound) {
  const auto read = ReadFile(Path("missing"));
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(read.status().message(), HasSubstr(Path("missing")));
  const auto written = WriteFileAtomically(Path("missing/f"), "x");
  EXPECT_EQ(written.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(written.message(), HasSubstr(Path("missing/f")));
}

TEST_F(FileTest, FoldersAreNotFiles) {
  EXPECT_FALSE(ReadFile(folder_).ok());
  ASSERT_TRUE(MakeFolder(Path("d")).ok());
  const absl::Status status = WriteFileAtomically(Path("d"), "x");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(Path("d")));
  EXPECT_TRUE(std::filesystem::is_directory(Path("d")));
  // What was written for it is taken away.
  EXPECT_EQ(Entries(), 1);
}

// Whoever waited for its writer would wait for ever.
TEST_F(FileTest, NamedPipesFail) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const absl::Status& status :
       {ReadFile(Path("pipe")).status(), OpenRegularFile(Path("pipe")).status(),
        ReadFile("/dev/zero").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("is not a regular file"));
  }
}

TEST_F(FileTest, LimitsFileSize) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "12345").ok());
  EXPECT_EQ(ReadFile(Path("f"), 5).value(), "12345");
  const absl::Status status = ReadFile(Path("f"), 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            Path("f") + ": has more than the 4 bytes that are allowed");
  // A file of nothing but a hole, which no disk holds.
  ASSERT_TRUE(WriteFileAtomically(Path("hole"), "").ok());
  std::filesystem::resize_file(Path("hole"), static_cast<uint64_t>(kMaxReadBytes) + 1);
  EXPECT_EQ(ReadFile(Path("hole")).status().code(), absl::StatusCode::kInvalidArgument);
}

// Files of /proc say that they are empty: what has come is counted, not what was announced.
TEST_F(FileTest, LimitsFilesOfUnknownSize) {
  const auto whole = ReadFile("/proc/self/status");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(*whole, HasSubstr("Pid:"));
  EXPECT_EQ(ReadFile("/proc/self/status", 10).status().code(), absl::StatusCode::kInvalidArgument);
}

// A device that is always full stands where the new content would be written.
TEST_F(FileTest, FullDiskLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "old").ok());
  std::filesystem::create_symlink("/dev/full", Path("f.new"));
  const absl::Status status = WriteFileAtomically(Path("f"), "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr(Path("f")));
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  EXPECT_EQ(Entries(), 1);
}

// Room for half of it: the first write succeeds in part, the second fails.
TEST_F(FileTest, FullDiskKeepsOldFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "old").ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit half = before;
  half.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &half), 0);
  const absl::Status status = WriteFileAtomically(Path("f"), std::string(2 << 20, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr(Path("f")));
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FileTest, MakeFolderIsIdempotent) {
  EXPECT_TRUE(MakeFolder(Path("a/b/c")).ok());
  EXPECT_TRUE(MakeFolder(Path("a/b/c")).ok());
  EXPECT_TRUE(std::filesystem::is_directory(Path("a/b/c")));
  EXPECT_TRUE(SyncFolder(Path("a/b")).ok());
  EXPECT_EQ(SyncFolder(Path("missing")).code(), absl::StatusCode::kNotFound);
}

TEST_F(FileTest, MakeFolderWhereAFileIsFails) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  const absl::Status status = MakeFolder(Path("f/d"));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(Path("f/d")));
}

TEST(ErrnoStatusTest, CodesSayWhatTheCallerCanDo) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open", "p").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EACCES, "open", "p").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(EPERM, "open", "p").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "write", "p").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EDQUOT, "write", "p").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EFBIG, "write", "p").code(), absl::StatusCode::kResourceExhausted);
  for (const int error : {ENOENT, ENOSPC, EIO, EISDIR}) {
    EXPECT_FALSE(ErrnoStatus(error, "open", "p").ok());
    EXPECT_THAT(ErrnoStatus(error, "open", "some/path").message(), HasSubstr("open some/path"));
  }
}

}  // namespace
}  // namespace cadre
