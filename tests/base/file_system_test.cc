#include "base/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/base/expect.h"
#include "tests/base/memory_file_system.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

// What both implementations promise. The parameter: whether files are in memory.
class FileSystemTest : public ::testing::TestWithParam<bool> {
 protected:
  FileSystemTest() { EXPECT_TRUE(files().MakeFolder(Path("")).ok()); }

  FileSystem& files() { return GetParam() ? static_cast<FileSystem&>(memory_) : PosixFileSystem(); }
  std::string Path(const std::string& name) const {
    return absl::StrCat(GetParam() ? "/data" : folder_.path(), name.empty() ? "" : "/", name);
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto entries = files().List(Path(""));
    EXPECT_TRUE(entries.ok()) << entries.status();
    for (const FolderEntry& entry : *entries) {
      names.push_back(absl::StrCat(entry.name, entry.is_folder ? "/" : ""));
    }
    return names;
  }
  std::string Read(const std::string& name) {
    return ReadFile(files(), Path(name)).value_or("no file");
  }

  const TemporaryFolder folder_;
  MemoryFileSystem memory_;
};

TEST_P(FileSystemTest, ReadsWhatWasWritten) {
  const auto file = files().Create(Path("f"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(2, "cd", "ef").ok());
  ASSERT_TRUE((*file)->WriteAt(0, "ab", "").ok());
  EXPECT_EQ(*(*file)->Size(), 6);
  std::string first(3, ' ');
  std::string second(5, ' ');
  EXPECT_EQ(*(*file)->ReadAt(1, first, second), 5);
  EXPECT_EQ(first + second, "bcdef   ");
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE(files().SyncFolder(Path("")).ok());
}

// More parts than one system call takes, some of them empty.
TEST_P(FileSystemTest, WritesManyParts) {
  const auto file = files().Create(Path("f"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += static_cast<char>('a' + i % 26);
  std::vector<absl::string_view> parts;
  for (size_t begin = 0, i = 0; begin < bytes.size(); begin += i % 4, ++i) {
    parts.push_back(absl::string_view(bytes).substr(begin, i % 4));
  }
  ASSERT_TRUE((*file)->WritePartsAt(3, parts).ok());
  (*file)->BeginSync(3, bytes.size());
  EXPECT_EQ(Read("f").substr(3), bytes);
}

TEST_P(FileSystemTest, CreateLeavesTheOldFileToItsWriters) {
  const auto old = files().Create(Path("f"));
  const auto replacement = files().Create(Path("f"));
  ASSERT_TRUE((*replacement)->WriteAt(0, "new", "").ok());
  ASSERT_TRUE((*old)->WriteAt(0, "old", "").ok());
  EXPECT_EQ(Read("f"), "new");
}

TEST_P(FileSystemTest, NamesChange) {
  ASSERT_TRUE(files().Create(Path("b")).ok());
  ASSERT_TRUE(files().Create(Path("a")).ok());
  ASSERT_TRUE(files().MakeFolder(Path("c/d")).ok());
  EXPECT_THAT(Names(), ElementsAre("a", "b", "c/"));
  ASSERT_TRUE(files().Rename(Path("b"), Path("a")).ok());
  ASSERT_TRUE(files().Rename(Path("c"), Path("e")).ok());
  EXPECT_THAT(Names(), ElementsAre("a", "e/"));
  ASSERT_TRUE(files().RemoveFile(Path("a")).ok());
  ASSERT_TRUE(files().RemoveFolder(Path("e")).ok());
  ASSERT_TRUE(files().RemoveFolder(Path("e")).ok());
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_P(FileSystemTest, MissingFilesAreNotFound) {
  EXPECT_TRUE(absl::IsNotFound(files().Open(Path("x"), Access::kRead).status()));
  EXPECT_TRUE(absl::IsNotFound(files().RemoveFile(Path("x"))));
  EXPECT_TRUE(absl::IsNotFound(files().Rename(Path("x"), Path("y"))));
  EXPECT_TRUE(absl::IsNotFound(files().LastWrite(Path("x")).status()));
  EXPECT_TRUE(absl::IsNotFound(files().List(Path("x")).status()));
  EXPECT_TRUE(absl::IsNotFound(files().Create(Path("x/y")).status()));
}

TEST_P(FileSystemTest, LockIsExclusive) {
  auto lock = files().Lock(Path("lock"));
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(files().Lock(Path("lock")).status()));
  lock->reset();
  EXPECT_TRUE(files().Lock(Path("lock")).ok());
}

TEST_P(FileSystemTest, NewerWritesHaveNoEarlierTimes) {
  const auto file = files().Create(Path("f"));
  const int64_t created = *files().LastWrite(Path("f"));
  ASSERT_TRUE((*file)->WriteAt(0, "x", "").ok());
  EXPECT_GE(*files().LastWrite(Path("f")), created);
}

INSTANTIATE_TEST_SUITE_P(Both, FileSystemTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Memory" : "Posix"; });

// ---- Faults of the file system in memory

class MemoryFileSystemTest : public ::testing::Test {
 protected:
  MemoryFileSystemTest() {
    EXPECT_TRUE(files_.MakeFolder("/data").ok());
    EXPECT_TRUE(files_.SyncFolder("/").ok());
  }
  std::string Read() { return ReadFile(files_, "/data/f").value_or("no file"); }
  void Crash() {
    files_.CrashHost([] { return false; });
  }

  MemoryFileSystem files_;
};

TEST_F(MemoryFileSystemTest, CrashKeepsWhatIsDurable) {
  const auto file = *files_.Create("/data/f");
  ASSERT_TRUE(file->WriteAt(0, "abc", "").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(files_.SyncFolder("/data").ok());
  ASSERT_TRUE(file->WriteAt(1, "x", "").ok());
  ASSERT_TRUE(files_.Rename("/data/f", "/data/g").ok());
  Crash();
  EXPECT_EQ(Read(), "abc");
  EXPECT_FALSE(files_.Exists("/data/g"));
  EXPECT_TRUE(absl::IsUnavailable(file->Sync())) << "of a process that has ended";
}

TEST_F(MemoryFileSystemTest, NamesNeedTheSyncOfTheirFolder) {
  const auto file = *files_.Create("/data/f");
  ASSERT_TRUE(file->WriteAt(0, "abc", "").ok());
  ASSERT_TRUE(file->Sync().ok());
  Crash();
  EXPECT_EQ(Read(), "no file");
}

TEST_F(MemoryFileSystemTest, EndOfAProcessLosesNothing) {
  const auto lock = *files_.Lock("/data/lock");
  const auto file = *files_.Create("/data/f");
  ASSERT_TRUE(file->WriteAt(0, "abc", "").ok());
  files_.EndProcess();
  EXPECT_EQ(Read(), "abc");
  EXPECT_TRUE(files_.Lock("/data/lock").ok());
}

TEST_F(MemoryFileSystemTest, LaterSyncDoesNotRepairAFailedOne) {
  const auto file = *files_.Create("/data/f");
  ASSERT_TRUE(files_.SyncFolder("/data").ok());
  ASSERT_TRUE(file->WriteAt(0, "abc", "").ok());
  files_.FailNextSync();
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(Read(), "abc");
  Crash();
  EXPECT_EQ(Read(), "");
}

TEST_F(MemoryFileSystemTest, RollBackReturnsToTheImage) {
  const auto file = *files_.Create("/data/f");
  ASSERT_TRUE(file->WriteAt(0, "abc", "").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(files_.SyncFolder("/data").ok());
  const auto image = files_.Copy();
  ASSERT_TRUE(file->WriteAt(0, "xyz", "").ok());
  ASSERT_TRUE(file->Sync().ok());
  for (int time = 0; time < 2; ++time) {
    files_.EndProcess();
    files_.RollBack(*image);
    EXPECT_EQ(Read(), "abc");
    ASSERT_TRUE(files_.RemoveFile("/data/f").ok());
  }
}

TEST_F(MemoryFileSystemTest, StopsBetweenTwoChanges) {
  const auto file = *files_.Create("/data/f");
  files_.StopAfter(1);
  EXPECT_TRUE(file->WriteAt(0, "a", "").ok());
  EXPECT_TRUE(files_.stopped());
  EXPECT_TRUE(absl::IsUnavailable(file->WriteAt(1, "b", "")));
  EXPECT_TRUE(absl::IsUnavailable(files_.List("/data").status()));
  files_.EndProcess();
  EXPECT_EQ(Read(), "a");
}

TEST_F(MemoryFileSystemTest, FullDiskTakesWhatFits) {
  const auto file = *files_.Create("/data/f");
  ASSERT_TRUE(file->WriteAt(0, "abcd", "").ok());
  files_.SetFreeBytes(1);
  EXPECT_TRUE(absl::IsResourceExhausted(file->WriteAt(2, "wxyz", "")));
  EXPECT_EQ(Read(), "abwxy");
  EXPECT_TRUE(absl::IsResourceExhausted(files_.Create("/data/g").status()));
}

TEST(StorageErrorTest, LostDataIsDataLoss) {
  for (const int error : {EIO, EUCLEAN, EBADMSG}) {
    const absl::Status status = StorageError(error, "read", "some/path");
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("read some/path"));
  }
  EXPECT_EQ(StorageError(ENOSPC, "write", "p").code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cadre
