// A tar archive in memory: members lie inside it, one behind the other, and each is found again
// from its own offset.
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/fuzz/target.h"
#include "worker/data/tar.h"

namespace cadre {
namespace {

void Scan(const std::string& archive) {
  const MemoryBytes source("input", std::as_bytes(std::span(archive.data(), archive.size())));
  TarScanner scanner(source);
  int64_t end = 0;
  while (true) {
    const absl::StatusOr<std::optional<TarMember>> member = scanner.Next();
    if (!member.ok() || !member->has_value()) return;
    const TarMember& found = **member;
    CHECK_GE(found.header, end);
    CHECK_GT(found.begin, found.header);
    CHECK_GE(found.size, 0);
    end = found.begin + found.size;
    CHECK_LE(end, source.size());
    std::vector<std::byte> contents(static_cast<size_t>(found.size));
    CHECK(source.ReadAt(found.begin, contents).ok());
    const auto again = TarScanner(source, found.header).Next();
    CHECK(again.ok() && again->has_value());
    CHECK_EQ((*again)->name, found.name);
    CHECK_EQ((*again)->begin, found.begin);
  }
}

// Makes the checksum of every block right that could be a header: without this nearly all
// mutations would end at the checksum.
std::string WithChecksums(std::string archive) {
  constexpr size_t kBlock = kTarBlockBytes;
  constexpr size_t kChecksum = 148;
  for (size_t begin = 0; begin + kBlock <= archive.size(); begin += kBlock) {
    if (archive.compare(begin + 257, 5, "ustar") != 0) continue;
    std::fill_n(archive.begin() + (begin + kChecksum), 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(archive[begin + i]);
    archive.replace(begin + kChecksum, 6, absl::StrFormat("%06o", sum));
  }
  return archive;
}

}  // namespace
}  // namespace cadre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string archive(reinterpret_cast<const char*>(data), size);
  cadre::Scan(archive);
  cadre::Scan(cadre::WithChecksums(archive));
  return 0;
}
