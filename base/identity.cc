// An identity is a random 128-bit identifier, as long as a UUID: hosts create unique ones without
// coordination.
#include "base/identity.h"

#include <unistd.h>

#include <random>

#include "absl/strings/str_format.h"

namespace cadre {

uint64_t NewSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string NewIdentity() { return absl::StrFormat("%016x%016x", NewSeed(), NewSeed()); }

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

}  // namespace cadre
