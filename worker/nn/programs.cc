#include "worker/nn/programs.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "worker/nn/allocation_label.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {

Programs::Programs(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
                   Backend& kernels, ParameterStore& parameters, MeshCommunicators& comms)
    : graph_(graph),
      evaluated_graph_(graph.ForEvaluation()),
      index_(index),
      plan_(plan),
      kernels_(kernels),
      device_(kernels.device()),
      fusion_(device_.is_host() ? Fusion::kHost : Fusion::kCommon),
      parameters_(parameters),
      comms_(comms),
      exchange_(comms, kernels),
      batches_(graph, plan, comms.rank(), seed, kernels) {
  for (const GraphLayer& layer : graph.layers())
    labels_of_layers_.push_back(LayerDisplayName(layer.name));
}

Program& Programs::For(int64_t samples, bool training) {
  std::unique_ptr<Program>& program = programs_[{samples, training}];
  if (program == nullptr) {
    program = Make(samples, training);
    ReserveFor(*program);
  }
  return *program;
}

std::unique_ptr<Program> Programs::Make(int64_t samples, bool training) {
  const AllocationLabel allocation_label(device_);
  const Graph& graph = training ? graph_ : evaluated_graph_;
  auto program = std::make_unique<Program>();
  program->tape =
      MakeTape(graph, plan_, comms_.rank(), samples, training, kernels_.activation_type(), fusion_,
               device_.is_host() ? v1::Cluster::CPU : v1::Cluster::CUDA);
  if (training && in_flight_ > 1) SeparatePasses(program->tape);
  const Tape& tape = program->tape;
  orders_ = tape.orders;
  for (int l = 0; l + 1 < graph.size(); ++l) {
    if (!plan_.mesh.IsAt(comms_.rank(), plan_.layers[l].at)) {
      program->layers.push_back(nullptr);
      continue;
    }
    LabelAllocations(l);
    const int tied_to = graph[l].tied_to;
    program->layers.push_back(
        MakeLayer({.layer = graph[l],
                   .layouts = plan_.layers[l],
                   .region = tape.regions[l],
                   .samples = samples,
                   .number = l,
                   .kernels = kernels_,
                   .comms = comms_,
                   .parameters = parameters_.OfLayer(index_, l),
                   .tied_weight = tied_to == GraphLayer::kNotTied
                                      ? LocalTensor()
                                      : parameters_.OfLayer(index_, tied_to)[0]}));
  }
  const auto loss = std::find_if(tape.ops.begin(), tape.ops.end(),
                                 [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
  program->forward_ops = loss - tape.ops.begin();
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    if (tape.ops[i].kind == TapeOpKind::kReceive) program->receives.push_back(i);
  }
  const Shape compared = tape.regions.back().inputs[0].shape();
  program->classes = compared[compared.rank() - 1];
  program->label_rows = LabelsIn(tape);
  return program;
}

void Programs::ReserveFor(const Program& program) {
  const Tape& tape = program.tape;
  // Work that is still running may use memory that is freed here.
  if (!device_.Synchronize().ok()) return;
  const AllocationLabel allocation_label(device_,
                                         absl::StrCat("for batches of ", tape.samples, ", most at ",
                                                      labels_of_layers_[LayerAtPeak(tape)]));
  bool moved = false;
  const int64_t block_words = tape.training ? std::max(block_words_, tape.words) : block_words_;
  const int64_t pass_words = std::max(pass_words_, tape.pass_words);
  const int64_t words = std::max(in_flight_ * block_words + pass_words, tape.words);
  if (words > std::ssize(memory_.span())) {
    moved = memory_.size() > 0;
    // Frees the old memory first, to keep the peak low.
    memory_ = DeviceArray<float>();
    memory_ = DeviceArray<float>(device_, words, "activations");
  }
  if (block_words > block_words_) {
    moved = moved || block_words_ > 0;
    block_words_ = block_words;
  }
  pass_words_ = pass_words;
  device_.set_allocation_label(absl::StrCat("for batches of ", tape.samples));
  for (const TapeOp& op : tape.ops) {
    if (!PacksOutsideOfTape(op)) continue;
    const DType type = tape.buffers[op.y].type;
    moved = exchange_.Reserve(op.move, type) || moved;
  }
  moved = batches_.Reserve(tape) || moved;
  if (moved) ++memory_moves_;
}

Values Programs::Buffer(const Program& program, int number, int micro_batch) {
  if (number < 0) return {};
  const TapeBuffer& buffer = program.tape.buffers[number];
  if (buffer.elements == 0) return {nullptr, 0, buffer.type};
  // Offsets and sizes in memory count units of four bytes; elements may be narrower.
  const int blocks = buffer.of_pass ? in_flight_ : BlockOf(micro_batch);
  const std::span<float> memory =
      memory_.span().subspan(blocks * block_words_ + buffer.offset, buffer.words);
  return Values(memory.data(), buffer.elements, buffer.type);
}

ConstValues Programs::Input(const Program& program, int number, int micro_batch) {
  if (number == TapeOp::kInput) return batches_.inputs();
  return Buffer(program, number, micro_batch);
}

}  // namespace cadre
