// `cadre import` and `cadre export`: networks in ONNX format become run files, and trained weights,
// of a checkpoint or a run, get the names of the network's own framework again.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "base/file.h"
#include "base/peer_text.h"
#include "base/rpc/credentials.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "model/import/import.h"
#include "server/client/version_reader.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// A name of a run from that of a file: "My_Net.onnx" becomes "my-net".
std::string RunNameOf(const std::string& path) {
  std::string name;
  for (const char c : fs::path(path).stem().string()) {
    name.push_back(absl::ascii_isalnum(c) ? absl::ascii_tolower(c) : '-');
  }
  name.resize(std::min<size_t>(name.size(), 63));
  return name.empty() ? "import" : name;
}

absl::Status WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<NamedShape> shapes;
  for (const NamedTensor& tensor : tensors) shapes.push_back({tensor.name, tensor.shape});
  CADRE_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, shapes, {}));
  for (const NamedTensor& tensor : tensors) CADRE_RETURN_IF_ERROR(writer.Append(tensor.values));
  return writer.Finish();
}

}  // namespace

absl::StatusOr<int> ImportModel(const Invocation& in) {
  const std::string path = in.line.argument();
  const std::string run_file = in.line.Value<std::string>("output");
  const std::string weights = in.line.Value<std::string>("weights");
  CADRE_ASSIGN_OR_RETURN(const onnx::Model file, ReadOnnx(path));
  const std::string folder = fs::absolute(path).parent_path().string();
  std::error_code error;
  auto imported = ImportOnnx(file, folder,
                             {.padding_token = in.line.Get<uint32_t>("padding-token"),
                              .linked_folder = fs::canonical(path, error).parent_path().string(),
                              .scores = in.line.Get<std::string>("scores").value_or("")});
  if (!imported.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " cannot be imported:\n", imported.status().message()));
  }
  CADRE_RETURN_IF_ERROR(WriteTensors(weights, imported->weights));
  const std::string from = fs::absolute(weights).lexically_normal().string();
  CADRE_RETURN_IF_ERROR(WriteFileAtomically(run_file, RunFileOf(*imported, RunNameOf(path), from)));
  if (!in.global.quiet) {
    in.console.err << "wrote " << run_file << " (" << Counted(imported->model.layer_size(), "layer")
                   << ") and " << weights << " ("
                   << Counted(std::ssize(imported->weights), "tensor") << "); adapt the data in "
                   << run_file << std::endl;
    for (const std::string& line : imported->left_out) {
      in.console.err << "left out: " << Escaped(line, LineBreaks::kEscape) << std::endl;
    }
  }
  return kExitOk;
}

namespace {

using ReadParameter = std::function<absl::StatusOr<std::vector<float>>(const std::string&)>;

// Writes the tensors of an imported network with its own names.
absl::StatusOr<int> ExportImported(const Invocation& in, const v1::Model& model,
                                   const ReadParameter& read, const std::string& from,
                                   uint64_t step) {
  const std::string output = in.line.Value<std::string>("output");
  const auto exported = ExportTensors(model, read);
  if (!exported.ok()) return Annotate(exported.status(), from);
  CADRE_RETURN_IF_ERROR(WriteTensors(output, exported->tensors));
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

// The newest version of a run, which goes on meanwhile.
absl::StatusOr<int> ExportRun(const Invocation& in) {
  const std::string run = in.line.argument();
  const std::string output = in.line.Value<std::string>("output");
  CADRE_ASSIGN_OR_RETURN(const Credentials credentials, CredentialsOf(in.global));
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  // Other errors NotFound are those of the output.
  const auto locate = [&]() -> absl::StatusOr<v1::LocateReply> {
    absl::StatusOr<v1::LocateReply> located = client->Locate(run);
    if (!absl::IsNotFound(located.status())) return located;
    return Annotate(located.status(), absl::StrCat("'", run, "' is neither a path nor a run"));
  };
  CADRE_ASSIGN_OR_RETURN(const ReadVersion version, ReadNewestVersion(run, locate, credentials));
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
  CADRE_RETURN_IF_ERROR(WriteSafetensors(output, tensors, version.values));
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
                    fs::exists(argument, ignored);
  return path ? ExportCheckpoint(in) : ExportRun(in);
}

}  // namespace cadre
