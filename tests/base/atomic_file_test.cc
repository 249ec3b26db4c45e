#include "base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/file.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class AtomicFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "cadre_atomic_file_test_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/f";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  bool IsThere(const std::string& path) const { return std::filesystem::exists(path); }

  std::string folder_, path_;
};

TEST_F(AtomicFileTest, AppearsWholeWithCommit) {
  auto file = AtomicFile::Create(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("a").ok());
  ASSERT_TRUE(file->Append("").ok());
  ASSERT_TRUE(file->Append("bc").ok());
  EXPECT_FALSE(IsThere(path_));
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(*ReadFile(path_), "abc");
  EXPECT_FALSE(IsThere(path_ + ".new"));
}

TEST_F(AtomicFileTest, WithoutCommitTheOldStays) {
  ASSERT_TRUE(WriteFileAtomically(path_, "old").ok());
  {
    auto file = AtomicFile::Create(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Append("new").ok());
    EXPECT_TRUE(IsThere(path_ + ".new"));
  }
  EXPECT_EQ(*ReadFile(path_), "old");
  EXPECT_FALSE(IsThere(path_ + ".new"));
}

TEST_F(AtomicFileTest, MovingTakesTheFileAlong) {
  auto file = AtomicFile::Create(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  {
    AtomicFile moved = *std::move(file);
    ASSERT_TRUE(moved.Append("x").ok());
    ASSERT_TRUE(moved.Commit().ok());
  }
  EXPECT_EQ(*ReadFile(path_), "x");
}

TEST_F(AtomicFileTest, FullDiskIsSaidByName) {
  std::filesystem::create_symlink("/dev/full", path_ + ".new");
  auto file = AtomicFile::Create(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = file->Append("x");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(path_));
}

TEST_F(AtomicFileTest, MissingFolderIsNotFound) {
  EXPECT_EQ(AtomicFile::Create(folder_ + "/d/f").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace cadre
