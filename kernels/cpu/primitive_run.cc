#include "kernels/cpu/primitive_run.h"

#include <glog/logging.h>

#include <utility>

namespace cadre {
namespace {

constexpr size_t kAlignment = 64;

// Sets the handle only if it changes, because setting it makes oneDNN clear the padding.
void SetHandle(dnnl::memory& memory, void* data) {
  if (memory.get_data_handle() != data) memory.set_data_handle(data);
}

}  // namespace

void DieOf(const dnnl::error& error, const char* what) {
  LOG(FATAL) << what << ": oneDNN reports " << error.message << " (status " << error.status << ")";
  std::abort();  // LOG(FATAL) does not return, but not every version of glog declares that.
}

dnnl::memory::data_type OneDnnType(DType type) {
  CHECK(type == DType::kFloat32 || type == DType::kBFloat16) << DTypeName(type);
  using Type = dnnl::memory::data_type;
  return type == DType::kFloat32 ? Type::f32 : Type::bf16;
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

void* Workspace::Get(size_t slot, size_t bytes) {
  if (slot >= buffers_.size()) buffers_.resize(slot + 1);
  Buffer& buffer = buffers_[slot];
  if (buffer.bytes < bytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    buffer.data.reset();
    buffer.data.reset(std::aligned_alloc(kAlignment, rounded));
    CHECK(buffer.data != nullptr) << "no memory for " << rounded << " bytes of workspace";
    buffer.bytes = rounded;
  }
  return buffer.data.get();
}

PrimitiveRun::PrimitiveRun(const dnnl::engine& engine, dnnl::primitive primitive,
                           const dnnl::memory::desc& scratchpad)
    : engine_(engine),
      primitive_(std::move(primitive)),
      scratchpad_(scratchpad, engine, DNNL_MEMORY_NONE) {
  arguments_.emplace(DNNL_ARG_SCRATCHPAD, scratchpad_);
}

PrimitiveRun::Argument PrimitiveRun::MakeArgument(int argument, const dnnl::memory::desc& plain,
                                                  const dnnl::memory::desc& native) {
  Argument result;
  result.caller = dnnl::memory(plain, engine_, DNNL_MEMORY_NONE);
  // Copies of a dnnl::memory share one handle, so it is set once for all of them.
  result.native = plain == native ? result.caller : dnnl::memory(native, engine_, DNNL_MEMORY_NONE);
  arguments_.emplace(argument, result.native);
  return result;
}

void PrimitiveRun::AddInput(int argument, const dnnl::memory::desc& plain,
                            const dnnl::memory::desc& native) {
  Argument added = MakeArgument(argument, plain, native);
  if (plain != native) added.convert = std::make_unique<dnnl::reorder>(added.caller, added.native);
  inputs_.push_back(std::move(added));
}

void PrimitiveRun::AddOutput(int argument, const dnnl::memory::desc& plain,
                             const dnnl::memory::desc& native) {
  Argument added = MakeArgument(argument, plain, native);
  if (plain != native) added.convert = std::make_unique<dnnl::reorder>(added.native, added.caller);
  outputs_.push_back(std::move(added));
}

void PrimitiveRun::Run(dnnl::stream& stream, Workspace& workspace,
                       std::span<const void* const> inputs, std::span<void* const> outputs) {
  CHECK_EQ(inputs.size(), inputs_.size());
  CHECK_EQ(outputs.size(), outputs_.size());
  size_t slot = 0;
  SetHandle(scratchpad_, workspace.Get(slot++, scratchpad_.get_desc().get_size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    // const_cast: oneDNN has one type for inputs and outputs, but does not write inputs.
    SetHandle(inputs_[i].caller, const_cast<void*>(inputs[i]));
    if (inputs_[i].convert == nullptr) continue;
    SetHandle(inputs_[i].native, workspace.Get(slot++, inputs_[i].native.get_desc().get_size()));
    inputs_[i].convert->execute(stream, inputs_[i].caller, inputs_[i].native);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    SetHandle(outputs_[i].caller, outputs[i]);
    if (outputs_[i].convert == nullptr) continue;
    SetHandle(outputs_[i].native, workspace.Get(slot++, outputs_[i].native.get_desc().get_size()));
  }
  primitive_.execute(stream, arguments_);
  for (Argument& output : outputs_) {
    if (output.convert != nullptr) output.convert->execute(stream, output.native, output.caller);
  }
  stream.wait();
}

}  // namespace cadre
