// IDX files: an accepted file has as many elements as its extents require.
#include <glog/logging.h>

#include "model/formats/idx.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cadre::MemoryFile file(data, size);
  const auto array = cadre::ReadIdx(file.path());
  if (!array.ok()) return 0;
  int64_t elements = 1;
  for (const int64_t extent : array->dims) elements *= extent;
  CHECK_EQ(elements, std::ssize(array->data));
  // The file may be compressed; deflate shrinks data by a factor of at most 1032.
  CHECK_LE(array->data.size(), 1032 * size);
  return 0;
}
