#include "tests/emulator/launch_bounds.h"

#include <algorithm>
#include <cstdint>

#include "tests/emulator/block_runner.h"

// The linker defines these as the limits of the section with the addresses of the patch areas; they
// are null in a program without the section.
extern "C" {
extern const uintptr_t __start___patchable_function_entries[] __attribute__((weak));
extern const uintptr_t __stop___patchable_function_entries[] __attribute__((weak));
}

namespace cadre::emulated {
namespace {

constexpr uint8_t kNoOperation = 0x90;

}  // namespace

unsigned LaunchBound(const void* kernel) {
#ifndef __x86_64__
  // Instructions have other sizes.
  return kMaxThreads;
#endif
  const auto entry = reinterpret_cast<uintptr_t>(kernel);
  uintptr_t area = 0;
  for (const uintptr_t* next = __start___patchable_function_entries;
       next != __stop___patchable_function_entries; ++next) {
    if (*next<entry&& * next> area) area = *next;
  }
  // The area belongs to another function unless it extends to this one.
  if (area == 0 || entry - area > kMaxThreads) return kMaxThreads;
  const auto* const begin = reinterpret_cast<const uint8_t*>(area);
  const bool is_own = std::all_of(begin, static_cast<const uint8_t*>(kernel),
                                  [](uint8_t byte) { return byte == kNoOperation; });
  return is_own ? entry - area : kMaxThreads;
}

}  // namespace cadre::emulated
