// A rank's client of one aggregator shard: it stages (uploads) the rank's slice, the parameters
// that the rank owns, for a round and pulls its part of a committed version. Calls block until they
// are done, refused, cancelled or silent for too long. After a broken connection they reconnect and
// resume the transfer.
//
//   RoundsClient shard([&] { return directory.LocationOf(run, 3); }, {.seed = rank});
//   CADRE_RETURN_IF_ERROR(shard.Stage(header, std::as_bytes(values), &traffic));
//   CADRE_RETURN_IF_ERROR(shard.Pull(request, out, &traffic));
//
// Attempts, retries and limits are those of server/client/shard_transfer. A wait of more than 30 s
// is logged, with the aggregator and what it waits for.
//
// Owns its channel. Values and traffic are borrowed for the call.
// Thread-safe; concurrent calls are allowed, each with its own Traffic.
//
// Errors of both calls:
//   refusals by name (codes: server/client/refusal.h), without a retry, except that damaged bytes
//     (DataLoss) are first transferred again a few times;
//   Cancelled after Cancel(), or after a stop of the call was requested;
//   DeadlineExceeded with the aggregator and the last failure in its message: no chunk was
//     transferred for `silence`, because the shard was unreachable, or its disk was full, while its
//     aggregator was not away; or for `max_busy`, because it served others;
//   InvalidArgument if the sizes of ranges and values differ.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/rpc/credentials.h"
#include "base/secret_key.h"
#include "base/steady_cond_var.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "server/client/shard_client.h"
#include "server/client/shard_transfer.h"

namespace cadre {

class RoundsClient final : public ShardClient {
 public:
  // Returns where the shard is now; called before every attempt.
  using LocationSource = std::function<ShardLocation()>;
  // Returns whether the coordinator reports that the aggregator is away.
  using AwaySource = std::function<bool()>;

  // `on_progress` is called for every new chunk that was sent or received, on the calling thread;
  // optional. `key` is that of the caller's generation, with which every request is signed.
  // `away`: null for an aggregator of which no coordinator reports.
  explicit RoundsClient(LocationSource location, TransferOptions options = {},
                        std::function<void()> on_progress = nullptr, const SecretKey& key = {},
                        Credentials credentials = Credentials::Insecure(),
                        AwaySource away = nullptr);
  RoundsClient(const RoundsClient&) = delete;
  RoundsClient& operator=(const RoundsClient&) = delete;

  absl::Status Stage(const v1::ContributionHeader& header, std::span<const std::byte> bytes,
                     Traffic* traffic, std::stop_token stop = {}) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Values in fp32.
  absl::Status Stage(const v1::ContributionHeader& header, std::span<const float> values,
                     Traffic* traffic, std::stop_token stop = {}) {
    return Stage(header, std::as_bytes(values), traffic, std::move(stop));
  }
  absl::Status Pull(const v1::PullRequest& request, std::span<float> out, Traffic* traffic,
                    std::stop_token stop = {}) override ABSL_LOCKS_EXCLUDED(mutex_);

  // As Pull for a user, who has the certificate of an operator instead of a generation's key.
  absl::Status Read(const v1::PullRequest& request, std::span<float> out, Traffic* traffic)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status PullFrame(const v1::PullRequest& request, uint64_t max_elements, PulledFrame* frame,
                         Traffic* traffic, std::stop_token stop = {}) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  void Cancel() override { cancel_.request_stop(); }

 private:
  // A call in progress.
  struct Call {
    // Changed by the calling thread, under mutex_.
    ShardTransfer transfer;
    // The current attempt.
    grpc::ClientContext* context = nullptr;
    bool cancelled = false;
    bool ended = false;
  };
  using EventHandler = std::function<ShardTransfer::Action(const ShardTransfer::Event&)>;
  // One attempt over one connection; returns the first action that is not part of it.
  using Attempt = std::function<ShardTransfer::Action(v1::Rounds::Stub&, grpc::ClientContext&,
                                                      const EventHandler& handle)>;

  enum class Caller { kRank, kUser };
  absl::Status PullValues(const v1::PullRequest& request, std::span<float> out, Traffic* traffic,
                          std::stop_token stop, Caller caller) ABSL_LOCKS_EXCLUDED(mutex_);
  // Carries out the transfer's actions until it ends.
  absl::Status Run(Call& call, std::stop_token stop, const Attempt& attempt)
      ABSL_LOCKS_EXCLUDED(mutex_);
  ShardTransfer::Action AttemptOnce(Call& call, const Attempt& attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  ShardTransfer::Action Handle(Call& call, const ShardTransfer::Event& event)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The watcher's thread: breaks an attempt of the call off when the transfer is silent.
  void Watch(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // The aggregator, for messages.
  std::string Name() const;
  // Returns a connection to where the shard is now; null: that is not known.
  std::shared_ptr<grpc::Channel> Connect() ABSL_LOCKS_EXCLUDED(mutex_);

  const LocationSource location_;
  const AwaySource away_;
  const Credentials credentials_;
  const TransferOptions options_;
  const std::function<void()> on_progress_;
  const SecretKey key_;
  const SteadyClock clock_;
  std::stop_source cancel_;

  absl::Mutex mutex_;
  SteadyCondVar changed_;
  // Shared with calls in progress, which keep it when the location of the shard changes.
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  ShardLocation channel_location_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
