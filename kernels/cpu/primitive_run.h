// A oneDNN primitive whose arguments are lent anew at each run, in plain row-major layouts. Where
// the primitive wants another layout, the argument is converted on the way in or out.
//
// Thread-compatible. A PrimitiveRun owns no buffers: converted arguments and scratch live in a
// Workspace, lent for the run, which many primitives share.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <dnnl.hpp>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace cadre {

// oneDNN reports errors by exceptions. All its calls are made inside OrDie: our extents are
// checked before, so what it refuses is our bug (or memory is out), and the process ends with
// oneDNN's words.
[[noreturn]] void DieOf(const dnnl::error& error, const char* what);
template <typename F>
auto OrDie(const char* what, F f) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    DieOf(error, what);
  }
}

// Buffers by number; each grows to the largest size asked for and stays.
class Workspace {
 public:
  // At least `bytes`, aligned to 64; contents are undefined. Valid until the same slot is asked for
  // more.
  void* Get(size_t slot, size_t bytes);

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  struct Buffer {
    std::unique_ptr<void, Free> data;
    size_t bytes = 0;
  };
  std::vector<Buffer> buffers_;
};

class PrimitiveRun {
 public:
  // `scratchpad`: what the primitive's description says of it. Requires: the primitive was made
  // with scratchpad_mode::user. (The library's own scratch belongs to the thread that made the
  // primitive, and a Kernels object may move between threads.)
  PrimitiveRun(const dnnl::engine& engine, dnnl::primitive primitive,
               const dnnl::memory::desc& scratchpad);

  // Declares the next argument: `plain` as it is lent, `wanted` as the primitive takes it.
  void AddInput(int argument, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
  void AddOutput(int argument, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);

  // Runs to the end. Requires: pointers in the order in which the arguments were declared.
  void Run(dnnl::stream& stream, Workspace& workspace, std::span<const float* const> inputs,
           std::span<float* const> outputs);

 private:
  struct Argument {
    dnnl::memory lent;
    // The same memory as `lent`, or what it is converted to or from.
    dnnl::memory used;
    // Empty where no conversion is needed.
    std::unique_ptr<dnnl::reorder> convert;
  };

  Argument MakeArgument(int argument, const dnnl::memory::desc& plain,
                        const dnnl::memory::desc& wanted);

  dnnl::engine engine_;
  dnnl::primitive primitive_;
  dnnl::memory scratchpad_;
  std::vector<Argument> inputs_;
  std::vector<Argument> outputs_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace cadre
