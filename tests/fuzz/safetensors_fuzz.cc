// Safetensors files: every tensor of an accepted file can be read, in whole and in part, and the
// tensors cover the data exactly.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "model/formats/safetensors.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"

namespace cadre {
namespace {

// Reading larger tensors takes too long.
constexpr int64_t kMaxElements = int64_t{1} << 16;

void Require(bool holds) {
  if (!holds) std::abort();
}

void ReadAll(SafetensorsFile& file) {
  int64_t next = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    Require(tensor.begin == next && tensor.end >= tensor.begin);
    next = tensor.end;
    Require(file.Find(tensor.name) == &tensor);
    const int64_t elements = tensor.shape.elements();
    Require(elements * ElementBytes(tensor.type) == tensor.end - tensor.begin);
    if (elements > kMaxElements) continue;
    std::vector<float> values(elements);
    const bool real = file.Read(tensor, 0, values).ok();
    if (elements == 0) continue;
    const std::span<float> last = std::span(values).last(1);
    Require(file.Read(tensor, elements - 1, last).ok() == real);
  }
}

}  // namespace
}  // namespace cadre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cadre::MemoryFile input(data, size);
  absl::StatusOr<cadre::SafetensorsFile> file = cadre::SafetensorsFile::Open(input.path());
  if (file.ok()) cadre::ReadAll(*file);
  return 0;
}
