// A root permits a path only if its links end beneath a root (base/rooted_files.h). Data sets are
// often made of links: the classes of a subset of ImageNet, or the files of a cache of downloads,
// which link to one folder of blobs. Links are therefore followed once, before the processes start:
// those of the paths that the run file names and, for folders of classes, those of the classes and
// of their files. Files of one folder mostly link to one folder, so only the first link to each
// folder is resolved.
#include "cli/run_roots.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "base/file.h"
#include "base/status.h"
#include "model/shard_names.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using Folders = std::set<std::string>;

std::string FolderOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

class Roots {
 public:
  // A file that a process opens, and its folder.
  void AddFile(const std::string& path) {
    if (path.empty()) return;
    named_.insert(FolderOf(path));
    AddTarget(path);
  }

  // A folder, and the links in it and in its folders up to `depth`.
  void AddFolder(const std::string& path, int depth) {
    if (path.empty()) return;
    named_.insert(path);
    AddTarget(path);
    AddLinksIn(path, depth);
  }

  std::vector<std::string> Take() {
    while (targets_.size() > kMaxRoots) {
      Folders parents;
      for (const std::string& folder : targets_) parents.insert(FolderOf(folder));
      targets_ = std::move(parents);
    }
    named_.insert(targets_.begin(), targets_.end());
    return {named_.begin(), named_.end()};
  }

 private:
  // The folder of what a path leads to, without links. What cannot be resolved is reported by the
  // process that opens it.
  void AddTarget(const fs::path& path) {
    std::error_code error;
    const fs::path target = fs::canonical(path, error);
    if (error) return;
    targets_.insert(fs::is_directory(target, error) ? target.string() : FolderOf(target));
  }

  void AddLinksIn(const fs::path& folder, int depth) {
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_symlink(ignored)) {
        const fs::path target = fs::read_symlink(entry->path(), ignored);
        if (fs::is_directory(entry->path(), ignored) ||
            seen_.insert(FolderOf(folder / target)).second) {
          AddTarget(entry->path());
        }
      }
      if (depth > 0 && entry->is_directory(ignored)) AddLinksIn(entry->path(), depth - 1);
    }
  }

  Folders named_;
  Folders targets_;
  // Folders of the links' texts.
  Folders seen_;
};

void AddShards(const std::string& range, Roots& roots) {
  // Invalid ranges are reported as problems of the spec.
  const absl::StatusOr<ShardNames> names = ShardNames::Parse(range);
  for (int64_t i = 0; names.ok() && i < names->size(); ++i) roots.AddFile((*names)[i]);
}

}  // namespace

std::vector<std::string> DataRoots(const v1::Data& data) {
  Roots roots;
  switch (data.source_case()) {
    case v1::Data::kIdx:
      for (const std::string& path : {data.idx().train_images(), data.idx().train_labels(),
                                      data.idx().test_images(), data.idx().test_labels()}) {
        roots.AddFile(path);
      }
      break;
    case v1::Data::kCifar10:
      roots.AddFolder(data.cifar10().directory(), 0);
      break;
    case v1::Data::kImageFolder:
      roots.AddFolder(data.image_folder().train(), 1);
      roots.AddFolder(data.image_folder().test(), 1);
      break;
    case v1::Data::kTarShards:
      AddShards(data.tar_shards().train(), roots);
      AddShards(data.tar_shards().test(), roots);
      break;
    case v1::Data::kTokenFiles:
      roots.AddFile(data.token_files().train());
      roots.AddFile(data.token_files().test());
      break;
    case v1::Data::kSynthetic:
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return roots.Take();
}

absl::StatusOr<std::vector<std::string>> CheckpointRoots(const v1::Checkpoint& checkpoint) {
  Roots roots;
  if (!checkpoint.directory().empty()) {
    CADRE_RETURN_IF_ERROR(MakeFolder(checkpoint.directory()));
    roots.AddFolder(checkpoint.directory(), 0);
  }
  std::error_code error;
  if (fs::is_directory(checkpoint.from(), error)) {
    roots.AddFolder(checkpoint.from(), 1);
  } else {
    roots.AddFile(checkpoint.from());
  }
  return roots.Take();
}

}  // namespace cadre
