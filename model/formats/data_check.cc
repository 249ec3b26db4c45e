// Checks that only a host with the files can make: they exist, their sizes fit their formats, and
// their shapes, classes and counts fit the model. IDX files are read completely, because their
// labels must be below the number of classes; of the other formats, which may be terabytes, only
// names and sizes are read. FindProblems reports paths that are missing in the spec.
#include "model/formats/data_check.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/file_format.h"
#include "model/formats/class_folders.h"
#include "model/formats/idx.h"
#include "model/graph.h"
#include "model/shard_names.h"
#include "tensor/shape.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// A label and 32 x 32 x 3 pixels.
constexpr uint64_t kCifarRecord = 3073;
// Tar files consist of blocks of this size.
constexpr uint64_t kTarBlock = 512;

class DataChecker : private ProblemCollector {
 public:
  // `graph`: null if the model has problems; files are then not compared with it.
  explicit DataChecker(const Graph* graph) : graph_(graph) {}

  std::vector<Problem> Run(const v1::Data& data) {
    switch (data.source_case()) {
      case v1::Data::kIdx:
        CheckIdxSplit("train", data.idx().train_images(), data.idx().train_labels());
        CheckIdxSplit("test", data.idx().test_images(), data.idx().test_labels());
        break;
      case v1::Data::kCifar10:
        CheckCifar10(data.cifar10());
        break;
      case v1::Data::kImageFolder:
        CheckImageFolders(data.image_folder());
        break;
      case v1::Data::kTarShards:
        CheckTarShards("data.tar_shards.train", data.tar_shards().train());
        CheckTarShards("data.tar_shards.test", data.tar_shards().test());
        break;
      case v1::Data::kTokenFiles:
        CheckTokens("data.token_files.train", data.token_files().train(), data.token_files());
        CheckTokens("data.token_files.test", data.token_files().test(), data.token_files());
        break;
      case v1::Data::kSynthetic:
      case v1::Data::SOURCE_NOT_SET:
        break;
    }
    return std::move(problems_);
  }

 private:
  template <typename... Parts>
  void AddOfFile(const std::string& field, const std::string& path, const Parts&... message) {
    Add(field, path, ": ", message...);
  }

  // Returns the value. For an error, which names the file, adds a problem and returns nullopt.
  template <typename T>
  std::optional<T> Take(const std::string& field, absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    Add(field, value.status().message());
    return std::nullopt;
  }

  // A missing path is reported as a problem of the spec, here and below.
  void CheckIdxSplit(const std::string& split, const std::string& images,
                     const std::string& labels) {
    const std::string labels_field = absl::StrCat("data.idx.", split, "_labels");
    std::optional<int64_t> image_count;
    if (!images.empty()) {
      image_count = CheckIdxImages(absl::StrCat("data.idx.", split, "_images"), images);
    }
    if (labels.empty()) return;
    const std::optional<int64_t> label_count = CheckIdxLabels(labels_field, labels);
    if (image_count && label_count && *image_count != *label_count) {
      AddOfFile(labels_field, labels, "holds ", *label_count, " labels; ", images, " holds ",
                *image_count, " images");
    }
  }

  // The number of images, if known.
  std::optional<int64_t> CheckIdxImages(const std::string& field, const std::string& path) {
    const std::optional<std::vector<int64_t>> dims = Take(field, CheckIdx(path));
    if (!dims) return std::nullopt;
    if (graph_ != nullptr && !graph_->takes_tokens()) {
      // In files, channels are the first dimension of a sample; optional for a single channel.
      const Shape& image = graph_->input();
      const Shape sample{image[2], image[0], image[1]};
      std::vector<int64_t> expected = sample.dims();
      if (dims->size() == expected.size() && expected.front() == 1) {
        expected.erase(expected.begin());
      }
      if (!std::equal(dims->begin() + 1, dims->end(), expected.begin(), expected.end())) {
        AddOfFile(field, path, "holds ", Shape(*dims).ToString(), "; the model's input is ",
                  sample.ToString(), " (channels, height, width) a sample");
      }
    }
    if (dims->front() == 0) AddOfFile(field, path, "holds no samples");
    return dims->front();
  }

  // The number of labels, if known.
  std::optional<int64_t> CheckIdxLabels(const std::string& field, const std::string& path) {
    const std::optional<IdxArray> labels = Take(field, ReadIdx(path));
    if (!labels) return std::nullopt;
    if (labels->dims.size() != 1) {
      AddOfFile(field, path, "holds ", Shape(labels->dims).ToString(), "; labels are a list");
      return std::nullopt;
    }
    const int64_t classes = graph_ == nullptr || graph_->takes_tokens() ? 256 : graph_->classes();
    const auto invalid = std::find_if(labels->data.begin(), labels->data.end(),
                                      [&](uint8_t label) { return label >= classes; });
    if (invalid != labels->data.end()) {
      AddOfFile(field, path, "label ", int{*invalid}, " of sample ", invalid - labels->data.begin(),
                " is out of range; the model has ", classes, " classes, 0 to ", classes - 1);
    }
    return labels->dims.front();
  }

  // Five training files and one of test images, each of whole records.
  void CheckCifar10(const v1::Cifar10& data) {
    if (data.directory().empty()) return;
    for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                             "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
      UnitsOf("data.cifar10.directory", absl::StrCat(data.directory(), "/", name), kCifarRecord,
              "records");
    }
  }

  void CheckImageFolders(const v1::ImageFolder& data) {
    const auto train = ClassesOf("data.image_folder.train", data.train());
    const auto test = ClassesOf("data.image_folder.test", data.test());
    if (train && graph_ != nullptr && std::ssize(*train) > graph_->classes()) {
      AddOfFile("data.image_folder.train", data.train(), "holds ", train->size(),
                " folders, one for each class; the model has ", graph_->classes(), " classes");
    }
    if (!train || !test) return;
    if (const std::string* unknown = FindUnknownClass(*test, *train); unknown != nullptr) {
      AddOfFile("data.image_folder.test", data.test(), "has a class folder ", *unknown, "; ",
                data.train(), " has none of that name");
    }
  }

  // The classes of a split. If there are none or they cannot be read, adds a problem and returns
  // nullopt.
  std::optional<std::vector<std::string>> ClassesOf(const std::string& field,
                                                    const std::string& path) {
    if (path.empty()) return std::nullopt;
    std::optional<std::vector<std::string>> classes = Take(field, ListClassFolders(path));
    if (classes && classes->empty()) {
      AddOfFile(field, path, "holds no folders; there must be one for each class");
      return std::nullopt;
    }
    return classes;
  }

  // Checks only the beginning of files, and that they consist of whole blocks; training reads the
  // members.
  void CheckTarShards(const std::string& field, const std::string& pattern) {
    // An invalid pattern is reported as a problem of the spec.
    const auto names = ShardNames::Parse(pattern);
    if (pattern.empty() || !names.ok()) return;
    for (int64_t i = 0; i < names->size(); ++i) {
      const std::string path = (*names)[i];
      if (HasFormatOf(field, path, kTarFormat))
        UnitsOf(field, path, kTarBlock, "blocks", kTarFormat);
    }
  }

  void CheckTokens(const std::string& field, const std::string& path, const v1::TokenFiles& data) {
    if (path.empty()) return;
    const uint64_t bytes = data.bytes_per_token() == 0 ? 2 : data.bytes_per_token();
    if (!HasFormatOf(field, path, "a file of tokens", bytes)) return;
    const std::optional<uint64_t> tokens = UnitsOf(field, path, bytes, "tokens");
    if (!tokens || graph_ == nullptr || !graph_->takes_tokens()) return;
    // The label of the last token is the token after the sample.
    const uint64_t required = graph_->input()[0] + 1;
    if (*tokens >= required) return;
    AddOfFile(field, path, "holds ", *tokens, " tokens; one sample and its labels are ", required);
  }

  // Adds a problem if the file certainly has another format. Those that cannot be opened are
  // reported by UnitsOf.
  bool HasFormatOf(const std::string& field, const std::string& path, absl::string_view expected,
                   uint64_t bytes_per_number = 1) {
    const absl::StatusOr<std::string> first = ReadBeginning(path, kFormatBytes);
    const FileFormat* format =
        first.ok() ? FormatOtherThanNumbers(*first, bytes_per_number) : nullptr;
    if (format == nullptr || format->name == expected) return true;
    AddOfFile(field, path, "is not ", expected, FormatNote(*first));
    return false;
  }

  // The number of units of `unit` bytes in a file. If the file is empty or has another size, adds a
  // problem and returns nullopt. Reads at most the beginning of the file, so the check is cheap
  // even for terabytes.
  std::optional<uint64_t> UnitsOf(const std::string& field, const std::string& path, uint64_t unit,
                                  absl::string_view unit_name, absl::string_view expected = "") {
    std::error_code error;
    const bool is_file = fs::is_regular_file(path, error);
    if (!error && !is_file) {
      AddOfFile(field, path, "is not a file");
      return std::nullopt;
    }
    const uint64_t bytes = error ? 0 : fs::file_size(path, error);
    if (error) {
      Add(field, ErrnoStatus(error.value(), "open", path).message());
      return std::nullopt;
    }
    if (bytes == 0 || bytes % unit != 0) {
      AddOfFile(field, path, "has ", bytes, " bytes; it must have a multiple of ", unit,
                ", one or more ", unit_name,
                FormatNote(ReadBeginning(path, kFormatBytes).value_or(""), expected));
      return std::nullopt;
    }
    return bytes / unit;
  }

  const Graph* graph_;
};

}  // namespace

std::vector<Problem> FindDataProblems(const v1::RunSpec& spec) {
  const absl::StatusOr<Graph> model = Graph::FromModel(spec.model());
  return DataChecker(model.ok() ? &*model : nullptr).Run(spec.data());
}

}  // namespace cadre
