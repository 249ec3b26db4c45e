#include "worker/data/cifar10.h"

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr auto kRecordBytes = static_cast<size_t>(kCifarRecordBytes);
constexpr auto kPlaneBytes = static_cast<size_t>(kCifarSide * kCifarSide);
constexpr auto kChannels = static_cast<size_t>(kCifarChannels);

}  // namespace

absl::Status ParseCifar10(const std::string& name, std::span<const std::byte> file,
                          CifarImages& images) {
  const size_t records = file.size() / kRecordBytes;
  if (file.empty() || file.size() % kRecordBytes != 0) {
    return absl::DataLossError(absl::StrCat(
        name, ": has ", file.size(), " bytes, which are ", records, " records of ", kRecordBytes,
        " and ", file.size() % kRecordBytes, " more; it seems cut short"));
  }
  for (size_t i = 0; i < records; ++i) {
    const auto label = std::to_integer<int>(file[i * kRecordBytes]);
    if (label >= kCifarClasses) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": label ", label, " of record ", i,
                                                     " at offset ", i * kRecordBytes,
                                                     "; CIFAR-10's are 0 to ", kCifarClasses - 1));
    }
  }
  images.labels.reserve(images.labels.size() + records);
  images.pixels.reserve(images.pixels.size() + records * kPlaneBytes * kChannels);
  for (size_t i = 0; i < records; ++i) {
    const auto record = file.subspan(i * kRecordBytes, kRecordBytes);
    images.labels.push_back(std::to_integer<int32_t>(record[0]));
    for (size_t pixel = 0; pixel < kPlaneBytes; ++pixel) {
      for (size_t c = 0; c < kChannels; ++c) {
        images.pixels.push_back(std::to_integer<uint8_t>(record[1 + c * kPlaneBytes + pixel]));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
