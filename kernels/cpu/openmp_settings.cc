#include "kernels/cpu/openmp_settings.h"

#include <stdlib.h>
#include <unistd.h>

#include <climits>
#include <cstddef>

namespace cadre {
namespace {

// 0.1 to 0.5 ms, by processor. The library's default is thirty times as long.
constexpr char kSpinCount[] = "10000";

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
