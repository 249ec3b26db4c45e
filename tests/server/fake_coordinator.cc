#include "tests/server/fake_coordinator.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace cadre::testing {

FakeCoordinator::FakeCoordinator() : received_(10'000) {
  auto daemon = Daemon::Start({}, {this});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
}

FakeCoordinator::~FakeCoordinator() { daemon_->Drain(absl::ZeroDuration()); }

void FakeCoordinator::RefuseJoins(v1::Refusal refusal, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  refused_.set_refusal(refusal);
  refused_.set_reason(reason);
}

void FakeCoordinator::SetEpoch(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  epoch_ = epoch;
}

bool FakeCoordinator::WaitForJoin() {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(
                                     +[](Stream** stream) { return *stream != nullptr; }, &stream_),
                                 absl::Seconds(10));
}

void FakeCoordinator::Send(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(stream_, nullptr);
  EXPECT_TRUE(stream_->Write(message));
}

void FakeCoordinator::SendUntilEnd(const std::vector<v1::CoordinatorMessage>& messages) {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(stream_, nullptr);
  for (const auto& message : messages) {
    if (!stream_->Write(message)) return;
  }
}

v1::MemberMessage FakeCoordinator::Receive(v1::MemberMessage::BodyCase kind) {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (auto message = received_.PopBefore(until)) {
    if (message->body_case() == kind) return *std::move(message);
  }
  ADD_FAILURE() << "not received: body " << kind;
  return {};
}

grpc::Status FakeCoordinator::Join(grpc::ServerContext* /*context*/, Stream* stream) {
  v1::MemberMessage message;
  while (stream->Read(&message)) {
    if (message.has_hello()) {
      absl::MutexLock lock(&mutex_);
      v1::CoordinatorMessage answer;
      if (refused_.refusal() != v1::REFUSAL_UNSPECIFIED) {
        *answer.mutable_refused() = refused_;
        stream->Write(answer);
        return grpc::Status::OK;
      }
      answer.set_epoch(epoch_);
      answer.mutable_welcome()->set_member_id("m-1");
      answer.mutable_welcome()->set_lease_ms(10'000);
      answer.mutable_welcome()->set_heartbeat_ms(20);
      stream->Write(answer);
      stream_ = stream;
    }
    received_.TryPush(message);
  }
  absl::MutexLock lock(&mutex_);
  if (stream_ == stream) stream_ = nullptr;
  return grpc::Status::OK;
}

}  // namespace cadre::testing
