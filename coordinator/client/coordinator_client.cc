// Every call first waits for the connection. An unreachable coordinator is therefore reported
// within dial_timeout instead of at the deadline of the call.
#include "coordinator/client/coordinator_client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/protocol.h"
#include "base/rpc/address_list.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/no_answer.h"
#include "base/status.h"

namespace cadre {
namespace {

// Attempts of a call for which the coordinator is too busy.
constexpr int kMaxAttempts = 8;
// How long a client waits for one of several coordinators before it tries the next one.
constexpr absl::Duration kTryNext = absl::Milliseconds(400);
// Limit of the call that returns why the channel is not connected.
constexpr absl::Duration kReasonTimeout = absl::Seconds(1);

}  // namespace

CoordinatorClient::CoordinatorClient(Options options)
    : options_(std::move(options)), servers_(ServersOf(options_)) {}

std::vector<CoordinatorClient::Server> CoordinatorClient::ServersOf(const Options& options) {
  const std::vector<std::string> addresses = SplitAddresses(options.coordinator);
  const Plane plane = addresses.size() > 1 ? Plane::kFailover : Plane::kControl;
  std::vector<Server> servers;
  for (const std::string& address : addresses) {
    const auto channel =
        MakeChannel(address, plane, options.credentials, {.role = Role::kCoordinator});
    servers.push_back({.channel = channel,
                       .stubs = {v1::Runs::NewStub(channel), v1::Status::NewStub(channel),
                                 v1::Members::NewStub(channel)}});
  }
  return servers;
}

absl::Status CoordinatorClient::Dial(absl::Time until) const {
  const size_t count = servers_.size();
  for (size_t server = current_;; server = (server + 1) % count) {
    const absl::Time next = count == 1 ? until : std::min(until, absl::Now() + kTryNext);
    const bool connected = servers_[server].channel->WaitForConnected(absl::ToChronoTime(next));
    current_ = server;
    if (connected) return absl::OkStatus();
    if (absl::Now() >= until) break;
  }
  // A call that does not wait for the connection fails with the reason.
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kReasonTimeout));
  v1::StatusReply reply;
  const grpc::Status failed = stub<v1::Status::Stub>().Get(&context, {}, &reply);
  // Any other result is that of a server, to which the channel has connected meanwhile.
  if (failed.error_code() != grpc::StatusCode::UNAVAILABLE &&
      failed.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::OkStatus();
  }
  return NoAnswer("coordinator", options_.coordinator, options_.credentials.secure(),
                  failed.error_message());
}

absl::Status CoordinatorClient::Attempt(
    absl::Time deadline, absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call) const {
  const absl::Time until = std::min(deadline, absl::Now() + options_.dial_timeout);
  CADRE_RETURN_IF_ERROR(Dial(until));
  for (int attempt = 1;;) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const absl::Status status = FromGrpc(call(&context));
    // The coordinator has not begun such a call.
    const std::optional<absl::Duration> retry_after = RetryAfter(status);
    if (!retry_after.has_value()) return status;
    const absl::Duration wait = std::min(*retry_after, deadline - absl::Now());
    if (absl::IsUnavailable(status)) {
      // Another one leads, or will.
      if (absl::Now() + wait >= until) return status;
      current_ = (current_ + 1) % servers_.size();
      absl::SleepFor(wait);
      CADRE_RETURN_IF_ERROR(Dial(until));
    } else {
      if (attempt++ == kMaxAttempts) return status;
      absl::SleepFor(wait);
    }
  }
}

absl::StatusOr<std::string> CoordinatorClient::Submit(const v1::RunSpec& spec) const {
  v1::SubmitRequest request;
  request.set_protocol(kProtocol);
  *request.mutable_spec() = spec;
  CADRE_ASSIGN_OR_RETURN(const v1::SubmitReply reply, Call(&v1::Runs::Stub::Submit, request));
  return reply.run();
}

absl::StatusOr<v1::SubmitReply> CoordinatorClient::Join(const v1::RunSpec& spec,
                                                        bool join_ended) const {
  v1::SubmitRequest request;
  request.set_protocol(kProtocol);
  *request.mutable_spec() = spec;
  request.set_join_existing(true);
  request.set_join_ended(join_ended);
  return Call(&v1::Runs::Stub::Submit, request);
}

absl::Status CoordinatorClient::Stop(const std::string& run, const std::string& reason) const {
  v1::StopRequest request;
  request.set_run(run);
  request.set_reason(reason);
  return Call(&v1::Runs::Stub::Stop, request).status();
}

absl::Status CoordinatorClient::Backup(
    absl::Time deadline,
    const std::function<absl::Status(const v1::BackupChunk&)>& on_chunk) const {
  absl::Status status;
  v1::BackupChunk chunk;
  uint64_t received = 0;
  const absl::Status ended = Attempt(deadline, [&](grpc::ClientContext* context) {
    auto reader = stub<v1::Runs::Stub>().Backup(context, v1::BackupRequest());
    while (status.ok() && reader->Read(&chunk)) {
      received += chunk.data().size();
      status = on_chunk(chunk);
    }
    if (!status.ok()) context->TryCancel();
    const grpc::Status finished = reader->Finish();
    // What was received cannot be continued with the copy of another coordinator.
    if (received > 0) status.Update(FromGrpc(finished));
    return received > 0 ? grpc::Status::OK : finished;
  });
  CADRE_RETURN_IF_ERROR(status);
  CADRE_RETURN_IF_ERROR(ended);
  if (received > 0 && received == chunk.file_bytes()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("received ", received, " of ", chunk.file_bytes(), " bytes"));
}

absl::StatusOr<v1::ListReply> CoordinatorClient::List() const {
  return Call(&v1::Runs::Stub::List, v1::ListRequest());
}

absl::StatusOr<v1::StatusReply> CoordinatorClient::Status(const std::string& run,
                                                          bool details) const {
  v1::StatusRequest request;
  request.set_run(run);
  request.set_details(details);
  v1::StatusReply all;
  do {
    CADRE_ASSIGN_OR_RETURN(const v1::StatusReply page, Call(&v1::Status::Stub::Get, request));
    all.MergeFrom(page);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<v1::LocateReply> CoordinatorClient::Locate(const std::string& run,
                                                          std::optional<uint32_t> version) const {
  v1::LocateRequest request;
  request.set_run(run);
  if (version.has_value()) request.set_version(*version);
  return Call(&v1::Status::Stub::Locate, request);
}

absl::StatusOr<v1::TraceReply> CoordinatorClient::Trace(const std::string& run, uint32_t group,
                                                        uint32_t steps, absl::Time deadline) const {
  v1::TraceRequest request;
  request.set_run(run);
  request.set_group(group);
  request.set_steps(steps);
  return Call(&v1::Status::Stub::Trace, request, deadline);
}

absl::StatusOr<v1::CordonReply> CoordinatorClient::Cordon(const std::string& member,
                                                          CordonMode mode,
                                                          absl::Duration within) const {
  v1::CordonRequest request;
  request.set_member(member);
  request.set_undo(mode == CordonMode::kUndo);
  request.set_drain(mode == CordonMode::kDrain);
  request.set_drain_seconds(absl::ToDoubleSeconds(within));
  return Call(&v1::Members::Stub::Cordon, request);
}

absl::Status CoordinatorClient::Watch(
    const std::string& run, absl::Time deadline,
    const std::function<bool(const v1::WatchUpdate&)>& on_update) const {
  v1::WatchRequest request;
  request.set_run(run);
  return Attempt(deadline, [&](grpc::ClientContext* context) {
    auto reader = stub<v1::Status::Stub>().Watch(context, request);
    v1::WatchUpdate update;
    bool more = true;
    while (more && reader->Read(&update)) more = on_update(update);
    // Without the cancellation, Finish would wait until the coordinator ends the stream.
    if (!more) context->TryCancel();
    const grpc::Status finished = reader->Finish();
    return more ? finished : grpc::Status::OK;
  });
}

}  // namespace cadre
