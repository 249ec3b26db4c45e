// The programs of a network: tapes with their layers, one for each number of samples, and the
// memory of their buffers.
//
// All programs share one block of memory for each micro-batch in flight, as large as the largest
// training program requires and, behind the blocks if there are several, the memory of a pass
// (SeparatePasses of plan/tape.h). Evaluation, of one batch at a time, may extend over all of it.
//
// Owns layers and memory; borrows everything else. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/box_exchange.h"
#include "comm/mesh_communicators.h"
#include "device/device.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tensor/values.h"
#include "worker/nn/layer.h"
#include "worker/nn/network_input.h"
#include "worker/nn/parameter_store.h"

namespace cadre {

// A tape with its layers. Layers refer to regions of the tape, so a program must not be moved.
struct Program {
  Tape tape;
  std::vector<std::unique_ptr<Layer>> layers;
  // Number of operations before the loss.
  size_t forward_ops = 0;
  // Positions of the operations kReceive.
  std::vector<size_t> receives;
  // Rows of the loss's input on this rank, and number of scores in each.
  int64_t label_rows = 0;
  int64_t classes = 0;

  // The operations [begin, end) of a pass.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  Range OfPass(bool backward) const {
    return backward ? Range{forward_ops + 1, tape.ops.size()} : Range{0, forward_ops};
  }
};

class Programs {
 public:
  Programs(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
           Backend& kernels, ParameterStore& parameters, MeshCommunicators& comms);

  // Require: there is no program.
  void set_in_flight(int micro_batches) { in_flight_ = micro_batches; }
  void set_fusion(Fusion fusion) { fusion_ = fusion; }
  int in_flight() const { return in_flight_; }

  // The program for batches of `samples`; created on first use, when memory grows to what it
  // requires.
  Program& For(int64_t samples, bool training);
  // Tape::orders, equal in all tapes of the graph. Requires: there is a program.
  uint32_t orders() const { return orders_; }

  // A buffer of the program in the block of a micro-batch; empty if `number` is no buffer.
  Values Buffer(const Program& program, int number, int micro_batch);
  // The same, or the batch itself for TapeOp::kInput.
  ConstValues Input(const Program& program, int number, int micro_batch);
  int BlockOf(int micro_batch) const { return micro_batch % in_flight_; }

  NetworkInput& batches() { return batches_; }
  const NetworkInput& batches() const { return batches_; }
  BoxExchange& exchange() { return exchange_; }

  // Labels allocations with the layer until an AllocationLabel is destroyed.
  void LabelAllocations(int layer) { device_.set_allocation_label(labels_of_layers_[layer]); }

  // As of Network.
  int64_t memory_moves() const { return memory_moves_; }
  int64_t activation_bytes() const { return 4 * memory_.size(); }
  int64_t buffer_bytes() const { return exchange_.buffer_bytes() + batches_.bytes(); }

 private:
  std::unique_ptr<Program> Make(int64_t samples, bool training);
  // Grows memory to what the program requires.
  void ReserveFor(const Program& program);

  const Graph& graph_;
  const Graph evaluated_graph_;
  const ParameterIndex& index_;
  const Plan& plan_;
  Backend& kernels_;
  Device& device_;
  Fusion fusion_;
  ParameterStore& parameters_;
  MeshCommunicators& comms_;
  BoxExchange exchange_;
  std::map<std::pair<int64_t, bool>, std::unique_ptr<Program>> programs_;
  uint32_t orders_ = 0;
  DeviceArray<float> memory_;
  // Size of a block, and of the memory of a pass.
  int64_t block_words_ = 0;
  int64_t pass_words_ = 0;
  int in_flight_ = 1;
  int64_t memory_moves_ = 0;
  NetworkInput batches_;
  // By layer, for allocation labels.
  std::vector<std::string> labels_of_layers_;
};

}  // namespace cadre
