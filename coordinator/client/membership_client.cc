// Two threads share one gRPC stream: the reader opens and closes streams and delivers messages; the
// writer writes queued messages and heartbeats. gRPC's synchronous stream allows one concurrent
// Read and one concurrent Write, so neither call holds the mutex:
//
//   - `stream_` is replaced only by the reader, and only while `writing_` is false (CloseStream
//     waits for that, and cancels a write that hangs), so the writer's raw pointer stays valid.
//   - The reader writes the Hello itself; the writer writes only after Welcome. Hello is therefore
//     always the first message of a stream.
//   - The reader detects a lost connection only by the end of the stream; a failed write therefore
//     cancels the stream and reports no other error.
//
// One of several coordinators leads; the others refuse streams. MembershipStream chooses the one of
// the next stream: every end of a stream leads to the next coordinator.
//
// While there is no stream, the reader polls the channel (WaitForConnected): in a process without a
// gRPC server no other thread does, except for a thread of gRPC that wakes every five seconds.
//
// Stop half-closes the stream after Goodbye and waits for the coordinator to end it, so Goodbye is
// known to be read; after kStopTimeout it cancels.
#include "coordinator/client/membership_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/rpc/address_list.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/no_answer.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Time limit for a write that is in progress when the stream ends.
constexpr absl::Duration kLastWrite = absl::Milliseconds(500);
// How long Stop waits for Goodbye to be read.
constexpr absl::Duration kStopTimeout = absl::Seconds(2);
// How long a channel without a stream is polled.
constexpr absl::Duration kMaxPoll = absl::Milliseconds(400);

}  // namespace

v1::Heartbeat MakeHeartbeat(const Counters& counters) {
  v1::Heartbeat heartbeat;
  for (const auto& [name, value] : counters.Snapshot()) {
    (*heartbeat.mutable_counters())[name] = value;
  }
  return heartbeat;
}

MembershipClient::MembershipClient(Options options)
    : options_(std::move(options)),
      servers_(ServersOf(options_)),
      state_(options_.seed, options_.epoch, options_.max_queued, servers_.size()) {
  reader_ = std::thread([this] { Read(); });
  writer_ = std::thread([this] { Write(); });
}

std::vector<MembershipClient::Server> MembershipClient::ServersOf(const Options& options) {
  const std::vector<std::string> addresses = SplitAddresses(options.coordinator);
  std::vector<Server> servers;
  for (const std::string& address : addresses) {
    Server& server = servers.emplace_back();
    server.address = address;
    server.channel = MakeChannel(address, addresses.size() > 1 ? Plane::kFailover : Plane::kControl,
                                 options.credentials, {.role = Role::kCoordinator});
    server.stub = v1::Membership::NewStub(server.channel);
  }
  return servers;
}

// Waits until the first join has succeeded or was refused; the reading thread retries meanwhile.
absl::StatusOr<std::unique_ptr<MembershipClient>> MembershipClient::Start(Options options) {
  if (!options.hello || !options.on_message) {
    return absl::InvalidArgumentError("MembershipClient needs hello and on_message");
  }
  auto client = std::unique_ptr<MembershipClient>(new MembershipClient(std::move(options)));
  absl::Status status;
  {
    absl::MutexLock lock(&client->mutex_);
    auto decided = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(client->mutex_) {
      return client->JoinIsDecided();
    };
    client->changed_.WaitFor(client->mutex_, client->options_.dial_timeout, decided);
    if (!client->refused_.ok()) {
      status = client->refused_;
    } else if (!client->state_.ever_welcomed()) {
      const Options& given = client->options_;
      status = NoAnswer("coordinator", given.coordinator, given.credentials.secure(),
                        client->last_error_.message());
    }
  }
  if (!status.ok()) {
    client->Stop("not joined");
    return status;
  }
  return client;
}

MembershipClient::~MembershipClient() { Stop("the process ends"); }

absl::Status MembershipClient::Send(v1::MemberMessage message) {
  absl::MutexLock lock(&mutex_);
  if (!state_.welcomed() || stopping_) {
    return absl::UnavailableError("not connected to the coordinator");
  }
  if (!state_.Queue(std::move(message))) {
    LOG(WARNING) << "the coordinator does not read fast enough; joining again";
    context_->TryCancel();
    return absl::UnavailableError("the coordinator does not read fast enough");
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool MembershipClient::connected() const {
  absl::MutexLock lock(&mutex_);
  return state_.welcomed();
}

absl::Status MembershipClient::Ready() const {
  absl::MutexLock lock(&mutex_);
  if (state_.welcomed()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator at ", options_.coordinator,
                                             " is not connected", last_end_.empty() ? "" : ": ",
                                             last_end_));
}

std::string MembershipClient::member_id() const {
  absl::MutexLock lock(&mutex_);
  return state_.member_id();
}

void MembershipClient::Stop(absl::string_view reason, bool finished) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_ && state_.welcomed()) {
      v1::MemberMessage message;
      message.mutable_goodbye()->set_reason(std::string(reason));
      message.mutable_goodbye()->set_finished(finished);
      goodbye_ = std::move(message);
    }
    stopping_ = true;
    changed_.NotifyAll();
    // No Goodbye is sent on a stream without Welcome.
    if (!state_.welcomed() && context_ != nullptr) context_->TryCancel();
    auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reader_done_; };
    changed_.WaitFor(mutex_, kStopTimeout, done);
    if (context_ != nullptr) context_->TryCancel();
  }
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
}

std::shared_ptr<grpc::Channel> MembershipClient::NextChannel() const {
  absl::MutexLock lock(&mutex_);
  return server().channel;
}

void MembershipClient::Read() {
  while (true) {
    NextChannel()->WaitForConnected(absl::ToChronoTime(absl::Now() + kMaxPoll));
    const absl::Status ended = ReadOneStream();
    absl::MutexLock lock(&mutex_);
    last_error_ = ended;
    auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
    if (changed_.WaitFor(mutex_, wait_, stopping)) break;
  }
  absl::MutexLock lock(&mutex_);
  reader_done_ = true;
  changed_.NotifyAll();
}

// Returns OK if the stream was welcomed.
absl::Status MembershipClient::ReadOneStream() {
  if (!OpenStream()) return absl::CancelledError("stopping");
  const v1::Hello hello = options_.hello();
  Stream* stream = nullptr;
  v1::MemberMessage first;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_.get();
    first = state_.First(hello);
  }
  bool welcomed = false;
  if (stream->Write(first)) {
    v1::CoordinatorMessage message;
    while (stream->Read(&message)) {
      welcomed |= message.has_welcome();
      if (!Deliver(message)) {
        absl::MutexLock lock(&mutex_);
        context_->TryCancel();
        break;
      }
    }
  }
  const absl::Status status = CloseStream();
  {
    absl::MutexLock lock(&mutex_);
    last_end_ = std::string(status.message());
  }
  if (!welcomed) return status;
  // Without payloads.
  LOG(INFO) << "stream to the coordinator ended: "
            << status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  if (options_.on_connection) options_.on_connection(false);
  return absl::OkStatus();
}

bool MembershipClient::Deliver(const v1::CoordinatorMessage& message) {
  if (!AcceptEpoch(message.epoch())) return false;
  if (options_.record_epoch && message.epoch() > recorded_epoch_ &&
      options_.record_epoch(message.epoch())) {
    recorded_epoch_ = message.epoch();
  }
  if (message.has_welcome()) {
    OnWelcome(message.welcome());
    return true;
  }
  const bool accepted = options_.on_message(message);
  if (message.has_refused()) OnRefused(message.refused());
  return accepted;
}

bool MembershipClient::AcceptEpoch(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  if (state_.AcceptEpoch(epoch)) return true;
  const std::string reason =
      absl::StrCat("the coordinator at ", server().address, " has epoch ", epoch,
                   ", but was replaced by one of epoch ", state_.epoch());
  LOG_IF(ERROR, state_.IsNewReason(reason)) << reason;
  return false;
}

bool MembershipClient::OpenStream() {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  context_ = std::make_unique<grpc::ClientContext>();
  // The metadata is sent with the first write, so that Join does not block on the connection while
  // it holds the lock.
  context_->set_initial_metadata_corked(true);
  state_.Open(clock_.Now());
  deadlines_moved_ = true;
  changed_.NotifyAll();
  stream_ = server().stub->Join(context_.get());
  return true;
}

// Lets a write that is in progress end, or cancels it, because the stream is destroyed here. Queued
// messages are lost; the owner sends them again after the next Welcome.
absl::Status MembershipClient::CloseStream() {
  absl::MutexLock lock(&mutex_);
  wait_ = state_.Close();
  auto not_writing = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !writing_; };
  if (!changed_.WaitFor(mutex_, kLastWrite, not_writing)) {
    context_->TryCancel();
    mutex_.Await(absl::Condition(&not_writing));
  }
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  context_.reset();
  half_closed_ = false;
  return status.ok() ? absl::UnavailableError("the coordinator ended the stream")
                     : FromGrpc(status);
}

// Releases the lock before the callback, which may call Send.
void MembershipClient::OnWelcome(const v1::Welcome& welcome) {
  {
    absl::MutexLock lock(&mutex_);
    state_.Welcome(welcome, clock_.Now());
    deadlines_moved_ = true;
    changed_.NotifyAll();
  }
  if (options_.on_connection) options_.on_connection(true);
}

void MembershipClient::OnRefused(const v1::Refused& refused) {
  const absl::Status reason = absl::PermissionDeniedError(
      absl::StrCat("the coordinator at ", options_.coordinator,
                   " refused to admit this member: ", refused.reason()));
  bool joined = false;
  {
    absl::MutexLock lock(&mutex_);
    const std::string text = absl::StrCat(
        "refused by the coordinator: ", EnumText(refused.refusal()), ": ", refused.reason());
    LOG_IF(WARNING, state_.IsNewReason(text)) << text;
    if (!state_.Refuse(refused)) return;
    refused_ = reason;
    joined = state_.ever_welcomed();
    changed_.NotifyAll();
  }
  // Start returns the refusal of the first join.
  if (joined && options_.on_refused) options_.on_refused(reason);
}

void MembershipClient::Write() {
  absl::MutexLock lock(&mutex_);
  auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return WriterHasWork(); };
  while (!reader_done_) {
    const absl::Time deadline = half_closed_ ? absl::InfiniteFuture() : state_.deadline();
    changed_.WaitFor(mutex_, deadline - clock_.Now(), has_work);
    if (reader_done_) return;
    deadlines_moved_ = false;
    if (stream_ != nullptr && state_.TakeHandshakeTimeout(clock_.Now())) context_->TryCancel();
    if (may_write()) WriteOne();
  }
}

bool MembershipClient::WriterHasWork() const {
  if (reader_done_ || deadlines_moved_) return true;
  return may_write() && (state_.has_messages() || stopping_);
}

// Unlocks the mutex while it writes; `writing_` keeps the stream alive meanwhile.
void MembershipClient::WriteOne() {
  std::optional<v1::MemberMessage> message;
  const bool heartbeat = !stopping_ && state_.TakeHeartbeat(clock_.Now());
  if (!heartbeat) message = state_.TakeMessage();
  if (!heartbeat && !message) message = std::exchange(goodbye_, std::nullopt);
  const bool last = !heartbeat && !message;
  if (last && !stopping_) return;
  half_closed_ = last;
  writing_ = true;
  Stream* const stream = stream_.get();
  grpc::ClientContext* const context = context_.get();
  mutex_.Unlock();
  if (heartbeat) message = NextHeartbeat();
  const bool written = last ? stream->WritesDone() : stream->Write(*message);
  mutex_.Lock();
  writing_ = false;
  changed_.NotifyAll();
  if (!written) context->TryCancel();
}

v1::MemberMessage MembershipClient::NextHeartbeat() const {
  v1::Heartbeat heartbeat;
  if (options_.heartbeat) heartbeat = options_.heartbeat();
  if (const auto left = options_.credentials.SecondsLeft()) {
    (*heartbeat.mutable_counters())["certificate_seconds_left"] = *left;
  }
  absl::MutexLock lock(&mutex_);
  return state_.HeartbeatOf(std::move(heartbeat));
}

}  // namespace cadre
