#include "server/client/copy_client.h"

#include <grpcpp/channel.h>

#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"

namespace cadre {
namespace {

constexpr absl::Duration kMaxConnect = absl::Seconds(2);

}  // namespace

absl::Status CopyClient::Fetch(const std::string& address, const std::string& aggregator,
                               const v1::CopyRequest& request,
                               const std::function<absl::Status(const v1::CopyReply&)>& on_reply) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(
      address, Plane::kBulk, credentials_, {.role = Role::kAggregator, .name = aggregator});
  channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kMaxConnect));
  const std::unique_ptr<v1::Rounds::Stub> stub = v1::Rounds::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience_));
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the client was cancelled");
    context_ = &context;
  }
  const absl::Cleanup forget = [&] {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
  };
  const auto stream = stub->Copy(&context, request);
  v1::CopyReply reply;
  absl::Status status;
  while (status.ok() && stream->Read(&reply)) status = on_reply(reply);
  if (!status.ok()) context.TryCancel();
  const absl::Status ended = FromGrpc(stream->Finish());
  if (!status.ok()) return status;
  // The aggregator sends nothing, or more than an attempt can receive.
  return absl::IsDeadlineExceeded(ended) ? absl::UnavailableError(ended.message()) : ended;
}

void CopyClient::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

}  // namespace cadre
