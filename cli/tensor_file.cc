#include "cli/tensor_file.h"

#include "base/status.h"

namespace cadre {

absl::Status WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                          const std::map<std::string, std::string>& metadata, FloatType type) {
  std::vector<NamedShape> shapes;
  for (const NamedTensor& tensor : tensors) shapes.push_back({tensor.name, tensor.shape});
  CADRE_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(path, shapes, metadata, type));
  for (const NamedTensor& tensor : tensors) CADRE_RETURN_IF_ERROR(writer.Append(tensor.values));
  return writer.Finish();
}

}  // namespace cadre
