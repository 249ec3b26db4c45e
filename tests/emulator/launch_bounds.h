// The maximum number of threads per block that a kernel declares by __launch_bounds__, as known in
// the host build of kernels. Thread-safe.
//
// cuda_on_host.h makes __launch_bounds__(n) a patch area of n no-operation instructions before the
// kernel's first instruction, where they are never executed. The compiler records the address of
// each area in a section of the program, so that the bound is the size of the area.
//
// The other limit that CUDA checks, 48 KiB of static shared memory per block, is not known here:
// a __shared__ array is a static variable. ptxas refuses to compile a kernel beyond that limit.
#pragma once

namespace cadre::emulated {

// kMaxThreads (block_runner.h) if the kernel declares no bound, if the compiler merged it with an
// equal kernel, and on other processors than x86-64.
unsigned LaunchBound(const void* kernel);

}  // namespace cadre::emulated
