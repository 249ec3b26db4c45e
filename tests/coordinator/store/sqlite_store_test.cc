#include "coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "coordinator/service/backup.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

Store::Op Put(const std::string& key, const std::string& value) {
  return {Store::Op::Kind::kPut, key, value};
}

class SqliteStoreTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SqliteStore>> Open(int64_t max_pages = 0) {
    return SqliteStore::Open(
        {.path = path_, .busy_timeout = absl::Milliseconds(50), .max_pages = max_pages});
  }
  std::unique_ptr<SqliteStore> MustOpen(int64_t max_pages = 0) {
    auto store = Open(max_pages);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "coordinator.db";
};

TEST_F(SqliteStoreTest, PutsGetsAndErases) {
  auto store = MustOpen();
  EXPECT_EQ(store->Get("a").value(), std::nullopt);
  const std::string bytes("\0\xff binary", 10);
  ASSERT_TRUE(store->Commit({Put("a", bytes), Put("b", "")}).ok());
  EXPECT_EQ(store->Get("a").value(), bytes);
  EXPECT_EQ(store->Get("b").value(), "");
  ASSERT_TRUE(store->Commit({Put("a", "2"), {Store::Op::Kind::kErase, "b", ""}}).ok());
  EXPECT_EQ(store->Get("a").value(), "2");
  EXPECT_EQ(store->Get("b").value(), std::nullopt);
}

TEST_F(SqliteStoreTest, FilesArePrivate) {
  const auto store = MustOpen();
  ASSERT_TRUE(store->Commit({Put("a", "1")}).ok());
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(file.status().permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
        << file.path();
  }
}

TEST_F(SqliteStoreTest, ScansAndErasesByPrefix) {
  auto store = MustOpen();
  ASSERT_TRUE(
      store->Commit({Put("run/1", "x"), Put("run/10", "y"), Put("run0", "z"), Put("rum", "w")})
          .ok());
  EXPECT_THAT(store->Scan("run/").value(), ElementsAre(Pair("run/1", "x"), Pair("run/10", "y")));
  EXPECT_THAT(store->Scan("none").value(), IsEmpty());
  ASSERT_TRUE(store->Commit({{Store::Op::Kind::kErasePrefix, "run/", ""}}).ok());
  EXPECT_THAT(store->Scan("ru").value(), ElementsAre(Pair("rum", "w"), Pair("run0", "z")));
}

// The process ends without closing the store; acknowledged transactions are durable.
TEST_F(SqliteStoreTest, KeepsCommitsOfKilledProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto store = SqliteStore::Open({.path = path_});
    const bool done = store.ok() && (*store)->Commit({Put("a", "1")}).ok();
    _exit(done ? 0 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  ASSERT_EQ(ended, 0);
  auto store = MustOpen();
  EXPECT_EQ(store->Get("a").value(), "1");
}

TEST_F(SqliteStoreTest, OneProcessAtATime) {
  auto store = MustOpen();
  const absl::Status second = Open().status();
  EXPECT_THAT(second, IsError(absl::StatusCode::kFailedPrecondition, "another process"));
  EXPECT_THAT(std::string(second.message()), HasSubstr(path_));
}

TEST_F(SqliteStoreTest, FullDiskChangesNothing) {
  auto store = MustOpen(/*max_pages=*/8);
  ASSERT_TRUE(store->Commit({Put("a", "1")}).ok());
  const absl::Status full = store->Commit({Put("a", "2"), Put("big", std::string(100'000, 'x'))});
  EXPECT_THAT(full, IsError(absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_FALSE(absl::StrContains(full.message(), "\n"));
  EXPECT_EQ(store->Get("a").value(), "1");
  EXPECT_TRUE(store->Commit({Put("a", "3")}).ok()) << "a small change still fits";
  store.reset();
  EXPECT_EQ(MustOpen()->Get("a").value(), "3");
}

TEST_F(SqliteStoreTest, FullDiskAtOpen) {
  EXPECT_THAT(Open(/*max_pages=*/1), IsError(absl::StatusCode::kResourceExhausted, path_));
}

// It has the secret from which keys are made.
TEST_F(SqliteStoreTest, StoreOfAnEarlierVersionBecomesPrivate) {
  MustOpen().reset();
  namespace fs = std::filesystem;
  fs::permissions(path_, fs::perms(0644));
  MustOpen();
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0600));
}

// A part of a copy would stay on the full disk.
TEST_F(SqliteStoreTest, FailedBackupLeavesNoFile) {
  auto store = MustOpen();
  ASSERT_TRUE(store->Commit({Put("big", std::string(100'000, 'x'))}).ok());
  const std::string copy = folder_ / "copy";
  {
    const FileSizeLimit full(50'000);
    EXPECT_FALSE(WriteBackup(*store, copy).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_TRUE(WriteBackup(*store, copy).ok());
}

TEST_F(SqliteStoreTest, MissingFolderIsReported) {
  const absl::Status status = SqliteStore::Open({.path = folder_ / "none/x.db"}).status();
  EXPECT_THAT(status, IsError(absl::StatusCode::kNotFound, "/none/x.db"));
}

TEST_F(SqliteStoreTest, ForeignFileIsRefused) {
  std::ofstream(path_) << std::string(8192, 'q');
  const absl::Status status = Open().status();
  EXPECT_THAT(status, IsError(absl::StatusCode::kDataLoss, path_));
}

TEST_F(SqliteStoreTest, DamagedFileIsReported) {
  {
    auto store = MustOpen();
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(store->Commit({Put(absl::StrCat("key", i), std::string(1000, 'v'))}).ok());
    }
  }
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path_));
  ASSERT_GT(size, 5 * 4096);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  // Damages the headers of all pages except that of the schema.
  for (std::streamoff page = 4096; page < size; page += 4096) {
    file.seekp(page);
    file << std::string(64, '\x5a');
  }
  file.close();
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "\n")) << status;
}

// SQLite reads such a file without an error.
TEST_F(SqliteStoreTest, FlippedBitOfARecordIsReported) {
  ASSERT_TRUE(MustOpen()->Commit({Put("run/run-1", std::string(100, 'v'))}).ok());
  std::string bytes = ReadFile(path_).value();
  const size_t value = bytes.find("vvvv");
  ASSERT_NE(value, std::string::npos);
  bytes[value] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(path_, bytes).ok());
  EXPECT_THAT(Open(), IsError(absl::StatusCode::kDataLoss, "'run/run-1' is damaged"));
  EXPECT_EQ(ReadFile(path_).value(), bytes) << "the file is unchanged";
}

TEST_F(SqliteStoreTest, OlderLayoutIsConverted) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database,
                         "CREATE TABLE record (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)"
                         "  WITHOUT ROWID;"
                         "INSERT INTO record VALUES ('a', x'0102');"
                         "PRAGMA user_version = 1",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  EXPECT_EQ(MustOpen()->Get("a").value(), "\x01\x02");
  EXPECT_EQ(MustOpen()->Get("a").value(), "\x01\x02") << "the second time without a conversion";
}

TEST_F(SqliteStoreTest, NewerLayoutIsRefused) {
  MustOpen();
  // user_version lies at byte 60 of the file, big-endian.
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(60);
  file.write("\0\0\0\x09", 4);
  file.close();
  const auto refused = Open();
  for (const std::string& part :
       {path_, std::string("layout 9 was written by a newer"), std::string("supports 2")}) {
    EXPECT_THAT(refused, IsError(absl::StatusCode::kFailedPrecondition, part));
  }
}

}  // namespace
}  // namespace cadre
