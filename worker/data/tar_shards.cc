// Tar shards, the format of WebDataset: archives of pairs KEY.jpg (or .jpeg) and KEY.cls, the label
// in decimal digits.
//
// Opening a shard reads its headers and labels, and keeps the offset and size of each image. Names
// are not kept, because there may be millions of them and few are ever printed; these are read
// again. A shard is opened for every sample, because there may be more shards than file
// descriptors.
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/shard_names.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset_kinds.h"
#include "worker/data/jpeg_dataset.h"
#include "worker/data/tar.h"

namespace cadre {
namespace {

// A label has at most ten digits; the rest is room for white space.
constexpr int64_t kMaxLabelBytes = 32;

// Where a sample's image is in its shard.
struct ImageEntry {
  int64_t shard = 0;
  // Offset of the member's first header, from which its name can be read.
  int64_t header = 0;
  int64_t begin = 0;
  int64_t size = 0;
};

class TarImages final : public EncodedImages {
 public:
  TarImages(ShardNames shards, const RootedFiles& files)
      : shards_(std::move(shards)), files_(files) {}

  void Add(const ImageEntry& entry, int32_t label) {
    entries_.push_back(entry);
    labels_.push_back(label);
  }

  const std::vector<int32_t>& labels() const override { return labels_; }

  std::string Name(int64_t index) const override {
    const ImageEntry& entry = entries_[index];
    const std::string shard = shards_[entry.shard];
    const absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenByteSource(shard, files_);
    if (source.ok()) {
      const absl::StatusOr<std::optional<TarMember>> member =
          TarScanner(**source, entry.header).Next();
      if (member.ok() && member->has_value()) return absl::StrCat(shard, ": ", (*member)->name);
    }
    return absl::StrCat(shard, ": member at offset ", entry.header);
  }

  absl::StatusOr<std::string> Read(int64_t index) const override {
    const ImageEntry& entry = entries_[index];
    if (entry.size > kMaxEncodedBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", entry.size, " bytes; at most ", kMaxEncodedBytes, " are allowed"));
    }
    CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source,
                           OpenByteSource(shards_[entry.shard], files_));
    return source->ReadText({entry.begin, entry.begin + entry.size});
  }

 private:
  const ShardNames shards_;
  const RootedFiles files_;
  std::vector<ImageEntry> entries_;
  std::vector<int32_t> labels_;
};

absl::StatusOr<int32_t> ReadLabel(const ByteSource& source, const TarMember& member) {
  if (member.size > kMaxLabelBytes) {
    return absl::DataLossError(absl::StrCat("its label has ", member.size, " bytes"));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string text,
                         source.ReadText({member.begin, member.begin + member.size}));
  int32_t label = 0;
  if (!absl::SimpleAtoi(text, &label) || label < 0) {
    return absl::DataLossError("its label is not a number");
  }
  return label;
}

// The pairs of one shard, in the order of their images.
class ShardIndex {
 public:
  ShardIndex(const ByteSource& source, int64_t shard) : source_(source), shard_(shard) {}

  absl::Status Scan();
  // Samples without a label, or with an invalid one, are added to `corrupt`.
  absl::Status AddTo(int64_t classes, TarImages& images, CorruptSamples& corrupt) const;

 private:
  const ByteSource& source_;
  const int64_t shard_;
  std::vector<std::pair<std::string, ImageEntry>> images_;
  std::map<std::string, absl::StatusOr<int32_t>> labels_;
};

absl::Status ShardIndex::Scan() {
  TarScanner scanner(source_);
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const std::optional<TarMember> member, scanner.Next());
    if (!member) return absl::OkStatus();
    if (!member->is_file) continue;
    const size_t dot = member->name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string key = member->name.substr(0, dot);
    if (IsJpegName(member->name)) {
      images_.emplace_back(key, ImageEntry{.shard = shard_,
                                           .header = member->header,
                                           .begin = member->begin,
                                           .size = member->size});
    } else if (absl::string_view(member->name).substr(dot) == ".cls") {
      labels_.insert_or_assign(key, ReadLabel(source_, *member));
    }
  }
}

absl::Status ShardIndex::AddTo(int64_t classes, TarImages& images, CorruptSamples& corrupt) const {
  for (const auto& [key, image] : images_) {
    const std::string name = absl::StrCat(source_.name(), ": ", key);
    const auto found = labels_.find(key);
    absl::StatusOr<int32_t> label = absl::DataLossError("it has no member .cls");
    if (found != labels_.end()) label = found->second;
    if (!label.ok()) {
      CADRE_RETURN_IF_ERROR(corrupt.Add(name, label.status()));
      continue;
    }
    if (*label >= classes) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": label ", *label, " is out of range; the model has ", classes, " classes"));
    }
    images.Add(image, *label);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenTarShards(const v1::TarShards& data, Split split,
                                                       const DatasetNeeds& needs) {
  CADRE_ASSIGN_OR_RETURN(
      const ImageTransform transform,
      ImageTransform::Make(data.augmentation(), needs.sample_shape, split, needs.seed));
  const std::string& range = split == Split::kTrain ? data.train() : data.test();
  CADRE_ASSIGN_OR_RETURN(const ShardNames paths, ShardNames::Parse(range));
  auto images = std::make_unique<TarImages>(paths, needs.files);
  auto corrupt = std::make_unique<CorruptSamples>(needs.corrupt_allowed);
  for (int64_t shard = 0; shard < paths.size(); ++shard) {
    CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source,
                           OpenByteSource(paths[shard], needs.files));
    ShardIndex index(*source, shard);
    CADRE_RETURN_IF_ERROR(index.Scan());
    CADRE_RETURN_IF_ERROR(index.AddTo(needs.classes, *images, *corrupt));
  }
  if (images->labels().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(range, ": holds no pairs KEY.jpg, KEY.cls"));
  }
  return MakeJpegDataset(std::move(images), transform, std::move(corrupt));
}

}  // namespace cadre
