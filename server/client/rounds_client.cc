// Drives server/client/shard_transfer over gRPC. The calling thread carries out its actions with
// blocking calls; a watching thread breaks off an attempt that hangs. The address is requested
// before every attempt, so that a shard that has moved is found.
#include "server/client/rounds_client.h"

#include <glog/logging.h>
#include <google/protobuf/repeated_ptr_field.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "base/identity.h"
#include "base/protocol.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/status.h"
#include "server/client/proof.h"
#include "server/client/ranges.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are transferred as they are in memory: little-endian");

using Ranges = google::protobuf::RepeatedPtrField<v1::Range>;

uint64_t Elements(const Ranges& ranges) {
  uint64_t elements = 0;
  for (const v1::Range& range : ranges) elements += range.end() - range.begin();
  return elements;
}

// Ranges come from the caller, so a wrong one is a bug there and not an error of the shard.
absl::Status CheckSize(const Ranges& ranges, size_t values) {
  for (const v1::Range& range : ranges) {
    if (range.begin() > range.end())
      return absl::InvalidArgumentError("a range ends before it begins");
  }
  if (Elements(ranges) == values) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ranges have ", Elements(ranges),
                                                 " elements, but there are ", values, " values"));
}

// Ranges, chunks and frames count elements of this size.
constexpr size_t kElement = sizeof(float);

void FillChunk(uint32_t index, std::span<const std::byte> bytes, v1::Chunk* chunk) {
  chunk->set_index(index);
  chunk->mutable_data()->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  chunk->set_crc32c(Crc32c(chunk->data()));
}

using Transfer = ShardTransfer;
using EventHandler = std::function<Transfer::Action(const Transfer::Event&)>;
using StageStream = grpc::ClientReaderWriter<v1::StageRequest, v1::StageReply>;

bool Send(StageStream& stream, const v1::StageRequest& request, Traffic* traffic) {
  if (!stream.Write(request)) return false;
  traffic->message_sent += request.ByteSizeLong();
  traffic->payload_sent += request.chunk().data().size();
  return true;
}

bool Receive(StageStream& stream, v1::StageReply* reply, Traffic* traffic) {
  if (!stream.Read(reply)) return false;
  traffic->message_received += reply->ByteSizeLong();
  return true;
}

// Ends an attempt that is not over.
Transfer::Action BreakOff(grpc::ClientContext& context, auto& stream, Transfer::Action action) {
  context.TryCancel();
  stream.Finish();
  return action;
}

Transfer::Action StageOnce(v1::Rounds::Stub& stub, grpc::ClientContext& context,
                           const v1::ContributionHeader& header, std::span<const std::byte> bytes,
                           const EventHandler& handle, Traffic* traffic) {
  const std::unique_ptr<StageStream> stream = stub.Stage(&context);
  const auto ended = [&](std::optional<uint64_t> staged = {}) {
    return handle(Transfer::Ended{FromGrpc(stream->Finish()), staged});
  };
  v1::StageRequest request;
  v1::StageReply reply;
  *request.mutable_header() = header;
  if (!Send(*stream, request, traffic) || !Receive(*stream, &reply, traffic)) return ended();
  Transfer::Action action = handle(Transfer::Opened{reply.resume().next_chunk()});
  while (const auto* send = std::get_if<Transfer::Send>(&action)) {
    FillChunk(send->index,
              bytes.subspan(kElement * send->begin, kElement * (send->end - send->begin)),
              request.mutable_chunk());
    if (!Send(*stream, request, traffic)) return ended();
    action = handle(Transfer::Sent{});
  }
  if (!std::holds_alternative<Transfer::Confirm>(action))
    return BreakOff(context, *stream, std::move(action));
  stream->WritesDone();
  if (!Receive(*stream, &reply, traffic) || !reply.has_staged()) return ended();
  return ended(reply.staged().elements());
}

// Copies one chunk to the front of `rest`.
absl::Status CopyChunk(const v1::Chunk& chunk, std::span<std::byte> rest) {
  const std::string& data = chunk.data();
  if (Crc32c(data) != chunk.crc32c()) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk.index(), " was damaged in transit"));
  }
  if (data.size() % kElement != 0 || data.size() > rest.size()) {
    return absl::InternalError(absl::StrCat("chunk ", chunk.index(), " has a wrong size"));
  }
  std::memcpy(rest.data(), data.data(), data.size());
  return absl::OkStatus();
}

// Receives the first reply for a frame, and returns the bytes that are still missing.
using OnFrame = std::function<absl::StatusOr<std::span<std::byte>>(const v1::PullReply& first)>;

// `rest` are the bytes that are still missing; those of a frame are unknown before its size is.
Transfer::Action PullOnce(grpc::ClientContext& context,
                          std::unique_ptr<grpc::ClientReader<v1::PullReply>> stream,
                          std::span<std::byte> rest, const EventHandler& handle, Traffic* traffic,
                          OnFrame on_frame = nullptr) {
  v1::PullReply reply;
  Transfer::Action action = handle(Transfer::Opened{});
  while (std::holds_alternative<Transfer::Receive>(action)) {
    if (!stream->Read(&reply)) return handle(Transfer::Ended{FromGrpc(stream->Finish())});
    const size_t bytes = reply.chunk().data().size();
    traffic->message_received += reply.ByteSizeLong();
    traffic->payload_received += bytes;
    if (on_frame) {
      const absl::StatusOr<std::span<std::byte>> missing = std::exchange(on_frame, nullptr)(reply);
      if (!missing.ok()) {
        return BreakOff(context, *stream, handle(Transfer::Ended{missing.status()}));
      }
      rest = *missing;
      handle(Transfer::Opened{.elements = reply.frame_elements()});
    }
    const absl::Status copied = CopyChunk(reply.chunk(), rest);
    if (!copied.ok()) return BreakOff(context, *stream, handle(Transfer::Ended{copied}));
    rest = rest.subspan(bytes);
    action = handle(Transfer::Received{bytes / kElement});
  }
  return BreakOff(context, *stream, std::move(action));
}

}  // namespace

RoundsClient::RoundsClient(LocationSource location, TransferOptions options,
                           std::function<void()> on_progress, const SecretKey& key,
                           Credentials credentials, AwaySource away)
    : location_(std::move(location)),
      away_(std::move(away)),
      credentials_(std::move(credentials)),
      options_(options),
      on_progress_(std::move(on_progress)),
      key_(key) {}

absl::Status RoundsClient::Stage(const v1::ContributionHeader& header,
                                 std::span<const std::byte> bytes, Traffic* traffic,
                                 std::stop_token stop) {
  const size_t elements = bytes.size() / kElement;
  v1::ContributionHeader filled = header;
  filled.set_protocol(kProtocol);
  if (header.codec() == v1::CODEC_UNSPECIFIED || header.codec() == v1::CODEC_FP32) {
    CADRE_RETURN_IF_ERROR(CheckSize(header.ranges(), elements));
    filled.set_codec(v1::CODEC_FP32);
  } else {
    filled.set_frame_elements(elements);
  }
  if (filled.chunk_elements() == 0) filled.set_chunk_elements(kChunkElements);
  Call call{Transfer(Transfer::Direction::kStage, elements, filled.chunk_elements(), options_,
                     clock_.Now())};
  return Run(call, std::move(stop),
             [&](v1::Rounds::Stub& stub, grpc::ClientContext& context, const EventHandler& handle) {
               Sign(key_, NewIdentity(), filled);
               return StageOnce(stub, context, filled, bytes, handle, traffic);
             });
}

absl::Status RoundsClient::Pull(const v1::PullRequest& request, std::span<float> out,
                                Traffic* traffic, std::stop_token stop) {
  return PullValues(request, out, traffic, std::move(stop), Caller::kRank);
}

absl::Status RoundsClient::Read(const v1::PullRequest& request, std::span<float> out,
                                Traffic* traffic) {
  return PullValues(request, out, traffic, {}, Caller::kUser);
}

absl::Status RoundsClient::PullValues(const v1::PullRequest& request, std::span<float> out,
                                      Traffic* traffic, std::stop_token stop, Caller caller) {
  CADRE_RETURN_IF_ERROR(CheckSize(request.ranges(), out.size()));
  if (out.empty()) return absl::OkStatus();
  v1::PullRequest filled = request;
  filled.set_protocol(kProtocol);
  if (filled.chunk_elements() == 0) filled.set_chunk_elements(kChunkElements);
  Call call{Transfer(Transfer::Direction::kPull, out.size(), filled.chunk_elements(), options_,
                     clock_.Now())};
  return Run(call, std::move(stop),
             [&](v1::Rounds::Stub& stub, grpc::ClientContext& context, const EventHandler& handle) {
               const uint64_t done = call.transfer.done();
               *filled.mutable_ranges() = SkipElements(request.ranges(), done);
               if (caller == Caller::kRank) Sign(key_, NewIdentity(), filled);
               traffic->message_sent += filled.ByteSizeLong();
               return PullOnce(context,
                               caller == Caller::kRank ? stub.Pull(&context, filled)
                                                       : stub.Read(&context, filled),
                               std::as_writable_bytes(out.subspan(done)), handle, traffic);
             });
}

absl::Status RoundsClient::PullFrame(const v1::PullRequest& request, uint64_t max_elements,
                                     PulledFrame* frame, Traffic* traffic, std::stop_token stop) {
  v1::PullRequest filled = request;
  filled.set_protocol(kProtocol);
  if (filled.chunk_elements() == 0) filled.set_chunk_elements(kChunkElements);
  *frame = PulledFrame();
  Call call{Transfer(Transfer::Direction::kPull, max_elements, filled.chunk_elements(), options_,
                     clock_.Now())};
  const auto on_frame = [&](const v1::PullReply& first) -> absl::StatusOr<std::span<std::byte>> {
    const uint64_t done = kElement * call.transfer.done();
    const uint64_t elements = first.frame_elements();
    if (elements > max_elements || (done > 0 && kElement * elements != frame->bytes.size())) {
      return absl::InternalError(absl::StrCat("the frame has ", elements, " elements"));
    }
    frame->bytes.resize(kElement * elements);
    frame->fragment = first.fragment();
    return std::as_writable_bytes(std::span(frame->bytes)).subspan(done);
  };
  return Run(call, std::move(stop),
             [&](v1::Rounds::Stub& stub, grpc::ClientContext& context, const EventHandler& handle) {
               filled.set_frame_from(call.transfer.done());
               Sign(key_, NewIdentity(), filled);
               traffic->message_sent += filled.ByteSizeLong();
               return PullOnce(context, stub.Pull(&context, filled), {}, handle, traffic, on_frame);
             });
}

absl::Status RoundsClient::Run(Call& call, std::stop_token stop, const Attempt& attempt) {
  std::thread watcher([&] { Watch(call); });
  const absl::Cleanup end_watch = [&] {
    {
      absl::MutexLock lock(&mutex_);
      call.ended = true;
      changed_.NotifyAll();
    }
    watcher.join();
  };
  const auto cancel = [&] {
    absl::MutexLock lock(&mutex_);
    call.cancelled = true;
    changed_.NotifyAll();
    if (call.context != nullptr) call.context->TryCancel();
  };
  const std::stop_callback on_cancel(cancel_.get_token(), cancel);
  const std::stop_callback on_stop(std::move(stop), cancel);
  Transfer::Action action = Handle(call, Transfer::Ready{});
  while (true) {
    if (const auto* end = std::get_if<Transfer::End>(&action)) {
      return absl::IsDeadlineExceeded(end->status) ? Annotate(end->status, Name()) : end->status;
    }
    const auto* wait = std::get_if<Transfer::Wait>(&action);
    if (const auto report = call.transfer.TakeWaitReport(clock_.Now())) {
      LOG(WARNING) << Name() << ": " << *report;
    }
    const absl::Duration time = wait == nullptr ? absl::ZeroDuration() : wait->time;
    {
      absl::MutexLock lock(&mutex_);
      if (changed_.WaitFor(mutex_, time, [&] { return call.cancelled; }))
        return absl::CancelledError("the call was cancelled");
    }
    action = wait == nullptr ? AttemptOnce(call, attempt) : Handle(call, Transfer::Ready{});
  }
}

Transfer::Action RoundsClient::Handle(Call& call, const Transfer::Event& event) {
  const absl::Time silent_at = call.transfer.silent_at();
  const bool away = away_ && away_();
  Transfer::Action action;
  {
    absl::MutexLock lock(&mutex_);
    action = call.transfer.Handle(event, clock_.Now(), away);
  }
  if (on_progress_ && call.transfer.silent_at() != silent_at) on_progress_();
  return action;
}

void RoundsClient::Watch(Call& call) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [&] { return call.ended; };
  absl::Duration left = options_.silence;
  while (!changed_.WaitFor(mutex_, left, ended)) {
    left = call.transfer.silent_at() - clock_.Now();
    if (left > absl::ZeroDuration()) continue;
    if (call.context != nullptr) call.context->TryCancel();
    // If the aggregator is away, the next attempt may take this long.
    left = options_.silence;
  }
}

Transfer::Action RoundsClient::AttemptOnce(Call& call, const Attempt& attempt) {
  const std::shared_ptr<grpc::Channel> channel = Connect();
  if (channel == nullptr) {
    return Handle(call,
                  Transfer::Ended{absl::UnavailableError("the shard's address is not known yet")});
  }
  // In a process without a gRPC server no other thread polls a channel that connects. If it does
  // not connect soon, the call fails, and the next attempt may find another address.
  channel->WaitForConnected(absl::ToChronoTime(absl::Now() + options_.max_wait));
  const std::unique_ptr<v1::Rounds::Stub> stub = v1::Rounds::NewStub(channel);
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mutex_);
    call.context = &context;
    // The watcher, or the cancellation, may have found no attempt to break off.
    if (call.cancelled || clock_.Now() >= call.transfer.silent_at()) context.TryCancel();
  }
  const absl::Cleanup forget = [&] {
    absl::MutexLock lock(&mutex_);
    call.context = nullptr;
  };
  return attempt(*stub, context, [&](const Transfer::Event& event) { return Handle(call, event); });
}

std::string RoundsClient::Name() const {
  const ShardLocation at = location_();
  return absl::StrCat("aggregator", at.aggregator.empty() ? "" : " ", at.aggregator, " at ",
                      at.address.empty() ? "an unknown address" : at.address);
}

// Keeps the connection as long as the shard is at the same place.
std::shared_ptr<grpc::Channel> RoundsClient::Connect() {
  const ShardLocation location = location_();
  if (location.address.empty()) return nullptr;
  absl::MutexLock lock(&mutex_);
  if (channel_ == nullptr || channel_location_ != location) {
    channel_ = MakeChannel(location.address, Plane::kBulk, credentials_,
                           {.role = Role::kAggregator, .name = location.aggregator});
    channel_location_ = location;
  }
  return channel_;
}

}  // namespace cadre
