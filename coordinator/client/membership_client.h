// A member's side of the Membership.Join stream, used by workers and aggregators: the threads and
// the gRPC stream of coordinator/client/membership_stream, which decides.
//
// The client joins, keeps the lease alive with heartbeats, and joins again with backoff whenever
// the stream breaks. It stores no messages across streams: a message passed to Send may be lost
// with the stream. On every `on_connection(true)` the owner therefore sends unanswered messages
// again:
//   worker      Prepared until Start arrives; Contributed until Decision arrives; the newest
//               Adopted and the newest Evaluated (they have no answer; the coordinator accepts
//               duplicates).
//   aggregator  nothing: the coordinator sends OpenRun and Apply again, and the aggregator answers
//               them again.
// When a worker returns with its rank, the coordinator sends it the Assignment (before the start of
// its generation) or Start (afterwards) again, and ShardAddresses. A duplicate Assignment or Start
// must be ignored (or answered as before); a Release may name a generation that has ended.
//
// A full queue of outgoing messages ends the stream, so that no message is lost on a live one. All
// waits follow the steady clock.
//
// Every message of the coordinator carries its epoch. A message of a lower epoch than the highest
// one received comes from a coordinator that has been replaced: it ends the stream unread. The
// owner may record the epoch, so that this holds after a restart of the member too. Hello names the
// highest epoch, above which a coordinator that is entitled to it begins again.
//
// Refused is delivered to on_message, then the stream ends. After REFUSAL_UNKNOWN_MEMBER (the lease
// expired while the member was disconnected) the client discards its id and joins as a new member.
// By then the owner must have given up its rank, so that `hello` does not name it.
//
// Thread-safe. All callbacks run on one thread of the client, one at a time, in stream order; they
// may call Send, connected and member_id, must not call Stop or destroy the client, and must not
// block for long (no message is read meanwhile; heartbeats continue).
//
//   MembershipClient::Options options;
//   options.coordinator = "127.0.0.1:7000";
//   options.hello = [&] { return MyHello(); };
//   options.on_message = [&](const v1::CoordinatorMessage& message) { inbox.Push(message); };
//   CADRE_ASSIGN_OR_RETURN(auto client, MembershipClient::Start(std::move(options)));
//   client->Send(message).IgnoreError();
//   client->Stop("done");
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/rpc/credentials.h"
#include "base/steady_cond_var.h"
#include "coordinator/client/membership_stream.h"
#include "proto/cadre/v1/membership.grpc.pb.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// A heartbeat with the counters of the process.
v1::Heartbeat MakeHeartbeat(const Counters& counters);

class MembershipClient {
 public:
  struct Options {
    // host:port of the coordinator, or of several, separated by commas, of which one leads: each
    // stream tries the next one.
    std::string coordinator;
    Credentials credentials = Credentials::Insecure();
    // How long Start tries to reach a coordinator.
    absl::Duration dial_timeout = absl::Seconds(30);
    // Seed of the backoff; must differ between processes.
    uint64_t seed = 0;
    // Returns the Hello to send now: role, name, incarnation, address, ..., and the current rank
    // (worker) or shards (aggregator). The client fills in protocol and member_id. Required.
    std::function<v1::Hello()> hello;
    // Every message of the coordinator except Welcome. False: the member could not accept it; the
    // stream ends and the client joins again, so that the coordinator repeats it. Required.
    std::function<bool(const v1::CoordinatorMessage&)> on_message;
    // Called with true after Welcome, before any later message; with false after the stream has
    // broken. Optional.
    std::function<void(bool connected)> on_connection;
    // Returns the next heartbeat; called on the client's writing thread. The client adds its own
    // counter, stale_epochs. Optional.
    std::function<v1::Heartbeat()> heartbeat;
    // The highest epoch that an earlier process of this member recorded.
    uint64_t epoch = 0;
    // Records an epoch that is higher than the last one recorded. Returns whether it is durable; if
    // not, it is called again at the next message. Messages do not wait for it, so that a member on
    // a full disk still receives orders that free space. Optional.
    std::function<bool(uint64_t epoch)> record_epoch;
    // Called when the coordinator has refused this member permanently after an earlier Welcome: it
    // does not join again. Optional.
    std::function<void(const absl::Status& reason)> on_refused;
    // Limit of messages waiting to be written.
    size_t max_queued = 256;
  };

  // Joins; returns after Welcome. Callbacks may run before it returns. Errors: Unavailable when no
  // coordinator answered within dial_timeout; PermissionDenied with the coordinator's reason when
  // it refused.
  static absl::StatusOr<std::unique_ptr<MembershipClient>> Start(Options options);

  // Calls Stop if it was not called.
  ~MembershipClient();

  // Queues a message for the current stream. Errors: Unavailable while disconnected, and when the
  // queue is full, which ends the stream (send the message again in on_connection).
  absl::Status Send(v1::MemberMessage message) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether Welcome was received on the current stream.
  bool connected() const ABSL_LOCKS_EXCLUDED(mutex_);
  // OK while connected. Unavailable, with the reason: the last stream has ended, or was refused,
  // and the client joins again.
  absl::Status Ready() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The id given in the last Welcome; empty before the first.
  std::string member_id() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends the queued messages and Goodbye, and ends the stream. No callback runs after it returns.
  // `finished`: as in Goodbye.
  void Stop(absl::string_view reason, bool finished = false) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Stream = grpc::ClientReaderWriter<v1::MemberMessage, v1::CoordinatorMessage>;

  // A coordinator.
  struct Server {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Membership::Stub> stub;
  };

  explicit MembershipClient(Options options);
  static std::vector<Server> ServersOf(const Options& options);
  // The one of the present or next stream.
  const Server& server() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return servers_[state_.server()];
  }

  // Whether the first join has succeeded or was refused.
  bool JoinIsDecided() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_.ever_welcomed() || !refused_.ok();
  }

  // The reading thread: joins again and again until stopped.
  void Read();
  std::shared_ptr<grpc::Channel> NextChannel() const ABSL_LOCKS_EXCLUDED(mutex_);
  // One stream, from Join to its end. Returns why it ended.
  absl::Status ReadOneStream();
  // Returns whether the stream continues.
  bool Deliver(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the epoch is not lower than earlier ones.
  bool AcceptEpoch(uint64_t epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  bool OpenStream() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CloseStream() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWelcome(const v1::Welcome& welcome) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnRefused(const v1::Refused& refused) ABSL_LOCKS_EXCLUDED(mutex_);
  // The writing thread: queued messages, heartbeats, the time limit of the handshake.
  void Write() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WriterHasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool may_write() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stream_ != nullptr && state_.welcomed() && !half_closed_;
  }
  void WriteOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::MemberMessage NextHeartbeat() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::vector<Server> servers_;
  const SteadyClock clock_;
  // Used by the reading thread only.
  uint64_t recorded_epoch_ = options_.epoch;

  mutable absl::Mutex mutex_;
  MembershipStream state_ ABSL_GUARDED_BY(mutex_);
  // Signaled when any of the fields below changes that a thread waits for.
  SteadyCondVar changed_;
  // The open stream, or null. Replaced only by the reading thread, and only while the writing
  // thread does not write.
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Makes the writing thread recompute its deadline.
  bool deadlines_moved_ ABSL_GUARDED_BY(mutex_) = false;
  // The wait before the next stream.
  absl::Duration wait_ ABSL_GUARDED_BY(mutex_);
  // Why the coordinator refused the first join, or this member permanently.
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  // Why the last stream has ended, also one with Welcome.
  std::string last_end_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The last message, after the queued ones.
  std::optional<v1::MemberMessage> goodbye_ ABSL_GUARDED_BY(mutex_);
  bool reader_done_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread reader_;
  std::thread writer_;
};

}  // namespace cadre
