#include "base/rooted_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using ::testing::HasSubstr;

class RootedFilesTest : public ::testing::Test {
 protected:
  RootedFilesTest() {
    fs::create_directories(folder_ / "root/in");
    fs::create_directories(folder_ / "rooted");
    folder_.Write("root/in/data", "inside");
    folder_.Write("secret", "outside");
    folder_.Write("rooted/data", "outside");
    files_ = RootedFiles::Open("--data-root", {folder_ / "root"}).value();
  }
  absl::StatusOr<std::string> Read(const std::string& name) {
    return ReadFile(folder_ / name, kMaxReadBytes, *files_);
  }
  void Link(const std::string& target, const std::string& name) {
    fs::create_symlink(target, folder_ / name);
  }

  TemporaryFolder folder_;
  std::optional<RootedFiles> files_;
};

TEST_F(RootedFilesTest, ReadsBeneathRoot) {
  EXPECT_EQ(Read("root/in/data").value(), "inside");
  EXPECT_EQ(Read("./root//in/../in/data").value(), "inside");
  Link("in", "root/link");
  EXPECT_EQ(Read("root/link/data").value(), "inside");
  Link("../in/data", "root/in/second");
  EXPECT_EQ(Read("root/in/second").value(), "inside");
  EXPECT_EQ(Read("root/in/missing").status().code(), StatusCode::kNotFound);
}

TEST_F(RootedFilesTest, RefusesOutside) {
  Link("../secret", "root/link");
  Link(folder_ / "secret", "root/absolute");
  Link("../..", "root/up");
  Link("/proc/self", "root/proc");
  for (const char* name : {"secret", "rooted/data", "root/../secret", "root/in/../../secret",
                           "root/link", "root/absolute", "root/up/secret", "root/proc/environ"}) {
    EXPECT_THAT(Read(name), IsError(StatusCode::kPermissionDenied, "--data-root")) << name;
    EXPECT_THAT(files_->Resolve(folder_ / name),
                IsError(StatusCode::kPermissionDenied, "--data-root"))
        << name;
  }
  for (const char* path : {"/proc/self/environ", "/etc/passwd", "/", "", "data"}) {
    EXPECT_THAT(ReadFile(path, kMaxReadBytes, *files_),
                IsError(StatusCode::kPermissionDenied, "--data-root"))
        << path;
  }
}

// Links of /proc lead anywhere, although their text may look as if it were beneath the root.
TEST_F(RootedFilesTest, RefusesMagicLinks) {
  const RootedFiles proc = RootedFiles::Open("--data-root", {"/proc/self"}).value();
  EXPECT_THAT(ReadFile("/proc/self/exe", kMaxReadBytes, proc),
              IsError(StatusCode::kPermissionDenied, "leads out of --data-root"));
}

TEST_F(RootedFilesTest, RefusesAllWithoutRoots) {
  const RootedFiles none = RootedFiles::Open("--data-root", {}).value();
  EXPECT_THAT(ReadFile(folder_ / "secret", kMaxReadBytes, none),
              IsError(StatusCode::kPermissionDenied, "--data-root names no folder"));
  EXPECT_THAT(none.MakeFolder(folder_ / "new"),
              IsError(StatusCode::kPermissionDenied, "--data-root names no folder"));
}

TEST_F(RootedFilesTest, SeveralRoots) {
  const RootedFiles both =
      RootedFiles::Open("--data-root", {folder_ / "rooted", folder_ / "root"}).value();
  EXPECT_TRUE(ReadFile(folder_ / "rooted/data", kMaxReadBytes, both).ok());
  EXPECT_TRUE(ReadFile(folder_ / "root/in/data", kMaxReadBytes, both).ok());
  EXPECT_FALSE(ReadFile(folder_ / "secret", kMaxReadBytes, both).ok());
}

// A data set of links: to folders and files of another root, absolute or not, in several steps.
TEST_F(RootedFilesTest, FollowsLinksToOtherRoots) {
  const RootedFiles both =
      RootedFiles::Open("--data-root", {folder_ / "rooted", folder_ / "root"}).value();
  fs::create_directories(folder_ / "rooted/deep/down");
  Link(folder_ / "rooted", "root/absolute");
  Link("../rooted", "root/relative");
  Link("../../rooted/data", "root/in/file");
  Link(folder_ / "root/in", "rooted/back");
  Link(folder_ / "root/in/data", "root/within");
  Link("../../../root/absolute/data", "rooted/deep/down/chain");
  for (const char* name : {"root/absolute/data", "root/relative/data", "root/in/file",
                           "rooted/deep/down/chain", "rooted/back/file"}) {
    EXPECT_EQ(ReadFile(folder_ / name, kMaxReadBytes, both).value(), "outside") << name;
    EXPECT_EQ(both.Resolve(folder_ / name).value(), fs::canonical(folder_ / "rooted/data").string())
        << name;
  }
  for (const char* name : {"rooted/back/data", "root/within"}) {
    EXPECT_EQ(ReadFile(folder_ / name, kMaxReadBytes, both).value(), "inside") << name;
  }
  // Without the other root, these links lead out.
  for (const char* name : {"root/absolute/data", "root/in/file"}) {
    EXPECT_THAT(Read(name), IsError(StatusCode::kPermissionDenied, "leads out of --data-root"));
  }
}

// Only links are followed out of a root, and only to other roots.
TEST_F(RootedFilesTest, LinksToOtherRootsLeadNowhereElse) {
  const RootedFiles both =
      RootedFiles::Open("--data-root", {folder_ / "rooted", folder_ / "root"}).value();
  Link(folder_ / "rooted", "root/absolute");
  Link(folder_ / "secret", "rooted/secret");
  Link(folder_ / "rooted/secret", "root/two");
  Link(folder_ / "missing", "root/dangling");
  for (const char* name : {"root/../rooted/data", "root/absolute/../rooted/data", "rooted/secret",
                           "root/two", "root/dangling", "root/absolute/secret"}) {
    EXPECT_THAT(ReadFile(folder_ / name, kMaxReadBytes, both),
                IsError(StatusCode::kPermissionDenied, "leads out of --data-root"))
        << name;
    EXPECT_THAT(both.Resolve(folder_ / name),
                IsError(StatusCode::kPermissionDenied, "leads out of --data-root"))
        << name;
  }
}

// The operator may name a root by a link; runs may use its path with and without it. Paths keep the
// form of the root that they had, and lose all other links.
TEST_F(RootedFilesTest, RootMayBeLink) {
  Link("root", "alias");
  const RootedFiles files = RootedFiles::Open("--data-root", {folder_ / "alias"}).value();
  EXPECT_TRUE(ReadFile(folder_ / "alias/in/data", kMaxReadBytes, files).ok());
  Link("in", "root/inner");
  for (const std::string root : {"alias", "root"}) {
    EXPECT_EQ(files.Resolve(folder_ / root).value(), folder_ / root);
    const std::string resolved = files.Resolve(folder_ / root + "/inner").value();
    EXPECT_EQ(resolved, folder_ / root + "/in");
    EXPECT_TRUE(ReadFile(resolved + "/data", kMaxReadBytes, files).ok());
  }
}

TEST_F(RootedFilesTest, MakesFolders) {
  const std::string made = files_->MakeFolder(folder_ / "root/a/b").value();
  EXPECT_EQ(made, fs::canonical(folder_ / "root/a/b").string());
  EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all);
  EXPECT_EQ(files_->MakeFolder(folder_ / "root/a/b").value(), made);
  EXPECT_TRUE(files_->MakeFolder(folder_ / "root").ok());
  Link("..", "root/up");
  for (const char* name : {"new", "root/../new", "root/up/new", "root/x/../../new"}) {
    EXPECT_THAT(files_->MakeFolder(folder_ / name),
                IsError(StatusCode::kPermissionDenied, "--data-root"))
        << name;
  }
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  EXPECT_FALSE(files_->MakeFolder(folder_ / "root/in/data/x").ok());
}

TEST_F(RootedFilesTest, RootMustExist) {
  EXPECT_THAT(RootedFiles::Open("--data-root", {folder_ / "missing"}),
              IsError(StatusCode::kNotFound, "cannot open --data-root"));
}

}  // namespace
}  // namespace cadre
