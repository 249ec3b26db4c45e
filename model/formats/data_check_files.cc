#include "model/formats/data_check_files.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "model/formats/class_folders.h"
#include "model/shard_names.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// A label and 32 x 32 x 3 pixels.
constexpr uint64_t kCifarRecord = 3073;
// Tar files consist of blocks of this size.
constexpr uint64_t kTarBlock = 512;

void Add(const std::string& field, const std::string& path, absl::string_view message,
         std::vector<Problem>* problems) {
  problems->push_back({field, absl::StrCat(path, ": ", message)});
}

// Number of units of `unit` bytes in a file; none, with a problem, for other sizes or an empty
// file.
std::optional<uint64_t> UnitsOf(const std::string& field, const std::string& path, uint64_t unit,
                                absl::string_view unit_name, std::vector<Problem>* problems) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(path, error);
  if (error) {
    problems->push_back({field, std::string(ErrnoStatus(error.value(), "open", path).message())});
    return std::nullopt;
  }
  if (!is_file) {
    Add(field, path, "is not a file", problems);
    return std::nullopt;
  }
  const uint64_t bytes = fs::file_size(path, error);
  if (error) {
    problems->push_back({field, std::string(ErrnoStatus(error.value(), "size", path).message())});
    return std::nullopt;
  }
  if (bytes == 0 || bytes % unit != 0) {
    Add(field, path,
        absl::StrCat("has ", bytes, " bytes; it must have a multiple of ", unit, ", one or more ",
                     unit_name),
        problems);
    return std::nullopt;
  }
  return bytes / unit;
}

// The classes of a split; none, with a problem, if there are none or they cannot be read.
std::optional<std::vector<std::string>> ClassesOf(const std::string& field, const std::string& path,
                                                  std::vector<Problem>* problems) {
  if (path.empty()) return std::nullopt;
  absl::StatusOr<std::vector<std::string>> classes = ListClassFolders(path);
  if (!classes.ok()) {
    problems->push_back({field, std::string(classes.status().message())});
    return std::nullopt;
  }
  if (classes->empty()) {
    Add(field, path, "holds no folders; there must be one for each class", problems);
    return std::nullopt;
  }
  return *std::move(classes);
}

}  // namespace

void CheckCifar10Files(const v1::Cifar10& data, std::vector<Problem>* problems) {
  if (data.directory().empty()) return;
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    UnitsOf("data.cifar10.directory", absl::StrCat(data.directory(), "/", name), kCifarRecord,
            "records", problems);
  }
}

void CheckImageFolders(const v1::ImageFolder& data, const Graph* graph,
                       std::vector<Problem>* problems) {
  const auto train = ClassesOf("data.image_folder.train", data.train(), problems);
  const auto test = ClassesOf("data.image_folder.test", data.test(), problems);
  if (train && graph != nullptr && std::ssize(*train) > graph->classes()) {
    Add("data.image_folder.train", data.train(),
        absl::StrCat("holds ", train->size(), " folders, one for each class; the model has ",
                     graph->classes(), " classes"),
        problems);
  }
  if (!train || !test) return;
  if (const std::string* unknown = FindUnknownClass(*test, *train); unknown != nullptr) {
    Add("data.image_folder.test", data.test(),
        absl::StrCat("has a class folder ", *unknown, "; ", data.train(), " has none of that name"),
        problems);
  }
}

void CheckTarShards(const v1::TarShards& data, std::vector<Problem>* problems) {
  for (const auto& [field, pattern] : {std::pair{"data.tar_shards.train", &data.train()},
                                       {"data.tar_shards.test", &data.test()}}) {
    // An invalid pattern is reported as a problem of the spec.
    const auto names = ExpandShardNames(*pattern);
    if (pattern->empty() || !names.ok()) continue;
    for (const std::string& name : *names) {
      UnitsOf(field, name, kTarBlock, "blocks", problems);
    }
  }
}

void CheckTokenFiles(const v1::TokenFiles& data, const Graph* graph,
                     std::vector<Problem>* problems) {
  const uint64_t bytes = data.bytes_per_token() == 0 ? 2 : data.bytes_per_token();
  for (const auto& [field, path] : {std::pair{"data.token_files.train", &data.train()},
                                    {"data.token_files.test", &data.test()}}) {
    if (path->empty()) continue;
    const std::optional<uint64_t> tokens = UnitsOf(field, *path, bytes, "tokens", problems);
    if (!tokens || graph == nullptr || !graph->takes_tokens()) continue;
    // The label of the last token is the token after the sample.
    const auto least = static_cast<uint64_t>(graph->input()[0]) + 1;
    if (*tokens >= least) continue;
    Add(field, *path,
        absl::StrCat("holds ", *tokens, " tokens; one sample and its labels are ", least),
        problems);
  }
}

}  // namespace cadre
