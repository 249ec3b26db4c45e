// Writes folders that the libraries of Hugging Face read unchanged: a model for
// AutoModelForCausalLM.from_pretrained (transformers), or an adapter for PeftModel.from_pretrained
// (peft), with the names of tensors and files that they expect.
//
// Thread-safe (pure function).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/formats/safetensors.h"
#include "server/client/version_reader.h"

namespace cadre {

struct HubFolderOptions {
  // The folder to write.
  std::string folder;
  // Whether files that it has already may be replaced.
  bool replace = false;
  // Folder of the model from which the run began: its configuration and tokenizer are copied, and
  // so are parameters that the run does not train. May be empty.
  std::string from;
  FloatType type = FloatType::kF32;
};

struct HubFolder {
  // The file with the weights, and number of its tensors.
  std::string weights;
  size_t tensors = 0;
  // What the user must know: missing files, tensors that were left out or are not those of the run.
  std::vector<std::string> notes;
};

// If the parameters are those of a PeftModel, the folder has its adapter, otherwise the whole
// model. Parameters that share their memory with others are not in the run; they are tied again.
//
// Errors: InvalidArgument if the run was not made by a program, or has parameters that cannot be
// written, by name: frozen ones of a whole model that `from` does not have; AlreadyExists if the
// folder has files; those of files.
absl::StatusOr<HubFolder> WriteHubFolder(const ReadVersion& version,
                                         const HubFolderOptions& options);

}  // namespace cadre
