#include "worker/nn/step_messages.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

void StepMessages::Begin(const PassOrder& order, int stage, std::span<const int64_t> samples,
                         bool training, std::span<const Pass> passes) {
  CHECK_EQ(order.micro_batches(), std::ssize(samples));
  // The numbers of the step before end here. They may wrap around: a step has fewer than 2^31, and
  // they are compared modulo 2^32.
  first_number_ += numbers_;
  order_ = &order;
  stage_ = stage;
  samples_.assign(samples.begin(), samples.end());
  passes_.assign(passes.begin(), passes.end());
  playing_ = 0;
  training_ = training;
  sending_.assign(programs_.in_flight(), {});
  std::vector<uint32_t> numbers;
  bool receives = false;
  for (const Pass pass : passes) {
    const Program& program = ProgramOf(pass);
    const Program::Range range = program.OfPass(pass.backward);
    for (size_t i = range.begin; i < range.end; ++i) {
      const TapeOp& op = program.tape.ops[i];
      receives = receives || op.kind == TapeOpKind::kReceive;
      if (op.kind == TapeOpKind::kSend) numbers.push_back(NumberOf(op, pass) - first_number_);
    }
  }
  numbers_ = order.Positions() * programs_.orders();
  if (messages_ == nullptr) {
    if (numbers.empty() && !receives) return;
    messages_ = PlacedMessages::Make(comms_.transport(), device_);
  }
  // In the order of the receives.
  std::sort(numbers.begin(), numbers.end());
  for (uint32_t& number : numbers) number += first_number_;
  messages_->Expect(numbers);
}

void StepMessages::Enter(Pass pass) {
  // Not always the pass after the one before: a recorded pass is not entered.
  playing_ = std::ranges::find(passes_, pass) - passes_.begin();
  CHECK_LT(playing_, passes_.size()) << "the step has no such pass";
}

absl::Status StepMessages::PrecedePosition(int position) {
  return messages_ == nullptr ? absl::OkStatus() : messages_->Precede(FirstNumber(position));
}

// The order of a send is that of its receive.
absl::Status StepMessages::PrecedeOp(const TapeOp& op) {
  if (messages_ == nullptr || op.kind == TapeOpKind::kSend) return absl::OkStatus();
  return messages_->Precede(FirstNumber(position()) + op.order);
}

absl::Status StepMessages::PrecedeAll() {
  return messages_ == nullptr ? absl::OkStatus() : messages_->PrecedeAll();
}

absl::Status StepMessages::AwaitSent() {
  std::vector<uint32_t>& sending = sending_[programs_.BlockOf(pass().micro_batch)];
  CADRE_RETURN_IF_ERROR(messages_->AwaitSent(sending));
  sending.clear();
  return absl::OkStatus();
}

void StepMessages::Send(const Program& program, const TapeOp& op) {
  std::vector<Transfer> transfers = programs_.exchange().Pack(
      op.move.steps[0], programs_.Input(program, op.x[0], pass().micro_batch),
      Buffer(program, op.scratch, pass()));
  for (const Transfer& transfer : transfers) comms_.AddSent(transfer.data.size());
  const uint32_t number = NumberOf(op, pass());
  sending_[programs_.BlockOf(pass().micro_batch)].push_back(number);
  messages_->Post(number, std::move(transfers));
}

void StepMessages::StartReceiving() {
  if (receiving_ == nullptr) ReceiveNext(0);
}

void StepMessages::ReceiveNext(size_t from) {
  for (size_t p = playing_; p < std::min(passes_.size(), playing_ + 2); ++p) {
    const Pass receiver = passes_[p];
    const int block = programs_.BlockOf(receiver.micro_batch);
    if (p != playing_) {
      // What forward sends lives until the loss, where the memory of receives in backward begins.
      const std::vector<uint32_t>& sending = sending_[block];
      const bool is_free = block != programs_.BlockOf(pass().micro_batch) &&
                           (receiver.backward || sending.empty() || messages_->AreSent(sending));
      if (!is_free) return;
      from = 0;
    }
    const Program& program = ProgramOf(receiver);
    const Program::Range range = program.OfPass(receiver.backward);
    const auto next = std::ranges::lower_bound(program.receives, std::max(from, range.begin));
    if (next == program.receives.end() || *next >= range.end) continue;
    const TapeOp& op = program.tape.ops[*next];
    receiving_ = &op;
    std::vector<Transfer> transfers = programs_.exchange().PrepareReceives(
        op.move.steps[0], Buffer(program, op.scratch, receiver), Buffer(program, op.y, receiver));
    return messages_->StartReceiving(NumberOf(op, receiver), std::move(transfers));
  }
}

absl::Status StepMessages::Receive(const Program& program, const TapeOp& op) {
  CHECK(receiving_ == &op) << "messages are received in the order of the tape";
  const absl::Status status = messages_->FinishReceiving();
  receiving_ = nullptr;
  CADRE_RETURN_IF_ERROR(status);
  programs_.exchange().FinishReceives(
      op.move.steps[0], programs_.Input(program, op.x[0], pass().micro_batch),
      Buffer(program, op.scratch, pass()), Buffer(program, op.y, pass()));
  ReceiveNext(&op - program.tape.ops.data() + 1);
  return absl::OkStatus();
}

}  // namespace cadre
