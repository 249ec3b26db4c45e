#include "model/formats/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "model/formats/checkpoint_manifest.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRun[] = "run-1.7f";

void Fill(const std::string& folder, const std::string& text = "x") {
  ASSERT_TRUE(MakeFolder(folder).ok());
  for (const char* name : {kModelFile, kOptimizerFile, kManifestFile}) {
    ASSERT_TRUE(WriteFileAtomically(absl::StrCat(folder, "/", name), text).ok());
  }
}

void Save(const std::string& directory, int64_t step, const std::string& text = "x") {
  auto draft = CheckpointDraft::Begin(directory, kRun, step);
  ASSERT_TRUE(draft.ok()) << draft.status();
  Fill(draft->path(), text);
  ASSERT_TRUE(draft->Publish().ok());
}

std::vector<int64_t> Steps(const std::string& directory) {
  const auto entries = ListCheckpoints(directory);
  EXPECT_TRUE(entries.ok()) << entries.status();
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : *entries) steps.push_back(entry.step);
  return steps;
}

TEST(CheckpointFolder, AppearsWhenPublished) {
  const TemporaryFolder folder;
  const std::string directory = folder / "a/b";  // created by Begin
  auto draft = CheckpointDraft::Begin(directory, kRun, 3);
  ASSERT_TRUE(draft.ok()) << draft.status();
  Fill(draft->path());
  EXPECT_THAT(Steps(directory), ElementsAre());
  EXPECT_EQ(NewestCheckpoint(directory).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(draft->Publish().ok());
  EXPECT_EQ(NewestCheckpoint(directory)->path, directory + "/step-3");
  EXPECT_EQ(draft->target(), directory + "/step-3");
  EXPECT_EQ(std::filesystem::status(directory + "/step-3").permissions(),
            std::filesystem::perms::owner_all);
}

TEST(CheckpointFolder, RemovesUnpublishedDrafts) {
  const TemporaryFolder folder;
  {
    auto draft = CheckpointDraft::Begin(folder.path(), kRun, 3);
    ASSERT_TRUE(draft.ok()) << draft.status();
    CheckpointDraft moved = *std::move(draft);
    Fill(moved.path());
    EXPECT_EQ(folder.Entries(), 1);
  }
  EXPECT_EQ(folder.Entries(), 0);
}

TEST(CheckpointFolder, NewestCompleteByNumber) {
  const TemporaryFolder folder;
  for (const int64_t step : {9, 100, 20}) Save(folder.path(), step);
  Fill(folder / "step-300.tmp-abc");  // a crash before the rename
  Fill(folder / "step-x");
  Fill(folder / "step-");
  Fill(folder / "step--5");
  Fill(folder / "step-99999999999999999999");
  Fill(folder / "other");
  Fill(folder / "step-400");
  std::filesystem::remove(folder / "step-400/manifest.textproto");
  Fill(folder / "step-500");
  std::filesystem::remove(folder / "step-500/model.safetensors");
  ASSERT_TRUE(WriteFileAtomically(folder / "step-600", "a file").ok());
  EXPECT_THAT(Steps(folder.path()), ElementsAre(9, 20, 100));
  EXPECT_EQ(NewestCheckpoint(folder.path())->step, 100);
}

TEST(CheckpointFolder, BeginRemovesLeftovers) {
  const TemporaryFolder folder;
  Save(folder.path(), 1);
  Fill(folder / "step-2.tmp-run-1.7f-abcdef");
  Fill(folder / "step-1.tmp-run-1.7f-remove");
  const std::vector<std::string> others = {"mine.tmp-run-1.7f-abcdef", "step-2.tmp-run-2.7f-abcdef",
                                           "step-2.tmp-run-1.7f-b-abcdef", "step-2.tmp-abcdef"};
  for (const std::string& other : others) Fill(folder / other);
  Save(folder.path(), 3);
  EXPECT_THAT(Steps(folder.path()), ElementsAre(1, 3));
  EXPECT_EQ(folder.Entries(), 6);
  for (const std::string& other : others) {
    EXPECT_TRUE(std::filesystem::exists(folder / other)) << other;
  }
}

TEST(CheckpointFolder, ReplacesEqualStep) {
  const TemporaryFolder folder;
  Save(folder.path(), 5, "old");
  Save(folder.path(), 5, "new");
  EXPECT_EQ(*ReadFile(folder / "step-5/model.safetensors"), "new");
  EXPECT_EQ(folder.Entries(), 1);
}

TEST(CheckpointFolder, AsideIsValidUntilReplaced) {
  const TemporaryFolder folder;
  Fill(folder / "step-5.aside", "old");  // a crash between two renames
  EXPECT_THAT(Steps(folder.path()), ElementsAre(5));
  EXPECT_EQ(NewestCheckpoint(folder.path())->path, folder / "step-5.aside");
  Save(folder.path(), 6);
  EXPECT_EQ(NewestCheckpoint(folder.path())->step, 6);
  EXPECT_EQ(*ReadFile(folder / "step-5/model.safetensors"), "old");
  Fill(folder / "step-5.aside", "older");  // a crash before it was removed
  EXPECT_THAT(Steps(folder.path()), ElementsAre(5, 6));
  Save(folder.path(), 7);
  EXPECT_EQ(*ReadFile(folder / "step-5/model.safetensors"), "old");
  EXPECT_EQ(folder.Entries(), 3);
}

TEST(CheckpointFolder, KeepsTheNewestOfItsRun) {
  const TemporaryFolder folder;
  const std::string run = "format_version: 1 run: 'a'";
  for (const int64_t step : {1, 2, 3, 10}) Save(folder.path(), step, run);
  ASSERT_TRUE(PruneCheckpoints(folder.path(), "a", 5, 10).ok());
  EXPECT_THAT(Steps(folder.path()), ElementsAre(1, 2, 3, 10));
  ASSERT_TRUE(PruneCheckpoints(folder.path(), "a", 2, 10).ok());
  EXPECT_THAT(Steps(folder.path()), ElementsAre(3, 10));
  EXPECT_EQ(folder.Entries(), 2);
  // A run that continues from an earlier step keeps the checkpoint that it has just written.
  Save(folder.path(), 2, run);
  ASSERT_TRUE(PruneCheckpoints(folder.path(), "a", 1, 2).ok());
  EXPECT_THAT(Steps(folder.path()), ElementsAre(2, 10));
  // Checkpoints of other runs and unreadable ones are not removed.
  Save(folder.path(), 1, "not a manifest");
  Save(folder.path(), 11, "format_version: 1 run: 'b'");
  ASSERT_TRUE(PruneCheckpoints(folder.path(), "b", 1, 11).ok());
  EXPECT_THAT(Steps(folder.path()), ElementsAre(1, 2, 10, 11));
  const auto owned = CheckpointsByOwner(folder.path(), "b");
  ASSERT_TRUE(owned.ok()) << owned.status();
  EXPECT_EQ(owned->mine.size(), 1U);
  EXPECT_EQ(owned->others.size(), 3U);
}

TEST(CheckpointFolder, ResolvesFileFolderDirectory) {
  const TemporaryFolder folder;
  Save(folder.path(), 4);
  Save(folder.path(), 8);
  EXPECT_EQ(*ResolveCheckpoint(folder / "step-4"), folder / "step-4");
  EXPECT_EQ(*ResolveCheckpoint(folder.path()), folder / "step-8");
  EXPECT_EQ(*ResolveCheckpoint("any/where.safetensors"), "any/where.safetensors");
  const absl::Status status = ResolveCheckpoint(folder / "missing").status();
  EXPECT_THAT(status, IsError(absl::StatusCode::kNotFound, folder / "missing"));
}

// A run that names a path cannot reach files beyond the roots, nor learn whether they exist.
TEST(CheckpointFolder, StaysBeneathRoots) {
  const TemporaryFolder folder;
  Save(folder / "outside", 1);
  ASSERT_TRUE(MakeFolder(folder / "root/step-2").ok());
  for (const char* name : {kModelFile, kOptimizerFile, kManifestFile}) {
    std::filesystem::create_symlink(folder / "outside/step-1" + "/" + name,
                                    folder / "root/step-2" + "/" + name);
  }
  const RootedFiles files = RootedFiles::Open("--checkpoint-root", {folder / "root"}).value();
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  for (const std::string& path : {folder / "outside", folder / "outside/step-1", folder / "missing",
                                  folder / "root/../outside"}) {
    EXPECT_THAT(ResolveCheckpoint(path, files), IsError(kDenied, "--checkpoint-root"));
    EXPECT_THAT(CheckpointDraft::Begin(path, kRun, 1, files),
                IsError(kDenied, "--checkpoint-root"));
    EXPECT_EQ(PruneCheckpoints(path, kRun, 1, 0, files).code(), kDenied);
  }
  const std::string linked = ResolveCheckpoint(folder / "root", files).value();
  EXPECT_THAT(ReadManifest(linked + "/" + kManifestFile, files),
              IsError(kDenied, "leads out of --checkpoint-root"));
  EXPECT_TRUE(CheckpointDraft::Begin(folder / "root/new", kRun, 1, files).ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "missing"));
}

// Rank 0 chooses the checkpoint, and the other hosts open it by the path that rank 0 sends. The
// root is a link to another folder there.
TEST(CheckpointFolder, RootMayBeAnotherLinkOnEachHost) {
  const TemporaryFolder folder;
  for (const char* mount : {"mount-a", "mount-b"}) {
    Save(folder / mount + "/run", 4);
    std::filesystem::create_symlink("step-4", folder / mount + "/run/best");
  }
  std::filesystem::create_symlink("mount-a", folder / "shared");
  const RootedFiles here = RootedFiles::Open("--checkpoint-root", {folder / "shared"}).value();
  std::vector<std::string> chosen;
  for (const char* from : {"shared/run", "shared/run/step-4", "shared/run/best"}) {
    chosen.push_back(ResolveCheckpoint(folder / from, here).value());
  }
  EXPECT_THAT(chosen, Each(folder / "shared/run/step-4"));
  std::filesystem::remove(folder / "shared");
  std::filesystem::create_symlink("mount-b", folder / "shared");
  const RootedFiles there = RootedFiles::Open("--checkpoint-root", {folder / "shared"}).value();
  for (const std::string& path : chosen) {
    EXPECT_THAT(ReadFile(path + "/" + kModelFile, 1 << 10, there), IsOk());
  }
}

TEST(CheckpointFolder, RefusesInvalidDirectory) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "file", "x").ok());
  const absl::Status status = CheckpointDraft::Begin(folder / "file", kRun, 1).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder / "file"));
}

}  // namespace
}  // namespace cadre
