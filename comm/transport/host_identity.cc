#include "comm/transport/host_identity.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/identity.h"

namespace cadre {
namespace {

// Random; generated at boot.
constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
// The thread's network namespace, which may differ from the process's.
constexpr char kNetwork[] = "/proc/thread-self/ns/net";

// FNV-1a: equal in all builds, unlike std::hash.
uint64_t Hash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

}  // namespace

uint64_t HostIdentity() {
  struct stat network {};
  std::string boot;
  if (!std::getline(std::ifstream(kBootId), boot) || stat(kNetwork, &network) != 0) {
    return NewSeed();
  }
  return Hash(absl::StrCat(boot, " ", network.st_dev, " ", network.st_ino));
}

}  // namespace cadre
