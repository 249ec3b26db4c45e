// `cadre export`: the weights of a checkpoint or of a run's newest version, as one file with the
// names that they had in an imported network or have in the run, or as a folder that the libraries
// of Hugging Face read (cli/hub_folder.h).
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "base/peer_text.h"
#include "base/rpc/credentials.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/hub_folder.h"
#include "cli/import/import.h"
#include "cli/tensor_file.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "server/client/version_reader.h"

namespace cadre {
namespace {

using ReadParameter = std::function<absl::StatusOr<std::vector<float>>(const std::string&)>;

absl::StatusOr<FloatType> TypeOf(const Invocation& in) {
  return ParseFloatType(in.line.Value<std::string>("dtype"));
}

// Writes the tensors of an imported network with its own names.
absl::StatusOr<int> ExportImported(const Invocation& in, const v1::Model& model,
                                   const ReadParameter& read, const std::string& from,
                                   uint64_t step) {
  const std::string output = in.line.Value<std::string>("output");
  CADRE_ASSIGN_OR_RETURN(const FloatType type, TypeOf(in));
  const auto exported = ExportTensors(model, read);
  if (!exported.ok()) return Annotate(exported.status(), from);
  CADRE_RETURN_IF_ERROR(WriteTensors(output, exported->tensors, TorchMetadata(), type));
  if (in.global.quiet) return kExitOk;
  in.console.err << "wrote " << output << " (" << Counted(std::ssize(exported->tensors), "tensor")
                 << " of step " << step << ")" << std::endl;
  for (const std::string& name : exported->incomplete) {
    in.console.err << name << " is not in the file: the model has only a part of it" << std::endl;
  }
  return kExitOk;
}

absl::StatusOr<int> ExportCheckpoint(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const std::string folder, ResolveCheckpoint(in.line.argument()));
  if (absl::EndsWith(folder, ".safetensors")) {
    return UsageError(absl::StrCat(
        folder,
        " has no manifest; give the folder of a checkpoint, or a directory of checkpoints"));
  }
  CADRE_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest,
                         ReadManifest(absl::StrCat(folder, "/", kManifestFile)));
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file,
                         SafetensorsFile::Open(absl::StrCat(folder, "/", kModelFile)));
  const auto read = [&](const std::string& name) -> absl::StatusOr<std::vector<float>> {
    const StoredTensor* tensor = file.Find(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(absl::StrCat(file.name(), " has no tensor ", name));
    }
    std::vector<float> values(tensor->shape.elements());
    CADRE_RETURN_IF_ERROR(file.Read(*tensor, 0, values));
    return values;
  };
  return ExportImported(in, manifest.spec().model(), read, folder, manifest.step());
}

absl::StatusOr<int> ExportFolder(const Invocation& in, const ReadVersion& version) {
  CADRE_ASSIGN_OR_RETURN(const FloatType type, TypeOf(in));
  CADRE_ASSIGN_OR_RETURN(
      const HubFolder folder,
      WriteHubFolder(version, {.folder = in.line.Value<std::string>("hf"),
                               .replace = in.line.On("replace"),
                               .from = in.line.Get<std::string>("from").value_or(""),
                               .type = type}));
  if (in.global.quiet) return kExitOk;
  in.console.err << "wrote " << folder.weights << " ("
                 << Counted(static_cast<int64_t>(folder.tensors), "tensor") << " of version "
                 << version.located.version() << ", step " << version.located.step() << ", "
                 << in.line.Value<std::string>("dtype") << ")" << std::endl;
  for (const std::string& note : folder.notes) {
    in.console.err << "note: " << Escaped(note, LineBreaks::kEscape) << std::endl;
  }
  return kExitOk;
}

// A version of a run, which goes on meanwhile.
absl::StatusOr<int> ExportRun(const Invocation& in) {
  const std::string run = in.line.argument();
  const std::string output = in.line.Value<std::string>("output");
  CADRE_ASSIGN_OR_RETURN(const FloatType type, TypeOf(in));
  CADRE_ASSIGN_OR_RETURN(const Credentials credentials, CredentialsOf(in.global));
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  // Other errors NotFound are those of the output.
  const auto locate = [&]() -> absl::StatusOr<v1::LocateReply> {
    absl::StatusOr<v1::LocateReply> located = client->Locate(run, in.line.Get<uint32_t>("version"));
    if (!absl::IsNotFound(located.status())) return located;
    return Annotate(located.status(), absl::StrCat("'", run, "' is neither a path nor a run"));
  };
  CADRE_ASSIGN_OR_RETURN(const ReadVersion version, ReadNewestVersion(run, locate, credentials));
  if (in.line.Has("hf")) return ExportFolder(in, version);
  const v1::Model& model = version.located.spec().model();
  if (!model.original().empty()) {
    const auto read = [&](const std::string& name) -> absl::StatusOr<std::vector<float>> {
      CADRE_ASSIGN_OR_RETURN(const int i, version.index.Find(name));
      const Parameter& parameter = version.index[i];
      return std::vector<float>(version.values.begin() + parameter.offset,
                                version.values.begin() + parameter.end());
    };
    return ExportImported(in, model, read, run, version.located.step());
  }
  const std::vector<NamedShape> tensors = WeightTensors(version.index);
  CADRE_RETURN_IF_ERROR(WriteSafetensors(output, tensors, version.values, TorchMetadata(), type));
  if (!in.global.quiet) {
    in.console.err << "wrote " << output << " (" << Counted(std::ssize(tensors), "tensor")
                   << " of version " << version.located.version() << ", step "
                   << version.located.step() << ")" << std::endl;
  }
  return kExitOk;
}

}  // namespace

// An argument that is not a path names a run.
absl::StatusOr<int> ExportModel(const Invocation& in) {
  const std::string argument = in.line.argument();
  std::error_code ignored;
  const bool path = absl::StrContains(argument, '/') || absl::EndsWith(argument, ".safetensors") ||
                    std::filesystem::exists(argument, ignored);
  if (in.line.Has("hf") && in.line.Has("output")) {
    return UsageError("--hf writes a folder, and --output a file; give one of them");
  }
  for (const char* flag : {"from", "replace"}) {
    if (in.line.Has(flag) && !in.line.Has("hf")) {
      return UsageError(absl::StrCat("--", flag, " is only valid with --hf"));
    }
  }
  for (const char* flag : {"hf", "version"}) {
    if (!path || !in.line.Has(flag)) continue;
    return UsageError(absl::StrCat("--", flag, " takes a run, and '", argument, "' is a path"));
  }
  return path ? ExportCheckpoint(in) : ExportRun(in);
}

}  // namespace cadre
