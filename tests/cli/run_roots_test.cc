// The roots of a local run contain every file that its paths lead to, also by links.
#include "cli/run_roots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/rooted_files.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

class RunRootsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name) {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    return folder_.Write(name, name);
  }
  void Link(const std::string& target, const std::string& name) {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    fs::create_symlink(target, folder_ / name);
  }
  std::string Read(const std::vector<std::string>& roots, const std::string& name) {
    const absl::StatusOr<RootedFiles> files = RootedFiles::Open("--data-root", roots);
    if (!files.ok()) return std::string(files.status().message());
    const auto text = ReadFile(folder_ / name, kMaxReadBytes, *files);
    return text.ok() ? *text : std::string(text.status().message());
  }

  TemporaryFolder folder_;
};

// Classes that are links, and classes of files that are links.
TEST_F(RunRootsTest, ImageFoldersOfLinks) {
  Write("all/a/0.jpg");
  Write("blobs/17");
  Write("blobs/18");
  Write("secret/0.jpg");
  Link(folder_ / "all/a", "subset/a");
  Link("../../blobs/17", "subset/b/0.jpg");
  Link("../../blobs/18", "subset/b/1.jpg");
  v1::Data data;
  data.mutable_image_folder()->set_train(folder_ / "subset");
  data.mutable_image_folder()->set_test(folder_ / "subset");
  const std::vector<std::string> roots = DataRoots(data);
  EXPECT_EQ(Read(roots, "subset/a/0.jpg"), "all/a/0.jpg");
  EXPECT_EQ(Read(roots, "subset/b/0.jpg"), "blobs/17");
  EXPECT_EQ(Read(roots, "subset/b/1.jpg"), "blobs/18");
  EXPECT_THAT(Read(roots, "secret/0.jpg"), ::testing::HasSubstr("is not beneath a folder"));
}

// A cache of downloads names its blobs by digest, and the files of a version are links to them.
TEST_F(RunRootsTest, FilesOfACache) {
  for (const char* blob : {"0a", "1b", "2c"}) Write(absl::StrCat("hub/blobs/", blob));
  Link("../../blobs/0a", "hub/snapshots/x/train-0.tar");
  Link("../../blobs/1b", "hub/snapshots/x/train-1.tar");
  Link("../../blobs/2c", "hub/snapshots/x/model.safetensors");
  v1::Data data;
  data.mutable_tar_shards()->set_train(folder_ / "hub/snapshots/x/train-{0..1}.tar");
  data.mutable_tar_shards()->set_test(folder_ / "hub/snapshots/x/train-0.tar");
  EXPECT_EQ(Read(DataRoots(data), "hub/snapshots/x/train-1.tar"), "hub/blobs/1b");
  data.mutable_token_files()->set_train(folder_ / "hub/snapshots/x/train-0.tar");
  EXPECT_EQ(Read(DataRoots(data), "hub/snapshots/x/train-0.tar"), "hub/blobs/0a");
  data.mutable_idx()->set_train_images(folder_ / "hub/snapshots/x/train-0.tar");
  EXPECT_EQ(Read(DataRoots(data), "hub/snapshots/x/train-0.tar"), "hub/blobs/0a");
  data.mutable_cifar10()->set_directory(folder_ / "hub/snapshots/x");
  EXPECT_EQ(Read(DataRoots(data), "hub/snapshots/x/train-0.tar"), "hub/blobs/0a");
  v1::Checkpoint checkpoint;
  checkpoint.set_from(folder_ / "hub/snapshots/x/model.safetensors");
  EXPECT_EQ(Read(CheckpointRoots(checkpoint).value(), "hub/snapshots/x/model.safetensors"),
            "hub/blobs/2c");
}

TEST_F(RunRootsTest, ManyTargetsAreNamedByTheirParents) {
  fs::create_directories(folder_ / "subset");
  for (size_t i = 0; i <= kMaxRoots; ++i) {
    Write(absl::StrCat("all/", i, "/0.jpg"));
    Link(absl::StrCat("../all/", i), absl::StrCat("subset/", i));
  }
  v1::Data data;
  data.mutable_image_folder()->set_train(folder_ / "subset");
  const std::vector<std::string> roots = DataRoots(data);
  EXPECT_LT(roots.size(), 10U);
  EXPECT_EQ(Read(roots, "subset/200/0.jpg"), "all/200/0.jpg");
}

TEST_F(RunRootsTest, PathsThatDoNotExistAddOnlyWhatTheyName) {
  Link("nowhere", "subset/dangling");
  v1::Data data;
  EXPECT_THAT(DataRoots(data), IsEmpty());
  data.mutable_image_folder()->set_train(folder_ / "subset");
  data.mutable_image_folder()->set_test(folder_ / "missing");
  EXPECT_THAT(DataRoots(data), Contains(folder_ / "missing"));
  EXPECT_THAT(DataRoots(data), Not(Contains(folder_ / "subset/dangling")));
  v1::Checkpoint checkpoint;
  checkpoint.set_directory(folder_ / "new/run");
  EXPECT_THAT(CheckpointRoots(checkpoint).value(), Contains(folder_ / "new/run"));
  EXPECT_TRUE(fs::is_directory(folder_ / "new/run"));
}

}  // namespace
}  // namespace cadre
