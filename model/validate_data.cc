#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/shard_names.h"
#include "model/validate.h"
#include "model/validation_parts.h"

namespace cadre {
namespace {

constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarChannels = 3;
constexpr int64_t kCifarClasses = 10;
// Limit of the padding; the usual value for CIFAR is 4.
constexpr uint32_t kMaxCropPadding = 1024;

class DataValidation : private SpecChecker {
 public:
  using SpecChecker::SpecChecker;

  std::vector<Problem> Run() {
    CheckSource();
    return std::move(problems_);
  }

 private:
  void CheckSource() {
    const v1::Data& data = spec_.data();
    switch (data.source_case()) {
      case v1::Data::kIdx:
        return CheckIdx(data.idx());
      case v1::Data::kSynthetic:
        return CheckSynthetic(data.synthetic());
      case v1::Data::kCifar10:
        return CheckCifar10(data.cifar10());
      case v1::Data::kImageFolder:
        return CheckJpegs("data.image_folder", data.image_folder().train(),
                          data.image_folder().test(), data.image_folder().augmentation());
      case v1::Data::kTarShards:
        CheckShardNames("data.tar_shards.train", data.tar_shards().train());
        CheckShardNames("data.tar_shards.test", data.tar_shards().test());
        return CheckJpegs("data.tar_shards", data.tar_shards().train(), data.tar_shards().test(),
                          data.tar_shards().augmentation());
      case v1::Data::kTokenFiles:
        return CheckTokenFiles(data.token_files());
      case v1::Data::SOURCE_NOT_SET:
        Add("data",
            "has no source; give idx, cifar10, image_folder, tar_shards, token_files or synthetic");
    }
  }

  // Adds a problem and returns false if the model requires tokens.
  bool NeedsImages(const std::string& field) {
    if (!graph_ || !graph_->takes_tokens()) return true;
    Add(field, "contains images, but the model requires tokens; give token_files or synthetic");
    return false;
  }

  void CheckIdx(const v1::IdxFiles& idx) {
    NeedsImages("data.idx");
    for (const auto& [field, path] : {std::pair{"train_images", &idx.train_images()},
                                      {"train_labels", &idx.train_labels()},
                                      {"test_images", &idx.test_images()},
                                      {"test_labels", &idx.test_labels()}}) {
      NeededPath(absl::StrCat("data.idx.", field), *path);
    }
    Finite("data.idx.mean", idx.mean());
    NotNegative("data.idx.stddev", idx.stddev());
  }

  void CheckSynthetic(const v1::SyntheticData& synthetic) {
    AtLeastOne("data.synthetic.train_samples", synthetic.train_samples());
    AtLeastOne("data.synthetic.test_samples", synthetic.test_samples());
    AtMost("data.synthetic.train_samples", synthetic.train_samples(), kMaxSyntheticSamples);
    AtMost("data.synthetic.test_samples", synthetic.test_samples(), kMaxSyntheticSamples);
    if (synthetic.classes() == 0) {
      Add("data.synthetic.classes", "is 0; it must be at least 1");
    } else if (graph_ && synthetic.classes() != graph_->classes()) {
      Add("data.synthetic.classes", "is ", synthetic.classes(), "; the model has ",
          graph_->classes(), " classes");
    } else if (graph_ && !graph_->takes_tokens()) {
      CheckCenters(synthetic.classes());
    }
    if (graph_ && graph_->takes_tokens()) {
      Fraction("data.synthetic.noise", synthetic.noise());
    } else {
      NotNegative("data.synthetic.noise", synthetic.noise());
    }
  }

  // Every worker stores all centers.
  void CheckCenters(int64_t classes) {
    const int64_t max_classes = kMaxCenterElements / graph_->input().elements();
    if (classes <= max_classes) return;
    Add("data.synthetic.classes", "is ", classes, ", each with a center of ",
        graph_->input().ToString(), "; all of them may have ", kMaxCenterElements,
        " elements together, so that at most ", max_classes,
        " classes of such images are possible");
  }

  // The format determines shape and classes, so the model must have the same shape and at least as
  // many classes.
  void CheckCifar10(const v1::Cifar10& cifar10) {
    NeededPath("data.cifar10.directory", cifar10.directory());
    if (NeedsImages("data.cifar10") && graph_) {
      const Shape cifar{kCifarSide, kCifarSide, kCifarChannels};
      if (graph_->input() != cifar) {
        Add("data.cifar10", "holds images of ", cifar.ToString(),
            " (height, width, channels), but the model takes ", graph_->input().ToString());
      }
      if (graph_->classes() < kCifarClasses) {
        Add("data.cifar10", "holds ", kCifarClasses, " classes, but the model has only ",
            graph_->classes());
      }
    }
    CheckAugmentation("data.cifar10.augmentation", cifar10.augmentation());
  }

  // JPEG images are decoded to 3 channels, or to 1 (grey), as the model requires.
  void CheckJpegs(const std::string& field, const std::string& train, const std::string& test,
                  const v1::Augmentation& augmentation) {
    if (NeedsImages(field) && graph_) {
      if (const int64_t channels = graph_->input()[2]; channels != 1 && channels != 3) {
        Add(field, "holds JPEG images of 3 channels (or 1, grey), but the model takes ", channels);
      }
    }
    NeededPath(field + ".train", train);
    NeededPath(field + ".test", test);
    CheckAugmentation(field + ".augmentation", augmentation);
  }

  void CheckShardNames(const std::string& field, const std::string& pattern) {
    const auto names = ShardNames::Parse(pattern);
    if (!names.ok()) Add(field, std::string(names.status().message()));
  }

  // Tokens are unsigned integers of 1, 2 or 4 bytes; 0 stands for the default of 2.
  void CheckTokenFiles(const v1::TokenFiles& files) {
    if (graph_ && !graph_->takes_tokens()) {
      Add("data.token_files",
          "contains tokens, but the model requires images; give the model `tokens`");
    }
    NeededPath("data.token_files.train", files.train());
    NeededPath("data.token_files.test", files.test());
    const uint32_t bytes = files.bytes_per_token();
    if (bytes == 3 || bytes > 4) {
      Add("data.token_files.bytes_per_token", "is ", bytes, "; it must be 1, 2 or 4");
    }
  }

  void CheckAugmentation(const std::string& field, const v1::Augmentation& augmentation) {
    AtMost(field + ".crop_padding", augmentation.crop_padding(), kMaxCropPadding);
    if (augmentation.random_resized_crop() && augmentation.crop_padding() > 0) {
      Add(field + ".crop_padding", "cannot be combined with random_resized_crop");
    }
    for (const bool is_mean : {true, false}) {
      const auto& values = is_mean ? augmentation.mean() : augmentation.stddev();
      const std::string list = field + (is_mean ? ".mean" : ".stddev");
      if (!values.empty() && graph_ && !graph_->takes_tokens() &&
          values.size() != graph_->input()[2]) {
        Add(list, "has ", values.size(), " numbers; the model's input has ", graph_->input()[2],
            " channels, give one for each, or none");
      }
      for (int i = 0; i < values.size(); ++i) {
        const std::string element = absl::StrCat(list, "[", i, "]");
        is_mean ? Finite(element, values[i]) : Positive(element, values[i]);
      }
    }
  }
};

}  // namespace

std::vector<Problem> DataProblems(const v1::RunSpec& spec, const Graph* graph) {
  return DataValidation(spec, graph).Run();
}

}  // namespace cadre
