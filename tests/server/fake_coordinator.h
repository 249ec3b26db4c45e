// A fake coordinator that a member can join. It sends the messages that the test gives it, and
// records the messages that it receives.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/bounded_queue.h"
#include "base/rpc/daemon.h"
#include "proto/cadre/v1/membership.grpc.pb.h"

namespace cadre::testing {

class FakeCoordinator final : public v1::Membership::Service {
 public:
  FakeCoordinator();
  ~FakeCoordinator() override;

  const std::string& address() const { return daemon_->address(); }
  // Answers every later Hello with this refusal.
  void RefuseJoins(v1::Refusal refusal, const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // Epoch of every later Welcome.
  void SetEpoch(uint64_t epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for a member's stream, at most ten seconds.
  bool WaitForJoin() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends a message to the member that has joined.
  void Send(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends all messages on one stream. The member may end the stream before it received all.
  void SendUntilEnd(const std::vector<v1::CoordinatorMessage>& messages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The next message of this kind; skips others. Fails the test after ten seconds.
  v1::MemberMessage Receive(v1::MemberMessage::BodyCase kind);

 private:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>;

  grpc::Status Join(grpc::ServerContext* context, Stream* stream) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  v1::Refused refused_ ABSL_GUARDED_BY(mutex_);
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  BoundedQueue<v1::MemberMessage> received_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace cadre::testing
