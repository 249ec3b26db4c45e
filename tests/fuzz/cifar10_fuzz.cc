// A batch file of CIFAR-10 in memory: it is read whole, or nothing of it is.
#include <glog/logging.h>

#include "tests/fuzz/target.h"
#include "worker/data/cifar10.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cadre::CifarImages images;
  const absl::Status status =
      cadre::ParseCifar10("input", std::as_bytes(std::span(data, size)), images);
  const size_t records = status.ok() ? size / cadre::kCifarRecordBytes : 0;
  CHECK_EQ(images.labels.size(), records);
  CHECK_EQ(images.pixels.size(), records * cadre::kCifarPixelBytes);
  for (const int32_t label : images.labels) CHECK(label >= 0 && label < cadre::kCifarClasses);
  return 0;
}
