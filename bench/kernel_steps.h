// The operations of a training step of the networks that Cadre is measured with, as calls of
// Kernels: what a worker does in a step, without the engine around it.
//
// A Step owns its tensors; its operations refer to them. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "tensor/tensor.h"

namespace cadre {

struct Operation {
  // Like "3.conv.backward_weights": the layer's number, what it is, what is done.
  std::string name;
  // Floating-point operations; 0 where memory is what counts.
  double flop = 0;
  // Bytes that must be read or written at least.
  double bytes = 0;
  std::function<void()> run;
};

class Step {
 public:
  // Lends `kernels` to the operations. Requires: batch >= 1.
  Step(Backend& kernels, int64_t batch);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Names that Build takes.
  static std::vector<std::string> Models();
  // Fills the step with a model. Returns false where there is none of that name.
  // Requires: called once.
  bool Build(absl::string_view model);

  // Forward, loss, backward and update, in this order.
  std::vector<Operation> Operations() const;
  int64_t parameters() const { return parameters_; }

 private:
  // An activation or a parameter, with its gradient and, for parameters, its velocity.
  struct Blob {
    int64_t height = 1, width = 1, channels = 0;
    std::span<float> value, gradient, velocity;
  };

  std::span<float> Floats(int64_t n);
  Blob* Image(int64_t height, int64_t width, int64_t channels);
  Blob* Parameter(int64_t n);
  void Forward(const std::string& what, double flop, double bytes, std::function<void()> run);
  void Backward(const std::string& what, double flop, double bytes, std::function<void()> run);

  Blob* Convolution(Blob* x, int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                    bool bias);
  Blob* BatchNorm(Blob* x);
  Blob* Relu(Blob* x);
  Blob* MaxPool(Blob* x, int64_t kernel, int64_t stride, int64_t padding);
  Blob* GlobalPool(Blob* x);
  Blob* Add(Blob* branch, Blob* shortcut);
  Blob* FullyConnected(Blob* x, int64_t out);
  void Loss(Blob* x);

  void LeNet();
  void AlexNet();
  void Vgg11();
  void ResNet(bool bottleneck, const std::vector<int>& depths);
  Blob* Residual(Blob* x, bool bottleneck, int64_t width, int64_t stride);

  Backend& kernels_;
  const int64_t batch_;
  int64_t parameters_ = 0;
  int layer_ = 0;
  std::deque<Tensor> storage_;
  std::deque<Blob> blobs_;
  std::deque<std::vector<int32_t>> indices_;
  const Blob* input_ = nullptr;
  std::vector<Operation> forward_, backward_, update_;
};

}  // namespace cadre
