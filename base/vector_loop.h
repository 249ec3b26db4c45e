// A macro that compiles a loop for several levels of the instruction set.
#pragma once

// A function with CADRE_VECTOR_LOOP is compiled once for each level of the instruction set below;
// the loader picks the highest that the processor supports. Requires: it is a leaf, or calls only
// what is inlined into it (a call would leave the level), and starts no OpenMP region. Sanitizers
// cannot run before the loader's choice, and clang 14 does not support the levels: both use the
// baseline.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CADRE_VECTOR_LOOP \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CADRE_VECTOR_LOOP
#endif
