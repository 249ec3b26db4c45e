// Makes cuDNN's plan of every convolution that the models of the GPU benchmark
// (bench/gpu/gpu_step.py) compute: with one rank, and on each rank of groups that split the
// samples, the rows of the images, or both, so that windows reach into halos and padding differs
// between the edges. No GPU is needed (plans_without_gpu.h). The language models have no
// convolutions.
//
// The extents are those that the layers request: for each rank of the planner's plan, the layers
// play the operations of the tape on a back end that only notes the convolutions. The memory is an
// address space that is never accessed.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/mesh_communicators.h"
#include "comm/transport/thread_transport.h"
#include "glog/logging.h"
#include "kernels/backend.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/vendor_layout.h"
#include "kernels/extents.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/zoo_file.h"
#include "plan/plan.h"
#include "plan/search/planner.h"
#include "plan/tape.h"
#include "tests/kernels/plans_without_gpu.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// The operations of the window layers of a network that LibraryMath computes by plans.
class NotedConvolutions final : public WindowKernels {
 public:
  NotedConvolutions(bool tf32, std::set<ConvolutionKey>& keys) : tf32_(tf32), keys_(keys) {}

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstFloatSpan /*w*/,
                          ConstFloatSpan /*b*/, Values y) override {
    Note(dims, ConvolutionPass::kForward, x, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan /*w*/,
                               Values dx) override {
    Note(dims, ConvolutionPass::kBackwardData, dx, dy);
  }
  // CudaWindow computes the gradient in scratch memory first.
  void AddConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan /*w*/,
                                  Values dx) override {
    Note(dims, ConvolutionPass::kBackwardData, dx, dy);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan /*dw*/, FloatSpan /*db*/) override {
    Note(dims, ConvolutionPass::kBackwardWeights, x, dy);
  }
  void PoolingForward(const PoolingDims&, ConstValues, Values, std::span<int32_t>) override {
    FAIL();
  }
  void PoolingBackward(const PoolingDims&, ConstValues, std::span<const int32_t>, Values) override {
    FAIL();
  }
  void GlobalAveragePoolForward(int64_t, int64_t, int64_t, int64_t, ConstValues, Values) override {
    FAIL();
  }
  void GlobalAveragePoolBackward(int64_t, int64_t, int64_t, int64_t, ConstValues, Values) override {
    FAIL();
  }

 private:
  void Note(const ConvolutionDims& dims, ConvolutionPass pass, ConstValues image,
            ConstValues outputs) {
    const LayerSizes sizes = SizesOf(dims);
    ASSERT_EQ(std::ssize(image), sizes.x);
    ASSERT_EQ(std::ssize(outputs), sizes.y);
    if (sizes.x == 0 || sizes.w == 0 || sizes.y == 0) return;
    const ConvolutionShape shape = ShapeOf(dims);
    if (shape.windows_miss_image) return;
    ConvolutionKey key{.dims = dims,
                       .pass = pass,
                       .type = image.type(),
                       .tf32 = tf32_,
                       .alignment = CommonAlignment(image.data(), nullptr, outputs.data())};
    keys_.insert(key);
    // Weights in our order are read at any address within their bucket.
    if (shape.reorders_weights || pass == ConvolutionPass::kBackwardWeights) return;
    key.alignment = SizeOf(key.type);
    keys_.insert(key);
  }

  const bool tf32_;
  std::set<ConvolutionKey>& keys_;
};

class NoCopies final : public MemoryKernels {
 public:
  void CopyBox(ConstValues, const Box&, Values, const Box&, const Box&) override {}
  void Copy(ConstValues, Values) override { FAIL(); }
  void Zero(Values) override { FAIL(); }
  void CopyRuns(int64_t, int64_t, ConstValues, int64_t, Values, int64_t) override { FAIL(); }
  void AddBox(ConstValues, const Box&, Values, const Box&, const Box&) override { FAIL(); }
  void AccumulateReceived(DType, std::span<std::byte>, std::span<const std::byte>) override {
    FAIL();
  }
  bool AllFinite(ConstValues) override { return true; }
  void Transpose(int64_t, int64_t, int64_t, ConstValues, Values) override { FAIL(); }
};

class NotingBackend final : public Backend {
 public:
  NotingBackend(Precision precision, std::set<ConvolutionKey>& keys)
      : type_(precision == Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32) {
    families_.memory = std::make_unique<NoCopies>();
    families_.window = std::make_unique<NotedConvolutions>(precision == Precision::kTf32, keys);
  }
  Device& device() override { return host_->device(); }
  DType activation_type() const override { return type_; }
  absl::Status CheckPrecision(Precision) const override { return absl::OkStatus(); }
  absl::Status SetPrecision(Precision) override { return absl::OkStatus(); }
  void WeightsChanged(ConstFloatSpan) override {}
  std::unique_ptr<Backend> OneThread() const override { return nullptr; }

 private:
  const DType type_;
  const std::unique_ptr<Backend> host_ = MakeReferenceBackend();
};

// Addresses for the buffers of a tape; an access ends the process.
class AddressSpace {
 public:
  explicit AddressSpace(const Tape& tape)
      : tape_(tape), bytes_(4 * std::max(tape.words, tape.input.shape().elements()) + 1) {
    memory_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory_ != MAP_FAILED);
  }
  ~AddressSpace() { munmap(memory_, bytes_); }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  Values Buffer(int number) const {
    if (number == TapeOp::kNone) return {};
    if (number == TapeOp::kInput) {
      return {memory_, static_cast<size_t>(tape_.input.shape().elements()), tape_.activations};
    }
    const TapeBuffer& buffer = tape_.buffers[number];
    return {static_cast<std::byte*>(memory_) + 4 * buffer.offset,
            static_cast<size_t>(buffer.elements), buffer.type};
  }

 private:
  const Tape& tape_;
  const size_t bytes_;
  void* memory_ = nullptr;
};

struct Split {
  int ranks = 1;
  // The number of these ranks that split the rows of images.
  int space_ranks = 1;
};

struct Case {
  const char* model = "";
  int batch = 0;
};

void PrintTo(const Case& of, std::ostream* out) { *out << of.model << " at batch " << of.batch; }

// Plays the convolutions of a training step of one rank.
class RankConvolutions {
 public:
  RankConvolutions(const Graph& graph, const Plan& plan, MeshCommunicators& comms, int64_t samples,
                   Backend& kernels)
      : graph_(graph),
        plan_(plan),
        comms_(comms),
        kernels_(kernels),
        samples_(samples),
        tape_(MakeTape(graph, plan, comms.rank(), samples, /*training=*/true,
                       kernels.activation_type())),
        memory_(tape_) {}

  void Play() {
    for (size_t i = 0; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      const bool computes = op.kind == TapeOpKind::kForward || op.kind == TapeOpKind::kBackward;
      if (!computes || graph_[op.layer].kind != LayerKind::kConvolution) continue;
      const bool has_halo =
          i > 0 && tape_.ops[i - 1].with_next && tape_.ops[i - 1].kind == TapeOpKind::kMove;
      const absl::Status status = PlayOp(op, has_halo ? &tape_.ops[i - 1] : nullptr);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

 private:
  // `halo`: the move during which the interior is computed; null if there is none.
  absl::Status PlayOp(const TapeOp& op, const TapeOp* halo) {
    const GraphLayer& layer = graph_[op.layer];
    const std::unique_ptr<Layer> made =
        MakeLayer({.layer = layer,
                   .layouts = plan_.layers[op.layer],
                   .region = tape_.regions[op.layer],
                   .samples = samples_,
                   .number = op.layer,
                   .kernels = kernels_,
                   .comms = comms_,
                   .parameters = std::vector<LocalTensor>(layer.parameters.size())});
    LayerTensors tensors{.y = memory_.Buffer(op.y),
                         .scratch = memory_.Buffer(op.scratch),
                         .dy = memory_.Buffer(op.dy),
                         .adds_dx = op.adds_dx};
    for (const int x : op.x) tensors.x.push_back(memory_.Buffer(x));
    for (const int dx : op.dx) tensors.dx.push_back(memory_.Buffer(dx));
    const PassContext pass{.training = true};
    if (op.kind == TapeOpKind::kBackward) return made->Backward(pass, tensors);
    if (halo == nullptr) return made->Forward(pass, tensors);
    absl::Status status = made->halo_parts()->ForwardInterior(memory_.Buffer(halo->x[0]), tensors);
    status.Update(made->halo_parts()->ForwardBorder(tensors));
    return status;
  }

  const Graph& graph_;
  const Plan& plan_;
  MeshCommunicators& comms_;
  Backend& kernels_;
  const int64_t samples_;
  const Tape tape_;
  const AddressSpace memory_;
};

void AddConvolutions(const Case& of, const Split& split, std::set<ConvolutionKey>& keys) {
  auto file = ReadRunSpecOrZoo(of.model);
  ASSERT_TRUE(file.ok()) << file.status();
  v1::RunSpec& spec = file->spec;
  spec.set_batch_per_group(of.batch);
  spec.set_micro_batches(1);
  spec.mutable_cluster()->set_ranks_per_group(split.ranks);
  spec.mutable_cluster()->set_model_ranks(1);
  spec.mutable_cluster()->set_space_ranks(split.space_ranks);
  const auto graph = Graph::FromModel(spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto proto = MakePlan(spec, split.ranks);
  ASSERT_TRUE(proto.ok()) << proto.status();
  const auto plan = PlanFromProto(*proto, *graph, ParameterIndex::FromGraph(*graph));
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const auto& transport : MakeThreadTransports(split.ranks, absl::Seconds(10))) {
    MeshCommunicators comms(*transport, plan->mesh);
    for (const Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
      NotingBackend kernels(precision, keys);
      RankConvolutions(*graph, *plan, comms, of.batch, kernels).Play();
    }
  }
}

bool IsAsymmetric(const ConvolutionKey& key) {
  const WindowPadding padding = PaddingOf(key.dims.window);
  return padding.top != padding.bottom;
}

class ZooConvolutionsTest : public PlansWithoutGpu, public ::testing::WithParamInterface<Case> {};

TEST_P(ZooConvolutionsTest, EveryConvolutionIsPlannedOrLeftToTheFallback) {
  std::set<ConvolutionKey> alone, keys;
  AddConvolutions(GetParam(), {}, alone);
  keys = alone;
  for (const Split& split : {Split{2, 1}, Split{4, 1}, Split{2, 2}, Split{4, 2}, Split{4, 4}}) {
    AddConvolutions(GetParam(), split, keys);
  }
  if (HasFailure()) return;
  int planned = 0, missing = 0;
  for (const ConvolutionKey& key : keys) {
    const auto plan = MakeConvolutionPlan(target_, key);
    if (plan.ok()) {
      EXPECT_LE(static_cast<int64_t>((*plan)->workspace()), target_.workspace_limit);
      ++planned;
      continue;
    }
    EXPECT_TRUE(absl::IsUnimplemented(plan.status())) << plan.status();
    EXPECT_TRUE(HasDirectConvolution(key.dims)) << plan.status();
    std::cout << "no plan " << ++missing << ": " << plan.status().message() << std::endl;
  }
  const int64_t asymmetric = std::count_if(keys.begin(), keys.end(), IsAsymmetric);
  std::cout << ::testing::PrintToString(GetParam()) << ": " << planned << " plans (" << alone.size()
            << " keys of one rank, " << asymmetric
            << " with different padding at the top and at the bottom), " << missing
            << " left to the fallback" << std::endl;
  EXPECT_GT(planned, 0);
  EXPECT_GT(asymmetric, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, ZooConvolutionsTest,
                         ::testing::Values(Case{"lenet", 512}, Case{"alexnet", 256},
                                           Case{"vgg11", 64}, Case{"resnet18", 256},
                                           Case{"resnet50", 128}, Case{"resnet50", 32}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.model, "_", info.param.batch);
                         });

}  // namespace
}  // namespace cadre
