// On the host, sends and receives spend their time in system calls and copies. A thread sends in
// the order of the numbers (comm/send_queue.h), another one receives.
//
// On a device both are enqueued, on a stream of their own: a message is sent after the event that
// its data is ready, and received after the event that its memory is free; the stream that computes
// waits for the event that a message has arrived only where it needs it. So the order in which the
// host enqueues decides about deadlocks, not the times at which operations run. NCCL executes the
// calls of a communicator in the order in which they are enqueued, a send ends only when it is
// received, and a call of one communicator waits until calls of others, enqueued before it, have
// started (NCCL_LAUNCH_ORDER_IMPLICIT). Therefore the calls of every rank, on all communicators,
// are a subsequence of one sequence: that of plan/tape.cc, in which each message stands where it is
// received. A send is enqueued when the rank comes to an operation behind that place (Precede); a
// receive is enqueued where the tape has it. What a rank sends and receives under one number is one
// group of calls, because two ranks that both send first would wait for each other. If all ranks
// wait, the earliest call in the sequence that has not ended has been enqueued by all its ranks:
// nothing that it waits for is left.
//
// The host enqueues ahead of the device, so a message that is enqueued late is not sent late, as
// long as the host has not to wait. Limit: the sends and receives of a rank follow one another, as
// they are on one stream.
#include "comm/placed_messages.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "comm/background_move.h"
#include "comm/send_queue.h"
#include "glog/logging.h"

namespace cadre {
namespace {

class HostMessages final : public PlacedMessages {
 public:
  HostMessages(Transport& transport, Device& device)
      : transport_(transport), sends_(transport), receiver_(BackgroundMove::Make(device)) {}
  // The thread may be blocked in a receive.
  ~HostMessages() override {
    if (receiving_) {
      transport_.Abort(absl::CancelledError("a rank left before it had received a message"));
    }
  }

  void Expect(std::span<const uint32_t> numbers) override { sends_.Expect(numbers); }
  void Post(uint32_t number, std::vector<Transfer> transfers) override {
    sends_.Post(number, std::move(transfers));
  }
  // The threads do not wait for the caller.
  absl::Status Precede(uint32_t /*number*/) override { return absl::OkStatus(); }
  absl::Status PrecedeAll() override { return absl::OkStatus(); }
  bool AreSent(std::span<const uint32_t> numbers) const override { return sends_.AreSent(numbers); }
  absl::Status AwaitSent(std::span<const uint32_t> numbers) override {
    return sends_.WaitFor(numbers);
  }
  absl::Status AwaitAll() override { return sends_.Wait(); }

  void StartReceiving(uint32_t number, std::vector<Transfer> transfers) override {
    receiving_ = true;
    receiver_->Start([this, number, transfers = std::move(transfers)] {
      if (transfers.empty()) return absl::OkStatus();
      return transport_.Run(Transport::kReceives, ReceiveTag(number), transfers, {});
    });
  }
  absl::Status FinishReceiving() override {
    receiving_ = false;
    return receiver_->Wait();
  }

 private:
  Transport& transport_;
  SendQueue sends_;
  bool receiving_ = false;
  const std::unique_ptr<BackgroundMove> receiver_;
};

class DeviceMessages final : public PlacedMessages {
 public:
  DeviceMessages(Transport& transport, Device& device)
      : transport_(transport),
        device_(device),
        free_(device.MakeEvent()),
        arrived_(device.MakeEvent()) {}
  ~DeviceMessages() override {
    if (next_ == expected_ && !receiving_) return;
    transport_.Abort(absl::CancelledError("a rank left before its messages had moved"));
  }

  void Expect(std::span<const uint32_t> numbers) override {
    CHECK(next_ == expected_ || !transport_.status().ok()) << "messages are unsent";
    next_ = 0;
    expected_ = numbers.size();
    while (messages_.size() < expected_) messages_.push_back({.event = device_.MakeEvent()});
    for (size_t i = 0; i < expected_; ++i) {
      messages_[i].number = numbers[i];
      messages_[i].posted = false;
    }
  }

  void Post(uint32_t number, std::vector<Transfer> transfers) override {
    Message& message = Find(number);
    CHECK(!message.posted) << "message " << number << " is posted twice";
    message.posted = true;
    message.transfers = std::move(transfers);
    device_.Record(*message.event);
  }

  absl::Status Precede(uint32_t number) override {
    while (next_ < expected_ && IsBefore(messages_[next_].number, number)) {
      CADRE_RETURN_IF_ERROR(Enqueue(messages_[next_++], {}));
    }
    return absl::OkStatus();
  }
  absl::Status PrecedeAll() override {
    while (next_ < expected_) CADRE_RETURN_IF_ERROR(Enqueue(messages_[next_++], {}));
    return absl::OkStatus();
  }

  // Only events, which order streams, show when a message is sent.
  bool AreSent(std::span<const uint32_t> /*numbers*/) const override { return false; }
  absl::Status AwaitSent(std::span<const uint32_t> numbers) override {
    for (const uint32_t number : numbers) {
      const Message& message = Find(number);
      CHECK(&message < messages_.data() + next_) << "message " << number << " is sent too late";
      device_.WaitFor(*message.event);
    }
    return transport_.status();
  }
  absl::Status AwaitAll() override {
    CADRE_RETURN_IF_ERROR(PrecedeAll());
    if (expected_ > 0) device_.WaitFor(*messages_[expected_ - 1].event);
    return transport_.status();
  }

  void StartReceiving(uint32_t number, std::vector<Transfer> transfers) override {
    receiving_ = true;
    received_ = number;
    receives_ = std::move(transfers);
    device_.Record(*free_);
  }

  absl::Status FinishReceiving() override {
    receiving_ = false;
    if (receives_.empty()) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(Precede(received_));
    const bool sends = next_ < expected_ && messages_[next_].number == received_;
    Message own{.number = received_, .posted = true};
    CADRE_RETURN_IF_ERROR(Enqueue(sends ? messages_[next_++] : own, receives_));
    device_.WaitFor(*arrived_);
    return absl::OkStatus();
  }

 private:
  struct Message {
    uint32_t number = 0;
    bool posted = false;
    std::vector<Transfer> transfers;
    // Marks when the data is ready, and when it is sent once that is enqueued.
    std::unique_ptr<DeviceEvent> event;
  };

  // Numbers wrap around.
  static bool IsBefore(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

  Message& Find(uint32_t number) {
    const auto end = messages_.begin() + expected_;
    const auto found = std::find_if(messages_.begin(), end, [number](const Message& message) {
      return message.number == number;
    });
    CHECK(found != end) << "message " << number << " is not expected";
    return *found;
  }

  // Enqueues the sends of a message, and the receives of the same number.
  absl::Status Enqueue(Message& message, std::span<const Transfer> receives) {
    CHECK(message.posted) << "message " << message.number << " is not ready";
    const OnStream messages(device_, Stream::kMessages);
    if (message.event != nullptr) device_.WaitFor(*message.event);
    if (!receives.empty()) device_.WaitFor(*free_);
    message.transfers.insert(message.transfers.end(), receives.begin(), receives.end());
    CADRE_RETURN_IF_ERROR(
        transport_.Run(Transport::kSends, ReceiveTag(message.number), message.transfers, {}));
    if (message.event != nullptr) device_.Record(*message.event);
    if (!receives.empty()) device_.Record(*arrived_);
    return absl::OkStatus();
  }

  Transport& transport_;
  Device& device_;
  // The first expected_ are the messages of the step; those before next_ are enqueued.
  std::vector<Message> messages_;
  size_t expected_ = 0;
  size_t next_ = 0;
  bool receiving_ = false;
  uint32_t received_ = 0;
  std::vector<Transfer> receives_;
  const std::unique_ptr<DeviceEvent> free_;
  const std::unique_ptr<DeviceEvent> arrived_;
};

}  // namespace

std::unique_ptr<PlacedMessages> PlacedMessages::Make(Transport& transport, Device& device) {
  if (device.is_host()) return std::make_unique<HostMessages>(transport, device);
  return std::make_unique<DeviceMessages>(transport, device);
}

}  // namespace cadre
