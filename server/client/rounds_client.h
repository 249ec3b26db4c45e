// A rank's client of one aggregator shard: it stages (uploads) the rank's slice, the parameters
// that the rank owns, for a round and pulls its part of a committed version. Calls block until they
// are done, refused, cancelled or past their deadline. After a broken connection they reconnect and
// resume the transfer.
//
//   RoundsClient shard([&] { return addresses.Of(run, 3); }, {.seed = rank});
//   CADRE_RETURN_IF_ERROR(shard.Stage(header, values, deadline, &traffic));
//   CADRE_RETURN_IF_ERROR(shard.Pull(request, out, deadline, &traffic));
//
// Owns its channel. Values and traffic are borrowed for the call.
// Thread-safe; concurrent calls are allowed, each with its own Traffic.
//
// Errors of both calls:
//   refusals by name (codes: server/client/refusal.h), without a retry, except that damaged bytes
//     (DataLoss) are first transferred again a few times;
//   Cancelled after Cancel();
//   DeadlineExceeded with the last failure in its message: the deadline has passed, or no
//     chunk was transferred for `silence`, because the shard was unreachable or too busy, or its
//     disk was full;
//   InvalidArgument if the sizes of ranges and values differ.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/steady_cond_var.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"

namespace cadre {

// Bytes transferred by all attempts, including failed ones.
struct Traffic {
  // Bytes of values.
  uint64_t payload_sent = 0;
  uint64_t payload_received = 0;
  // Bytes of whole messages, including values (without the framing of gRPC and lower layers).
  uint64_t message_sent = 0;
  uint64_t message_received = 0;

  Traffic& operator+=(const Traffic& other);
};

struct RoundsClientOptions {
  // Waits between attempts.
  absl::Duration first_wait = absl::Milliseconds(50);
  absl::Duration max_wait = absl::Milliseconds(400);
  // Different seeds prevent ranks from retrying simultaneously.
  uint64_t seed = 0;
  // A call ends after this time in which no chunk is transferred. A transfer that makes progress
  // may take any time.
  absl::Duration silence = absl::Minutes(2);
  // Called for every chunk that was sent or received, on the calling thread. Optional.
  std::function<void()> on_progress;
};

class RoundsClient {
 public:
  // Returns the shard's current host:port; called before every attempt. Empty: not known yet.
  using AddressSource = std::function<std::string()>;

  explicit RoundsClient(AddressSource address, RoundsClientOptions options = {});
  RoundsClient(const RoundsClient&) = delete;
  RoundsClient& operator=(const RoundsClient&) = delete;

  // Stages `values`, which are in the order of header.ranges. Returns OK once they are durable at
  // the shard. A contribution may be staged again with the same values. The client fills in the
  // header's schema_hash and codec and, if it is 0, chunk_elements.
  absl::Status Stage(const v1::ContributionHeader& header, std::span<const float> values,
                     absl::Time deadline, Traffic* traffic) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads request.ranges, in their order, into `out`. After an error `out` is unspecified. The
  // client fills in the request's schema_hash and, if it is 0, chunk_elements.
  absl::Status Pull(const v1::PullRequest& request, std::span<float> out, absl::Time deadline,
                    Traffic* traffic) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends all current and later calls with Cancelled. Does not wait for them.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A call in progress.
  struct Call {
    absl::Time last_progress;
    // The current attempt.
    grpc::ClientContext* context = nullptr;
    // There was no progress for too long.
    bool silent = false;
    bool ended = false;
  };
  // One attempt over one connection, which calls `advance` for every chunk.
  using Attempt = std::function<absl::Status(v1::Rounds::Stub&, grpc::ClientContext&,
                                             const std::function<void()>& advance)>;

  // Repeats `attempt` until it succeeds, is refused, fails permanently, the deadline passes, or
  // there is no progress for too long.
  absl::Status RetryUntil(absl::Time deadline, const Attempt& attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AttemptOnce(Call& call, absl::Time deadline, const Attempt& attempt)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Advance(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns a connection to the shard's current address.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect() ABSL_LOCKS_EXCLUDED(mutex_);

  const AddressSource address_;
  const RoundsClientOptions options_;
  const SteadyClock clock_;

  absl::Mutex mutex_;
  SteadyCondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // Shared with calls in progress, which keep it when the shard's address changes.
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::string channel_address_ ABSL_GUARDED_BY(mutex_);
  std::set<Call*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
