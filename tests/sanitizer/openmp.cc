// Annotates OpenMP's parallel regions for ThreadSanitizer. Linked into every program of a build
// with CADRE_SANITIZE=thread, and into no other.
//
// GCC's OpenMP library starts and joins the threads of a region in ways that ThreadSanitizer cannot
// see. The function below replaces the one that enters a region, for our loops and oneDNN's: it
// calls the real one and annotates the order that a region guarantees: everything before the region
// happens before its body, and the body happens before everything after the region.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

using Body = void (*)(void* data);
using Parallel = void (*)(Body body, void* data, unsigned threads, unsigned flags);

struct Region {
  Body body;
  void* data;
};

void RunInRegion(void* argument) {
  auto* region = static_cast<Region*>(argument);
  __tsan_acquire(region);
  region->body(region->data);
  __tsan_release(region);
}

Parallel RealParallel() {
  void* const found = dlsym(RTLD_NEXT, "GOMP_parallel");
  if (found == nullptr) {
    std::fprintf(stderr, "openmp: no GOMP_parallel to call\n");
    std::abort();
  }
  return reinterpret_cast<Parallel>(found);
}

}  // namespace

extern "C" void GOMP_parallel(Body body, void* data, unsigned threads, unsigned flags) {
  static const Parallel real = RealParallel();
  Region region{.body = body, .data = data};
  __tsan_release(&region);
  real(&RunInRegion, &region, threads, flags);
  __tsan_acquire(&region);
}
