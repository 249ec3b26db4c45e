// A oneDNN primitive whose arguments are passed at each run, in plain row-major layouts. Arguments
// for which the primitive needs another layout are converted before or after it.
//
// Thread-compatible. A PrimitiveRun owns no buffers: converted arguments and scratch memory are in
// a Workspace, which many primitives share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <dnnl.hpp>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "tensor/dtype.h"

namespace cadre {

// oneDNN reports errors by exceptions. All its calls are made inside OrDie: since extents are
// checked before, an error is a bug of Cadre (or a lack of memory), and the process ends with
// oneDNN's message.
[[noreturn]] void DieOf(const dnnl::error& error, const char* what);
template <typename F>
auto OrDie(const char* what, F f) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    DieOf(error, what);
  }
}

// oneDNN's type of fp32 or bf16 elements.
dnnl::memory::data_type OneDnnType(DType type);

// Attributes of primitives whose scratch memory is passed at each run.
dnnl::primitive_attr UserScratchpad();

// Numbered buffers ("slots"), each of which keeps the largest size that was requested.
class Workspace {
 public:
  // At least `bytes`, aligned to 64; contents are undefined. Valid until a larger size of the
  // same slot is requested.
  void* Get(size_t slot, size_t bytes);
  template <typename T>
  T* Array(size_t slot, int64_t count) {
    return static_cast<T*>(Get(slot, count * sizeof(T)));
  }
  float* Floats(size_t slot, int64_t count) { return Array<float>(slot, count); }

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
  // `scratchpad` is the scratchpad_desc of the primitive's description. Requires: the primitive was
  // made with scratchpad_mode::user. (In the other mode, the scratch memory belongs to the thread
  // that made the primitive, but a back end may move between threads.)
  PrimitiveRun(const dnnl::engine& engine, dnnl::primitive primitive,
               const dnnl::memory::desc& scratchpad);

  // Declares the next argument: `plain` is the caller's layout, `native` the primitive's.
  void AddInput(int argument, const dnnl::memory::desc& plain, const dnnl::memory::desc& native);
  void AddOutput(int argument, const dnnl::memory::desc& plain, const dnnl::memory::desc& native);

  // Returns when the primitive has finished. Requires: pointers in the order in which the arguments
  // were declared.
  void Run(dnnl::stream& stream, Workspace& workspace, std::span<const void* const> inputs,
           std::span<void* const> outputs);

 private:
  struct Argument {
    dnnl::memory caller;
    // The same memory as `caller`, or memory in the primitive's layout to or from which `caller` is
    // converted.
    dnnl::memory native;
    // Null if no conversion is needed.
    std::unique_ptr<dnnl::reorder> convert;
  };

  Argument MakeArgument(int argument, const dnnl::memory::desc& plain,
                        const dnnl::memory::desc& native);

  dnnl::engine engine_;
  dnnl::primitive primitive_;
  dnnl::memory scratchpad_;
  std::vector<Argument> inputs_;
  std::vector<Argument> outputs_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace cadre
