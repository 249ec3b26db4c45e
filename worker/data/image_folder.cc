// Image folders: one folder per class, as in ImageNet. Classes and files are sorted by name, so
// that every host assigns the same labels and indices.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "model/formats/class_folders.h"
#include "worker/data/dataset_kinds.h"
#include "worker/data/jpeg_dataset.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// The entries of the folder of a class.
struct ClassFiles {
  // Names of JPEG files, sorted.
  std::vector<std::string> jpegs;
  // Names of images in other formats, which are samples that cannot be read.
  std::vector<std::string> other_images;
};

bool IsImageName(const std::string& name) { return IsJpegName(name) || IsOtherImageName(name); }

// Counts a folder inside the folder of a class: by the images in it and its own folders, whose
// links are not followed, or as a folder.
void CountFolder(const fs::directory_entry& folder, UnusedEntries& unused) {
  int64_t images = 0;
  std::error_code error;
  // What cannot be listed is counted as a folder.
  fs::recursive_directory_iterator entry;
  if (!folder.is_symlink(error)) entry = fs::recursive_directory_iterator(folder.path(), error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    images += IsImageName(entry->path().filename().string());
  }
  if (images > 0) {
    unused["images in folders of class folders"] += images;
  } else {
    ++unused["folders in class folders"];
  }
}

// Files are selected by name alone; the decoder reports those that contain no JPEG image. Adds the
// other entries to `unused`.
absl::StatusOr<ClassFiles> ListClass(const std::string& folder, const RootedFiles& files,
                                     UnusedEntries& unused) {
  ClassFiles listed;
  const auto add = [&](const fs::directory_entry& entry) {
    std::string name = entry.path().filename().string();
    std::error_code error;
    if (IsJpegName(name)) {
      listed.jpegs.push_back(std::move(name));
    } else if (IsOtherImageName(name)) {
      listed.other_images.push_back(std::move(name));
    } else if (entry.is_directory(error)) {
      CountFolder(entry, unused);
    } else {
      ++unused[EntryKind(name)];
    }
    return absl::OkStatus();
  };
  CADRE_RETURN_IF_ERROR(VisitEntries(folder, files, add));
  std::sort(listed.jpegs.begin(), listed.jpegs.end());
  std::sort(listed.other_images.begin(), listed.other_images.end());
  return listed;
}

// Other files there, such as a list of the classes, describe the data set.
absl::Status CountImagesBeside(const std::string& folder, const RootedFiles& files,
                               UnusedEntries& unused) {
  return VisitEntries(folder, files, [&](const fs::directory_entry& entry) {
    std::error_code error;
    const bool image = IsImageName(entry.path().filename().string());
    if (image && !entry.is_directory(error)) ++unused["images beside the class folders"];
    return absl::OkStatus();
  });
}

class FolderImages final : public EncodedImages {
 public:
  FolderImages(std::string folder, std::vector<std::string> classes, const RootedFiles& files)
      : folder_(std::move(folder)), classes_(std::move(classes)), files_of_run_(files) {}

  void Add(int32_t label, std::string file) {
    labels_.push_back(label);
    files_.push_back(std::move(file));
  }

  const std::vector<int32_t>& labels() const override { return labels_; }
  std::string Name(int64_t index) const override {
    return absl::StrCat(folder_, "/", classes_[labels_[index]], "/", files_[index]);
  }
  absl::StatusOr<std::string> Read(int64_t index) const override {
    return ReadFile(Name(index), kMaxEncodedBytes, files_of_run_);
  }

 private:
  const std::string folder_;
  // By label.
  const std::vector<std::string> classes_;
  std::vector<int32_t> labels_;
  std::vector<std::string> files_;
  const RootedFiles files_of_run_;
};

// Adds the samples of a class. Errors: InvalidArgument if it has none, because the network would
// have a class that it never sees.
absl::Status AddClass(const std::string& folder, int32_t label, const RootedFiles& files,
                      FolderImages& images, CorruptSamples& corrupt, UnusedEntries& unused) {
  UnusedEntries unused_here;
  CADRE_ASSIGN_OR_RETURN(ClassFiles listed, ListClass(folder, files, unused_here));
  for (const std::string& file : listed.other_images) {
    CADRE_RETURN_IF_ERROR(
        corrupt.Add(absl::StrCat(folder, "/", file),
                    absl::InvalidArgumentError("it is not a JPEG file, which alone is read")));
  }
  if (listed.jpegs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "class folder ", folder, " holds no JPEG files", unused_here.empty() ? "" : ", but ",
        ToText(unused_here), "; remove it, or add images to it"));
  }
  for (std::string& file : listed.jpegs) images.Add(label, std::move(file));
  for (const auto& [kind, count] : unused_here) unused[kind] += count;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::ImageFolder& data, Split split,
                                                         const DatasetNeeds& needs) {
  CADRE_ASSIGN_OR_RETURN(
      const ImageTransform transform,
      ImageTransform::Make(data.augmentation(), needs.sample_shape, split, needs.seed));
  // The training folders determine the numbers of the classes, even if the test split lacks some of
  // them.
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> classes,
                         ListClassFolders(data.train(), needs.files));
  if (std::ssize(classes) > needs.classes) {
    return absl::InvalidArgumentError(absl::StrCat(data.train(), ": holds ", classes.size(),
                                                   " class folders, but the model has ",
                                                   needs.classes, " classes"));
  }
  const std::string& folder = split == Split::kTrain ? data.train() : data.test();
  std::vector<std::string> present = classes;
  if (split == Split::kTest) {
    CADRE_ASSIGN_OR_RETURN(present, ListClassFolders(folder, needs.files));
  }
  if (const std::string* unknown = FindUnknownClass(present, classes); unknown != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": has a class folder ", *unknown,
                                                   ", which is missing in ", data.train()));
  }
  auto images = std::make_unique<FolderImages>(folder, classes, needs.files);
  auto corrupt = std::make_unique<CorruptSamples>(needs.corrupt_allowed);
  UnusedEntries unused;
  CADRE_RETURN_IF_ERROR(CountImagesBeside(folder, needs.files, unused));
  if (present.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": holds no JPEG files in class folders",
                                                   unused.empty() ? "" : ", but ", ToText(unused)));
  }
  for (const std::string& name : present) {
    const int32_t label = std::lower_bound(classes.begin(), classes.end(), name) - classes.begin();
    CADRE_RETURN_IF_ERROR(
        AddClass(absl::StrCat(folder, "/", name), label, needs.files, *images, *corrupt, unused));
  }
  return MakeJpegDataset(std::move(images), transform, std::move(corrupt), unused);
}

}  // namespace cadre
