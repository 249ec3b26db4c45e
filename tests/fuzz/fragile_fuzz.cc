// A target that is broken on purpose, for the test of the driver: what its input begins with says
// how.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with("abort")) std::abort();
  if (input.starts_with("exit")) std::exit(3);
  while (input.starts_with("hang")) usleep(1000);
  // No file holds this: it takes a mutation of "sound".
  if (input.size() == 5 && input.starts_with("soun") && input[4] != 'd') std::abort();
  return 0;
}
