// The messages of a step between ranks that compute different layers (kSend and kReceive of
// plan/tape.h), in all passes of the step.
//
// The messages of a step are declared when it begins, and numbered by the position of the pass that
// receives them (plan/pipeline.h); numbers increase from step to step. At most one message is being
// received at a time: that of the next kReceive, also if this is in the next pass, whose memory is
// free.
//
// Borrows everything. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/mesh_communicators.h"
#include "comm/placed_messages.h"
#include "device/device.h"
#include "model/graph.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "worker/nn/programs.h"

namespace cadre {

class StepMessages {
 public:
  StepMessages(const Graph& graph, const Plan& plan, Programs& programs, MeshCommunicators& comms,
               Device& device)
      : graph_(graph), plan_(plan), programs_(programs), comms_(comms), device_(device) {}

  // Begins a step with these passes of a stage, and declares what this rank sends in them.
  // samples[i]: of micro-batch i. `order` is borrowed until the next step.
  void Begin(const PassOrder& order, int stage, std::span<const int64_t> samples, bool training,
             std::span<const Pass> passes);
  const PassOrder& order() const { return *order_; }

  // Sets which pass is played next.
  void Enter(Pass pass);
  // The pass that is played, its position (of PassOrder), and its program.
  Pass pass() const { return passes_[playing_]; }
  int position() const { return order_->Position(stage_, pass()); }
  Program& program() { return ProgramOf(pass()); }
  bool in_last_pass() const { return playing_ + 1 == passes_.size(); }

  // Messages that are received in passes before a position, or before an operation of this pass,
  // precede what the rank does next; or all messages.
  absl::Status PrecedePosition(int position);
  absl::Status PrecedeOp(const TapeOp& op);
  absl::Status PrecedeAll();

  // Whether any tape sends or receives.
  bool exist() const { return messages_ != nullptr; }
  // Whether messages may still be sent from the memory of the pass that is played. AwaitSent waits
  // for them, AwaitAll for all. Require: messages exist.
  bool IsSending() const { return !sending_[programs_.BlockOf(pass().micro_batch)].empty(); }
  absl::Status AwaitSent();
  absl::Status AwaitAll() { return messages_->AwaitAll(); }

  void Send(const Program& program, const TapeOp& op);
  // Starts to receive what the pass that is played receives first, if nothing is being received.
  void StartReceiving();
  // Returns when the message of `op` is received and unpacked.
  absl::Status Receive(const Program& program, const TapeOp& op);

 private:
  Program& ProgramOf(Pass pass) { return programs_.For(samples_[pass.micro_batch], training_); }
  Values Buffer(const Program& program, int number, Pass pass) {
    return programs_.Buffer(program, number, pass.micro_batch);
  }
  uint32_t NumberOf(const TapeOp& op, Pass pass) const {
    return first_number_ + MessageNumber(*order_, graph_, plan_, op, pass, programs_.orders());
  }
  // The number of the first message that is received in passes at a position.
  uint32_t FirstNumber(int position) const { return first_number_ + position * programs_.orders(); }
  // Starts to receive, in the background, the message of the first kReceive at or after operation
  // `from` of the pass that is played or, if it has none, of the next pass if its memory is free.
  // Requires: no message is being received.
  void ReceiveNext(size_t from);

  const Graph& graph_;
  const Plan& plan_;
  Programs& programs_;
  MeshCommunicators& comms_;
  Device& device_;
  // The step's order, its number of samples by micro-batch, and the number of its first message.
  const PassOrder* order_ = nullptr;
  std::vector<int64_t> samples_;
  uint32_t first_number_ = 0;
  // The number of messages that the step may have.
  uint32_t numbers_ = 0;
  bool training_ = false;
  int stage_ = 0;
  // The step's passes on this rank, and the index of the one that is played.
  std::vector<Pass> passes_;
  size_t playing_ = 0;
  // By block of memory: messages that may still be sent from it.
  std::vector<std::vector<uint32_t>> sending_;
  // The kReceive whose message is being received, or null.
  const TapeOp* receiving_ = nullptr;
  // Null: no tape sends or receives.
  std::unique_ptr<PlacedMessages> messages_;
};

}  // namespace cadre
