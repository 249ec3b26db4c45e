// Image folders: one folder per class, as in ImageNet. Classes and files are sorted by name, so
// that every host assigns the same labels and indices.
#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
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
  // Folders and other files.
  int64_t unused = 0;
};

// Files are selected by name alone; the decoder reports those that contain no JPEG image.
absl::StatusOr<ClassFiles> ListClass(const std::string& folder, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const std::string resolved, files.Resolve(folder));
  ClassFiles listed;
  std::error_code error;
  fs::directory_iterator entry(resolved, error);
  // increment() in place of ++, which would throw.
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (IsJpegName(name)) {
      listed.jpegs.push_back(std::move(name));
    } else if (IsOtherImageName(name)) {
      listed.other_images.push_back(std::move(name));
    } else {
      ++listed.unused;
    }
  }
  if (error) return ErrnoStatus(error.value(), "list", folder);
  std::sort(listed.jpegs.begin(), listed.jpegs.end());
  std::sort(listed.other_images.begin(), listed.other_images.end());
  return listed;
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
  int64_t unused = 0;
  for (const std::string& name : present) {
    const int32_t label = std::lower_bound(classes.begin(), classes.end(), name) - classes.begin();
    const std::string path = absl::StrCat(folder, "/", name);
    CADRE_ASSIGN_OR_RETURN(ClassFiles files, ListClass(path, needs.files));
    for (const std::string& file : files.other_images) {
      CADRE_RETURN_IF_ERROR(
          corrupt->Add(absl::StrCat(path, "/", file),
                       absl::InvalidArgumentError("it is not a JPEG file, which alone is read")));
    }
    for (std::string& file : files.jpegs) images->Add(label, std::move(file));
    unused += files.unused;
  }
  LOG_IF(WARNING, unused > 0) << folder << ": " << Counted(unused, "entry", "entries")
                              << " of class folders that are not images are not used";
  if (images->labels().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": holds no JPEG files in class folders"));
  }
  return MakeJpegDataset(std::move(images), transform, std::move(corrupt));
}

}  // namespace cadre
