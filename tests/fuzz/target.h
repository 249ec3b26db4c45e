// What a fuzz target defines: one reader, fed with bytes that anybody may have written.
#pragma once

#include <cstddef>
#include <cstdint>

// Must return 0, leave nothing behind, and end the process only where the reader is broken.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
