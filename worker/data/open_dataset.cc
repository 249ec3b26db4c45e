#include "worker/data/open_dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/graph.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// Checks the fields of a synthetic data set against the model.
absl::Status CheckSynthetic(const v1::SyntheticData& data, int64_t classes) {
  if (data.classes() < 1 || data.classes() > classes) {
    return absl::InvalidArgumentError(absl::StrCat("data.synthetic.classes is ", data.classes(),
                                                   ", but the model has ", classes, " classes"));
  }
  if (data.train_samples() < 1 || data.test_samples() < 1) {
    return absl::InvalidArgumentError("data.synthetic needs train_samples and test_samples >= 1");
  }
  return absl::OkStatus();
}

// Number of tokens that all layers that consume the input accept.
int64_t Vocabulary(const Graph& graph) {
  int64_t vocabulary = graph.classes();
  for (const int i : graph.consumers(Graph::kInput)) {
    if (graph[i].kind != LayerKind::kEmbedding) continue;
    vocabulary = std::min<int64_t>(vocabulary, graph[i].settings.embedding().vocabulary());
  }
  return vocabulary;
}

absl::Status CheckKind(bool model_takes_tokens, bool data_is_tokens) {
  if (model_takes_tokens == data_is_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the data are ", data_is_tokens ? "tokens" : "images", ", but the model takes ",
                   model_takes_tokens ? "tokens" : "images"));
}

// Opens the data set without a check of its size.
absl::StatusOr<std::unique_ptr<Dataset>> OpenOfAnySize(const v1::RunSpec& spec, Split split,
                                                       const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  // A coordinator of another version may not have checked it.
  if (const int64_t labels = graph.takes_tokens() ? graph.input()[0] : 1;
      graph.labels_per_sample() > labels) {
    return absl::InvalidArgumentError(absl::StrCat("the loss takes the scores of ",
                                                   graph.labels_per_sample(),
                                                   " tokens; labels in a sample: ", labels));
  }
  const v1::Data& data = spec.data();
  const DatasetNeeds needs{.sample_shape = graph.input(),
                           .labels_per_sample = graph.labels_per_sample(),
                           .classes = graph.classes(),
                           .vocabulary = Vocabulary(graph),
                           .seed = spec.seed(),
                           .corrupt_allowed = data.corrupt_samples_allowed(),
                           .files = files};
  if (data.has_synthetic()) {
    CADRE_RETURN_IF_ERROR(CheckSynthetic(data.synthetic(), graph.classes()));
    return graph.takes_tokens() ? OpenSyntheticTokens(data.synthetic(), split, needs)
                                : OpenSyntheticImages(data.synthetic(), split, needs);
  }
  if (data.source_case() != v1::Data::SOURCE_NOT_SET) {
    CADRE_RETURN_IF_ERROR(CheckKind(graph.takes_tokens(), data.has_token_files()));
  }
  switch (data.source_case()) {
    case v1::Data::kIdx:
      return OpenIdxDataset(data.idx(), split, needs);
    case v1::Data::kCifar10:
      return OpenCifar10(data.cifar10(), split, needs);
    case v1::Data::kImageFolder:
      return OpenImageFolder(data.image_folder(), split, needs);
    case v1::Data::kTarShards:
      return OpenTarShards(data.tar_shards(), split, needs);
    case v1::Data::kTokenFiles:
      return OpenTokenFiles(data.token_files(), split, needs);
    case v1::Data::kSynthetic:
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("data: no source is given");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::RunSpec& spec, Split split,
                                                     const RootedFiles& files) {
  absl::StatusOr<std::unique_ptr<Dataset>> opened = OpenOfAnySize(spec, split, files);
  if (absl::IsPermissionDenied(opened.status())) {
    const google::protobuf::OneofDescriptor* const source =
        v1::Data::descriptor()->FindOneofByName("source");
    const auto* const field =
        v1::Data::GetReflection()->GetOneofFieldDescriptor(spec.data(), source);
    return Annotate(opened.status(), absl::StrCat("data.", field->name()));
  }
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Dataset> dataset, std::move(opened));
  if (dataset->size() > kMaxSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", split == Split::kTrain ? "training" : "test", " data hold ",
                     dataset->size(), " samples; at most ", kMaxSamples, " are possible"));
  }
  return dataset;
}

}  // namespace cadre
