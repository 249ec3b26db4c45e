// The readers of untrusted bytes that are fuzzed, by name.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace cadre::fuzz {

// Must return, without leaks, for any input; ends the process only if the reader is broken.
using Target = void (*)(std::span<const uint8_t> input);

const std::map<std::string, Target>& Targets();

}  // namespace cadre::fuzz
