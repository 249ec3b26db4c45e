// An IDX file in memory: what is read has as many elements as its extents say.
#include <glog/logging.h>

#include "model/formats/idx.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto array = cadre::ParseIdx("input", std::as_bytes(std::span(data, size)));
  if (!array.ok()) return 0;
  int64_t elements = 1;
  for (const int64_t extent : array->dims) elements *= extent;
  CHECK_EQ(elements, std::ssize(array->data));
  CHECK_LE(array->data.size(), size);
  return 0;
}
