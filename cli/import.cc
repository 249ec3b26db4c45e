// `cadre import`: networks in ONNX format become run files.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "base/file.h"
#include "base/peer_text.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/import/import.h"
#include "cli/tensor_file.h"

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

}  // namespace cadre
