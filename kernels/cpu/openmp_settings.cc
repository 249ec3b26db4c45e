#include "kernels/cpu/openmp_settings.h"

#include <stdlib.h>
#include <unistd.h>

#include <climits>
#include <cstddef>

namespace cadre {
namespace {

// About 0.1 ms, longer than most pauses between the loops of a step. The library's default is 150
// times as long.
constexpr char kSpinCount[] = "2000";

}  // namespace

void EnsureOpenMpSettings(char** argv) {
  if (getenv("GOMP_SPINCOUNT") != nullptr || getenv("OMP_WAIT_POLICY") != nullptr) return;
  // The path itself, because the name of the process would be that of the link.
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
  if (size < 0) return;
  path[size] = 0;
  if (setenv("GOMP_SPINCOUNT", kSpinCount, 0) == 0) execv(path, argv);
}

}  // namespace cadre
