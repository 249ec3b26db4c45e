// Tar shards, the format of WebDataset: archives of pairs KEY.jpg (or .jpeg) and KEY.cls, the label
// in decimal digits.
//
// Opening a shard reads its headers and labels, and keeps the offset and size of each image. Names
// are not kept, because there may be millions of them and few are ever printed; these are read
// again. A shard is opened for every sample, because there may be more shards than file
// descriptors.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/shard_names.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset_kinds.h"
#include "worker/data/jpeg_dataset.h"
#include "worker/data/tar.h"
#include "worker/data/tar_index.h"

namespace cadre {
namespace {

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

// Adds the samples of one shard, and those that are unusable to `corrupt`.
absl::Status AddSamples(const TarIndex& index, const std::string& name, int64_t shard,
                        int64_t classes, TarImages& images, CorruptSamples& corrupt) {
  for (const auto& [key, why] : index.unusable) {
    CADRE_RETURN_IF_ERROR(corrupt.Add(absl::StrCat(name, ": ", key), why));
  }
  for (const TarSample& sample : index.samples) {
    if (sample.label >= classes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", sample.key, ": label ", sample.label,
                       " is out of range; the model has ", classes, " classes"));
    }
    images.Add(
        {.shard = shard, .header = sample.header, .begin = sample.begin, .size = sample.size},
        sample.label);
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
  UnusedEntries unused;
  for (int64_t shard = 0; shard < paths.size(); ++shard) {
    CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source,
                           OpenByteSource(paths[shard], needs.files));
    CADRE_ASSIGN_OR_RETURN(const TarIndex index, IndexTarShard(*source));
    CADRE_RETURN_IF_ERROR(
        AddSamples(index, source->name(), shard, needs.classes, *images, *corrupt));
    for (const auto& [kind, count] : index.unused) unused[kind] += count;
  }
  if (images->labels().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(range, ": holds no pairs KEY.jpg, KEY.cls"));
  }
  return MakeJpegDataset(std::move(images), transform, std::move(corrupt), unused);
}

}  // namespace cadre
