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
// A heartbeat has precedence over queued messages: it carries the counters, and a long queue must
// not let the lease expire. (Every message renews the lease.)
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
#include "base/backoff.h"
#include "base/protocol.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/no_answer.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Time limit from connecting to Welcome.
constexpr absl::Duration kHandshake = absl::Seconds(10);
// Time limit for a write that is in progress when the stream ends.
constexpr absl::Duration kLastWrite = absl::Milliseconds(500);
// How long Stop waits for Goodbye to be read.
constexpr absl::Duration kStopTimeout = absl::Seconds(2);
// Members wait for a restarted coordinator, and so do their runs.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kMaxRetry = absl::Milliseconds(400);

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
      channel_(MakeChannel(options_.coordinator, Plane::kControl, options_.credentials,
                           {.role = Role::kCoordinator})),
      stub_(v1::Membership::NewStub(channel_)) {
  reader_ = std::thread([this] { Read(); });
  writer_ = std::thread([this] { Write(); });
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
    } else if (!client->ever_welcomed_) {
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
  if (!welcomed_ || stopping_) return absl::UnavailableError("not connected to the coordinator");
  if (queue_.size() >= options_.max_queued) {
    LOG(WARNING) << "the coordinator does not read fast enough; joining again";
    context_->TryCancel();
    return absl::UnavailableError("the coordinator does not read fast enough");
  }
  queue_.push_back(std::move(message));
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool MembershipClient::connected() const {
  absl::MutexLock lock(&mutex_);
  return welcomed_;
}

absl::Status MembershipClient::Ready() const {
  absl::MutexLock lock(&mutex_);
  if (welcomed_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator at ", options_.coordinator,
                                             " is not connected", last_end_.empty() ? "" : ": ",
                                             last_end_));
}

std::string MembershipClient::member_id() const {
  absl::MutexLock lock(&mutex_);
  return member_id_;
}

void MembershipClient::Stop(absl::string_view reason, bool finished) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_ && welcomed_) {
      v1::MemberMessage message;
      message.mutable_goodbye()->set_reason(std::string(reason));
      message.mutable_goodbye()->set_finished(finished);
      queue_.push_back(std::move(message));
    }
    stopping_ = true;
    changed_.NotifyAll();
    // No Goodbye is sent on a stream without Welcome.
    if (!welcomed_ && context_ != nullptr) context_->TryCancel();
    auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reader_done_; };
    changed_.WaitFor(mutex_, kStopTimeout, done);
    if (context_ != nullptr) context_->TryCancel();
  }
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
}

void MembershipClient::Read() {
  Backoff backoff(kFirstRetry, kMaxRetry, options_.seed);
  while (true) {
    channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + kMaxRetry));
    const absl::Status ended = ReadOneStream();
    absl::MutexLock lock(&mutex_);
    if (ended.ok()) backoff.Reset();
    last_error_ = ended;
    auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
    const absl::Duration wait = refused_.ok() ? backoff.Next() : absl::InfiniteDuration();
    if (changed_.WaitFor(mutex_, wait, stopping)) break;
  }
  absl::MutexLock lock(&mutex_);
  reader_done_ = true;
  changed_.NotifyAll();
}

// Returns OK if the stream was welcomed, so that the backoff starts again.
absl::Status MembershipClient::ReadOneStream() {
  if (!OpenStream()) return absl::CancelledError("stopping");
  Stream* stream = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_.get();
  }
  v1::MemberMessage first;
  *first.mutable_hello() = options_.hello();
  first.mutable_hello()->set_protocol(kProtocol);
  first.mutable_hello()->set_member_id(member_id());
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
  LOG(INFO) << "stream to the coordinator ended: " << status;
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
  if (epoch < epoch_) {
    LOG(ERROR) << "the coordinator at " << options_.coordinator << " has epoch " << epoch
               << ", but was replaced by one of epoch " << epoch_;
    ++stale_epochs_;
    return false;
  }
  epoch_ = epoch;
  return true;
}

bool MembershipClient::OpenStream() {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  context_ = std::make_unique<grpc::ClientContext>();
  // The metadata is sent with the first write, so that Join does not block on the connection while
  // it holds the lock.
  context_->set_initial_metadata_corked(true);
  handshake_until_ = clock_.Now() + kHandshake;
  deadlines_moved_ = true;
  changed_.NotifyAll();
  stream_ = stub_->Join(context_.get());
  return true;
}

// Lets a write that is in progress end, or cancels it, because the stream is destroyed here. Queued
// messages are lost; the owner sends them again after the next Welcome.
absl::Status MembershipClient::CloseStream() {
  absl::MutexLock lock(&mutex_);
  welcomed_ = false;
  queue_.clear();
  auto not_writing = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !writing_; };
  if (!changed_.WaitFor(mutex_, kLastWrite, not_writing)) {
    context_->TryCancel();
    mutex_.Await(absl::Condition(&not_writing));
  }
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  context_.reset();
  half_closed_ = false;
  handshake_until_ = absl::InfiniteFuture();
  heartbeat_at_ = absl::InfiniteFuture();
  return status.ok() ? absl::UnavailableError("the coordinator ended the stream")
                     : FromGrpc(status);
}

// Releases the lock before the callback, which may call Send.
void MembershipClient::OnWelcome(const v1::Welcome& welcome) {
  {
    absl::MutexLock lock(&mutex_);
    member_id_ = welcome.member_id();
    heartbeat_ = absl::Milliseconds(std::max(1u, welcome.heartbeat_ms()));
    heartbeat_at_ = clock_.Now() + heartbeat_;
    handshake_until_ = absl::InfiniteFuture();
    deadlines_moved_ = true;
    welcomed_ = true;
    ever_welcomed_ = true;
    changed_.NotifyAll();
  }
  if (options_.on_connection) options_.on_connection(true);
}

// A refusal of the first join is final: Start returns it. A later one ends the stream, and the
// client joins again, unless the coordinator would refuse it again.
void MembershipClient::OnRefused(const v1::Refused& refused) {
  LOG(WARNING) << "refused by the coordinator: " << EnumText(refused.refusal()) << ": "
               << refused.reason();
  const absl::Status reason = absl::PermissionDeniedError(
      absl::StrCat("the coordinator at ", options_.coordinator,
                   " refused to admit this member: ", refused.reason()));
  bool permanently = false;
  {
    absl::MutexLock lock(&mutex_);
    if (refused.refusal() == v1::REFUSAL_UNKNOWN_MEMBER) {
      member_id_.clear();
      return;
    }
    const bool final = refused.refusal() == v1::REFUSAL_PROTOCOL ||
                       refused.refusal() == v1::REFUSAL_WRONG_IDENTITY;
    permanently = ever_welcomed_ && final;
    if (ever_welcomed_ && !permanently) return;
    refused_ = reason;
    changed_.NotifyAll();
  }
  if (permanently && options_.on_refused) options_.on_refused(reason);
}

void MembershipClient::Write() {
  absl::MutexLock lock(&mutex_);
  auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return WriterHasWork(); };
  while (!reader_done_) {
    const absl::Time deadline = std::min(handshake_until_, heartbeat_at_);
    changed_.WaitFor(mutex_, deadline - clock_.Now(), has_work);
    if (reader_done_) return;
    deadlines_moved_ = false;
    if (stream_ != nullptr && clock_.Now() >= handshake_until_) {
      handshake_until_ = absl::InfiniteFuture();
      context_->TryCancel();
    }
    if (stream_ != nullptr && welcomed_ && !half_closed_) WriteOne();
  }
}

bool MembershipClient::WriterHasWork() const {
  if (reader_done_ || deadlines_moved_) return true;
  const bool open = stream_ != nullptr && welcomed_ && !half_closed_;
  return open && (!queue_.empty() || stopping_);
}

// Unlocks the mutex while it writes; `writing_` keeps the stream alive meanwhile.
void MembershipClient::WriteOne() {
  v1::MemberMessage message;
  bool last = false;
  // Heartbeats precede queued messages.
  const bool heartbeat = !stopping_ && clock_.Now() >= heartbeat_at_;
  if (heartbeat) {
    heartbeat_at_ = clock_.Now() + heartbeat_;
  } else if (!queue_.empty()) {
    message = std::move(queue_.front());
    queue_.pop_front();
  } else if (stopping_) {
    last = true;
    half_closed_ = true;
    heartbeat_at_ = absl::InfiniteFuture();
  } else {
    return;
  }
  writing_ = true;
  Stream* const stream = stream_.get();
  grpc::ClientContext* const context = context_.get();
  mutex_.Unlock();
  if (heartbeat) message = NextHeartbeat();
  const bool written = last ? stream->WritesDone() : stream->Write(message);
  mutex_.Lock();
  writing_ = false;
  changed_.NotifyAll();
  if (!written) context->TryCancel();
}

v1::MemberMessage MembershipClient::NextHeartbeat() const {
  v1::MemberMessage message;
  if (options_.heartbeat) *message.mutable_heartbeat() = options_.heartbeat();
  if (const auto left = options_.credentials.SecondsLeft()) {
    (*message.mutable_heartbeat()->mutable_counters())["certificate_seconds_left"] = *left;
  }
  absl::MutexLock lock(&mutex_);
  (*message.mutable_heartbeat()->mutable_counters())["stale_epochs"] = stale_epochs_;
  return message;
}

}  // namespace cadre
