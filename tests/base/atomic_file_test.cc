#include "base/atomic_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/file.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

class AtomicFileTest : public ::testing::Test {
 protected:
  bool Exists(const std::string& path) const { return std::filesystem::exists(path); }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "f";
};

TEST_F(AtomicFileTest, CommitMakesFileVisible) {
  auto file = AtomicFile::Create(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("a").ok());
  ASSERT_TRUE(file->Append("").ok());
  ASSERT_TRUE(file->Append("bc").ok());
  EXPECT_FALSE(Exists(path_));
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(*ReadFile(path_), "abc");
  EXPECT_FALSE(Exists(path_ + ".new"));
}

TEST_F(AtomicFileTest, WithoutCommitKeepsOldFile) {
  ASSERT_TRUE(WriteFileAtomically(path_, "old").ok());
  {
    auto file = AtomicFile::Create(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Append("new").ok());
    EXPECT_TRUE(Exists(path_ + ".new"));
  }
  EXPECT_EQ(*ReadFile(path_), "old");
  EXPECT_FALSE(Exists(path_ + ".new"));
}

TEST_F(AtomicFileTest, MoveTransfersFile) {
  auto file = AtomicFile::Create(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  {
    AtomicFile moved = *std::move(file);
    ASSERT_TRUE(moved.Append("x").ok());
    ASSERT_TRUE(moved.Commit().ok());
  }
  EXPECT_EQ(*ReadFile(path_), "x");
}

}  // namespace
}  // namespace cadre
