// The names of parameters are those of the program's module. transformers uses them unchanged. peft
// leaves the name of the adapter out of its files:
//
// clang-format off
//   base_model.model.layer.lora_A.default.weight  ->  base_model.model.layer.lora_A.weight
//   base_model.model.head.modules_to_save.default.weight  ->  base_model.model.head.weight
//   base_model.model.layer.lora_magnitude_vector.default.weight
//                                                 ->  base_model.model.layer.lora_magnitude_vector
// clang-format on
#include "cli/hub_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/counted_noun.h"
#include "base/status.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPeftPrefix = "base_model.model.";
// Parts of a name before that of the adapter.
constexpr std::array<absl::string_view, 6> kBeforeAdapter = {
    "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector", "ia3_l"};
constexpr absl::string_view kSavedModule = "modules_to_save";

// What the folder of a model has beside its weights. The first file is required.
const std::vector<std::string>& HubFilesOf(bool adapter) {
  static const std::vector<std::string> tokenizer = {"tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "tokenizer.model",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "spiece.model",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "chat_template.json",
                                                     "chat_template.jinja",
                                                     "preprocessor_config.json",
                                                     "processor_config.json",
                                                     "sentencepiece.bpe.model"};
  static const auto with = [](std::vector<std::string> files) {
    files.insert(files.end(), tokenizer.begin(), tokenizer.end());
    return files;
  };
  static const std::vector<std::string> of_adapter = with({"adapter_config.json"});
  static const std::vector<std::string> of_model = with({"config.json", "generation_config.json"});
  return adapter ? of_adapter : of_model;
}

bool IsAdapter(const v1::OpaqueModel& model) {
  return std::any_of(model.parameter().begin(), model.parameter().end(), [](const auto& one) {
    const bool trained = one.frozen_digest().empty() && one.trained();
    return trained && absl::StartsWith(one.name(), kPeftPrefix);
  });
}

// The name of an adapter's parameter in a file of peft, and the name of the adapter; nullopt if it
// is not the parameter of an adapter.
std::optional<std::pair<std::string, std::string>> PeftName(absl::string_view name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const bool saved = parts[i] == kSavedModule;
    if (!saved &&
        std::find(kBeforeAdapter.begin(), kBeforeAdapter.end(), parts[i]) == kBeforeAdapter.end()) {
      continue;
    }
    const std::string adapter = parts[i + 1];
    if (parts[i] == "lora_magnitude_vector") parts.resize(i + 2);
    parts.erase(parts.begin() + i + (saved ? 0 : 1), parts.begin() + i + 2);
    return std::pair(absl::StrJoin(parts, "."), adapter);
  }
  return std::nullopt;
}

// Where a tensor's values come from: the version from `begin` on, or a file.
struct HubTensor {
  NamedShape named;
  int64_t begin = 0;
  SafetensorsFile* file = nullptr;
};

// The files of weights of a folder, which may be divided.
class HubWeights {
 public:
  static absl::StatusOr<HubWeights> Open(const std::string& folder) {
    HubWeights weights;
    std::error_code error;
    if (folder.empty()) return weights;
    std::set<std::string> paths;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".safetensors") paths.insert(it->path().string());
    }
    if (error) return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
    for (const std::string& path : paths) {
      CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
      weights.files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
    }
    return weights;
  }

  // Null if no file has the tensor.
  SafetensorsFile* FileWith(absl::string_view name) const {
    const auto found = std::find_if(files_.begin(), files_.end(),
                                    [&](const auto& file) { return file->Find(name) != nullptr; });
    return found == files_.end() ? nullptr : found->get();
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

std::vector<int64_t> HubShapeOf(const v1::OpaqueParameter& parameter) {
  return {parameter.shape().begin(), parameter.shape().end()};
}

// Errors: InvalidArgument if the frozen parameter is in none of the files, or is another one there.
absl::StatusOr<HubTensor> FrozenTensor(const v1::OpaqueParameter& parameter,
                                       const HubWeights& weights, const std::string& from) {
  const Shape shape(HubShapeOf(parameter));
  SafetensorsFile* const file = weights.FileWith(parameter.name());
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", parameter.name(), "' ", shape.ToString(),
        " is frozen, so that no version has it; ",
        from.empty() ? "give a folder that has the model's weights in safetensors files: --from"
                     : absl::StrCat("no safetensors file of ", from, " has it")));
  }
  const StoredTensor& stored = *file->Find(parameter.name());
  if (stored.shape != shape || !SafetensorsFile::CanRead(stored.type)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", parameter.name(), "' is ", shape.ToString(), " in the run, but ",
        stored.shape.ToString(), " of type ", stored.type, " in ", file->name()));
  }
  return HubTensor{.named = {parameter.name(), shape}, .file = file};
}

absl::StatusOr<std::vector<HubTensor>> ModelTensors(const ReadVersion& version,
                                                    const HubWeights& weights,
                                                    const std::string& from, HubFolder& folder) {
  std::vector<HubTensor> tensors;
  size_t frozen = 0;
  for (const v1::OpaqueParameter& parameter : version.located.spec().model().opaque().parameter()) {
    if (!parameter.frozen_digest().empty()) {
      CADRE_ASSIGN_OR_RETURN(tensors.emplace_back(), FrozenTensor(parameter, weights, from));
      ++frozen;
      continue;
    }
    CADRE_ASSIGN_OR_RETURN(const int i, version.index.Find(parameter.name()));
    tensors.push_back(
        {.named = {parameter.name(), version.index[i].shape}, .begin = version.index[i].offset});
  }
  if (frozen > 0) {
    folder.notes.push_back(absl::StrCat(Counted(frozen, "frozen parameter"), " of ", from,
                                        ", whose values were not compared with those of the run"));
  }
  return tensors;
}

absl::StatusOr<std::vector<HubTensor>> AdapterTensors(const ReadVersion& version,
                                                      HubFolder& folder) {
  std::vector<HubTensor> tensors;
  std::set<std::string> adapters;
  size_t left_out = 0;
  for (const v1::OpaqueParameter& parameter : version.located.spec().model().opaque().parameter()) {
    if (!parameter.frozen_digest().empty()) continue;
    const auto name = PeftName(parameter.name());
    if (!name.has_value() && !parameter.trained()) {
      ++left_out;
      continue;
    }
    if (!name.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", parameter.name(),
                       "' was trained beside an adapter, and files of peft cannot have it; write "
                       "all parameters to one file: --output"));
    }
    adapters.insert(name->second);
    CADRE_ASSIGN_OR_RETURN(const int i, version.index.Find(parameter.name()));
    tensors.push_back(
        {.named = {name->first, version.index[i].shape}, .begin = version.index[i].offset});
  }
  if (adapters.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("the run trains the adapters ",
                                                   absl::StrJoin(adapters, ", "),
                                                   "; a folder of peft has one"));
  }
  if (left_out > 0) {
    folder.notes.push_back(
        absl::StrCat(Counted(left_out, "buffer"), " of the base model left out"));
  }
  return tensors;
}

absl::Status MakeHubFolder(const HubFolderOptions& options) {
  std::error_code error;
  const bool used = fs::exists(options.folder, error) && !fs::is_empty(options.folder, error);
  if (used && !options.replace) {
    return absl::AlreadyExistsError(
        absl::StrCat(options.folder, " is not an empty folder: --replace"));
  }
  fs::create_directories(options.folder, error);
  if (fs::is_directory(options.folder)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(options.folder, ": ", error.message()));
}

absl::Status CopyFiles(const HubFolderOptions& options, bool adapter, HubFolder& folder) {
  const std::vector<std::string>& files = HubFilesOf(adapter);
  if (options.from.empty()) {
    folder.notes.push_back(
        absl::StrCat(options.folder, " needs ", files.front(),
                     "; --from names a folder from which it is copied, with the tokenizer"));
    return absl::OkStatus();
  }
  bool tokenizer = false;
  for (const std::string& name : files) {
    std::error_code error;
    const fs::path from = fs::path(options.from) / name;
    const fs::path to = fs::path(options.folder) / name;
    if (!fs::exists(from, error)) {
      if (name == files.front()) {
        folder.notes.push_back(
            absl::StrCat(options.from, " has no ", name, ", which ", options.folder, " needs"));
      }
      continue;
    }
    tokenizer = tokenizer || absl::StartsWith(name, "tokenizer");
    if (fs::equivalent(from, to, error)) continue;
    fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
    if (error) {
      return absl::UnknownError(
          absl::StrCat("cannot copy ", from.string(), " to ", to.string(), ": ", error.message()));
    }
  }
  if (!tokenizer) folder.notes.push_back(absl::StrCat(options.from, " has no tokenizer"));
  return absl::OkStatus();
}

absl::Status WriteHubTensors(const ReadVersion& version, const std::vector<HubTensor>& tensors,
                             const std::string& path, FloatType type) {
  std::vector<NamedShape> shapes;
  for (const HubTensor& tensor : tensors) shapes.push_back(tensor.named);
  CADRE_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(path, shapes, TorchMetadata(), type));
  for (const HubTensor& tensor : tensors) {
    const int64_t elements = tensor.named.shape.elements();
    if (tensor.file == nullptr) {
      CADRE_RETURN_IF_ERROR(
          writer.Append(std::span(version.values).subspan(tensor.begin, elements)));
      continue;
    }
    std::vector<float> values(elements);
    CADRE_RETURN_IF_ERROR(tensor.file->Read(*tensor.file->Find(tensor.named.name), 0, values));
    CADRE_RETURN_IF_ERROR(writer.Append(values));
  }
  return writer.Finish();
}

}  // namespace

absl::StatusOr<HubFolder> WriteHubFolder(const ReadVersion& version,
                                         const HubFolderOptions& options) {
  const v1::Model& model = version.located.spec().model();
  if (!model.has_opaque()) {
    return absl::InvalidArgumentError(
        absl::StrCat("run ", version.run,
                     " was not made by a program, so that its parameters have other names"));
  }
  HubFolder folder;
  const bool adapter = IsAdapter(model.opaque());
  CADRE_ASSIGN_OR_RETURN(const HubWeights weights, HubWeights::Open(adapter ? "" : options.from));
  CADRE_ASSIGN_OR_RETURN(const std::vector<HubTensor> tensors,
                         adapter ? AdapterTensors(version, folder)
                                 : ModelTensors(version, weights, options.from, folder));
  CADRE_RETURN_IF_ERROR(MakeHubFolder(options));
  CADRE_RETURN_IF_ERROR(CopyFiles(options, adapter, folder));
  folder.weights =
      absl::StrCat(options.folder, adapter ? "/adapter_model.safetensors" : "/model.safetensors");
  folder.tensors = tensors.size();
  CADRE_RETURN_IF_ERROR(WriteHubTensors(version, tensors, folder.weights, options.type));
  return folder;
}

}  // namespace cadre
