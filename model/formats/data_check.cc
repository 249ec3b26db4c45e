#include "model/formats/data_check.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/formats/data_check_files.h"
#include "model/formats/idx.h"
#include "model/graph.h"
#include "tensor/shape.h"

namespace cadre {
namespace {

class IdxCheck {
 public:
  // `graph`: null if the model has problems.
  IdxCheck(const v1::IdxFiles& idx, const Graph* graph) : idx_(idx) {
    if (graph == nullptr || graph->takes_tokens()) return;
    const Shape& image = graph->input();
    sample_ = Shape{image[2], image[0], image[1]};
    classes_ = graph->classes();
  }

  std::vector<Problem> Run() {
    CheckSplit("train", idx_.train_images(), idx_.train_labels());
    CheckSplit("test", idx_.test_images(), idx_.test_labels());
    return std::move(problems_);
  }

 private:
  // A missing path is reported as a problem of the spec.
  void CheckSplit(const std::string& split, const std::string& images, const std::string& labels) {
    const std::string images_field = absl::StrCat("data.idx.", split, "_images");
    const std::string labels_field = absl::StrCat("data.idx.", split, "_labels");
    std::optional<int64_t> image_count;
    if (!images.empty()) image_count = CheckImages(images_field, images);
    if (labels.empty()) return;
    const std::optional<int64_t> label_count = CheckLabels(labels_field, labels);
    if (image_count && label_count && *image_count != *label_count) {
      Add(labels_field, labels,
          absl::StrCat("holds ", *label_count, " labels; ", images, " holds ", *image_count,
                       " images"));
    }
  }

  // The number of labels, if known.
  std::optional<int64_t> CheckImages(const std::string& field, const std::string& path) {
    const absl::StatusOr<std::vector<int64_t>> dims = CheckIdx(path);
    if (!dims.ok()) {
      problems_.push_back({field, std::string(dims.status().message())});
      return std::nullopt;
    }
    if (sample_ && !FitsSample(*dims)) {
      Add(field, path,
          absl::StrCat("holds ", Shape(*dims).ToString(), "; the model's input is ",
                       sample_->ToString(), " (channels, height, width) a sample"));
    }
    if (dims->front() == 0) Add(field, path, "holds no samples");
    return dims->front();
  }

  // In files, channels are the first dimension of a sample; optional for a single channel.
  bool FitsSample(const std::vector<int64_t>& dims) const {
    std::vector<int64_t> expected = sample_->dims();
    if (dims.size() == expected.size() && expected.front() == 1) expected.erase(expected.begin());
    return std::equal(dims.begin() + 1, dims.end(), expected.begin(), expected.end());
  }

  std::optional<int64_t> CheckLabels(const std::string& field, const std::string& path) {
    const absl::StatusOr<IdxArray> labels = ReadIdx(path);
    if (!labels.ok()) {
      problems_.push_back({field, std::string(labels.status().message())});
      return std::nullopt;
    }
    if (labels->dims.size() != 1) {
      Add(field, path,
          absl::StrCat("holds ", Shape(labels->dims).ToString(), "; labels are a list"));
      return std::nullopt;
    }
    const auto wrong = std::find_if(labels->data.begin(), labels->data.end(),
                                    [this](uint8_t label) { return label >= classes_; });
    if (classes_ > 0 && wrong != labels->data.end()) {
      Add(field, path,
          absl::StrCat("label ", static_cast<int>(*wrong), " of sample ",
                       wrong - labels->data.begin(), " is out of range; the model has ", classes_,
                       " classes, 0 to ", classes_ - 1));
    }
    return labels->dims.front();
  }

  void Add(const std::string& field, const std::string& path, const std::string& message) {
    problems_.push_back({field, absl::StrCat(path, ": ", message)});
  }

  const v1::IdxFiles& idx_;
  // Shape of a sample in files, [channels, height, width]. Unset if the model has problems.
  std::optional<Shape> sample_;
  int64_t classes_ = 0;
  std::vector<Problem> problems_;
};

}  // namespace

std::vector<Problem> FindDataProblems(const v1::RunSpec& spec) {
  const absl::StatusOr<Graph> model = Graph::FromModel(spec.model());
  const Graph* graph = model.ok() ? &*model : nullptr;
  std::vector<Problem> problems;
  switch (spec.data().source_case()) {
    case v1::Data::kIdx:
      return IdxCheck(spec.data().idx(), graph).Run();
    case v1::Data::kCifar10:
      CheckCifar10Files(spec.data().cifar10(), &problems);
      break;
    case v1::Data::kImageFolder:
      CheckImageFolders(spec.data().image_folder(), graph, &problems);
      break;
    case v1::Data::kTarShards:
      CheckTarShards(spec.data().tar_shards(), &problems);
      break;
    case v1::Data::kTokenFiles:
      CheckTokenFiles(spec.data().token_files(), graph, &problems);
      break;
    case v1::Data::kSynthetic:
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return problems;
}

}  // namespace cadre
