// Orders wait for the disk, so they are executed on threads of their own, in the order that the
// queue decides (server/order_queue.h). They are not durable here: the coordinator repeats each
// until it is answered, and all of them after a reconnect. A full queue therefore ends the stream.
#include "server/aggregator.h"

#include <glog/logging.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/identity.h"
#include "base/rpc/certificate_metrics.h"
#include "base/rpc/grpc_log.h"
#include "base/status.h"
#include "server/copies/copy_execution.h"
#include "server/order_execution.h"
#include "server/version_files.h"

namespace cadre {
namespace {

// Maximum number of warnings of a heartbeat.
constexpr int kMaxWarnings = 64;
// Health checks for this service ask whether the aggregator has verified its files and joined the
// coordinator.
constexpr char kReadiness[] = "readiness";

}  // namespace

Aggregator::Aggregator(AggregatorOptions options)
    : options_(std::move(options)),
      incarnation_(NewIdentity()),
      orders_(options_.orders),
      copy_client_(options_.server.credentials) {}

Aggregator::~Aggregator() { Drain(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<Aggregator>> Aggregator::Start(AggregatorOptions options) {
  auto aggregator = std::unique_ptr<Aggregator>(new Aggregator(std::move(options)));
  const AggregatorOptions& settings = aggregator->options_;
  auto free_bytes = [folder = settings.data_dir]() -> absl::StatusOr<int64_t> {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(folder, error);
    if (error) return absl::UnavailableError(error.message());
    return static_cast<int64_t>(space.available);
  };
  CADRE_ASSIGN_OR_RETURN(aggregator->host_,
                         ShardHost::Open({.data_dir = settings.data_dir,
                                          .name = settings.name,
                                          .counters = &aggregator->counters_,
                                          .checkpoint_files = settings.checkpoint_files,
                                          .archive = settings.archive,
                                          .verify = false,
                                          .free_bytes = std::move(free_bytes)}));
  aggregator->service_ =
      std::make_unique<RoundsService>(settings.service, *aggregator->host_, aggregator->counters_);
  CADRE_ASSIGN_OR_RETURN(aggregator->daemon_,
                         Daemon::Start(settings.server, {aggregator->service_.get()}));
  if (aggregator->host_->Unverified().empty()) {
    CADRE_RETURN_IF_ERROR(aggregator->Join());
  } else {
    aggregator->daemon_->SetServing(kReadiness, false);
    aggregator->verifier_ = std::thread([raw = aggregator.get()] { raw->VerifyAndJoin(); });
  }
  return aggregator;
}

void Aggregator::VerifyAndJoin() {
  absl::Status status;
  for (const auto& [run, progress] : host_->Unverified()) {
    do {
      status = host_->Verify(run, stop_.get_token());
    } while (WaitsToVerifyAgain(run, status));
    if (!status.ok()) break;
  }
  if (status.ok()) status = Join();
  if (status.ok() || absl::IsCancelled(status)) return;
  {
    absl::MutexLock lock(&mutex_);
    start_ = status;
  }
  if (options_.ended) options_.ended();
}

bool Aggregator::WaitsToVerifyAgain(const std::string& run, const absl::Status& verified) {
  absl::MutexLock lock(&mutex_);
  verification_ = verified;
  if (!IsTransient(verified)) return false;
  LOG(ERROR) << "the files of run " << run << " cannot be verified: " << verified;
  const auto ends = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return draining_; };
  return !changed_.WaitFor(mutex_, options_.orders.retry_wait, ends);
}

absl::Status Aggregator::Join() {
  MembershipClient::Options client;
  client.coordinator = options_.coordinator;
  client.credentials = options_.server.credentials;
  client.dial_timeout = options_.dial_timeout;
  client.seed = NewSeed();
  client.hello = [this] { return MakeHello(); };
  client.on_message = [this](const v1::CoordinatorMessage& message) { return OnMessage(message); };
  client.on_connection = [](bool connected) {
    LOG(INFO) << (connected ? "joined the coordinator"
                            : "disconnected from the coordinator; reconnecting");
  };
  client.on_refused = [this](const absl::Status& reason) {
    {
      absl::MutexLock lock(&mutex_);
      refused_ = reason;
    }
    if (options_.ended) options_.ended();
  };
  client.epoch = host_->store().epoch();
  client.record_epoch = [this](uint64_t epoch) {
    {
      absl::MutexLock lock(&mutex_);
      orders_.Begin(epoch);
    }
    return host_->SaveEpoch(epoch).ok();
  };
  client.heartbeat = [this] {
    if (options_.ended && !end().ok()) options_.ended();
    v1::Heartbeat heartbeat = MakeHeartbeat(counters_);
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(options_.data_dir, error);
    if (!error) (*heartbeat.mutable_counters())["disk_free_bytes"] = space.available;
    (*heartbeat.mutable_counters())["disk_reserved_bytes"] = reserved_bytes_;
    for (const auto& [run, text] : host_->store().archive_failures()) {
      v1::RunWarning& warning = *heartbeat.add_warnings();
      warning.set_run(run);
      warning.set_text(text);
      if (heartbeat.warnings_size() == kMaxWarnings) break;
    }
    absl::MutexLock lock(&mutex_);
    for (v1::DelayedOrder& delayed : orders_.Delayed(clock_.Now())) {
      *heartbeat.add_delayed_orders() = std::move(delayed);
    }
    return heartbeat;
  };
  CADRE_ASSIGN_OR_RETURN(auto membership, MembershipClient::Start(std::move(client)));
  {
    absl::MutexLock lock(&mutex_);
    membership_ = std::move(membership);
  }
  daemon_->SetServing(kReadiness, true);
  // Orders that arrived earlier wait in the queue.
  reserved_bytes_ = host_->ReservedBytes();
  for (size_t i = 0; i < options_.orders.max_taken; ++i) {
    order_threads_.emplace_back([this] { ExecuteOrders(); });
  }
  return absl::OkStatus();
}

absl::Status Aggregator::end() const {
  CADRE_RETURN_IF_ERROR(CheckAccepting());
  {
    absl::MutexLock lock(&mutex_);
    CADRE_RETURN_IF_ERROR(refused_);
    CADRE_RETURN_IF_ERROR(start_);
  }
  return host_->CheckFiles();
}

absl::Status Aggregator::Ready() const {
  CADRE_RETURN_IF_ERROR(end());
  if (const MembershipClient* const joined = Joined()) return joined->Ready();
  const auto unverified = host_->Unverified();
  if (unverified.empty()) return absl::UnavailableError("joins the coordinator");
  UnverifiedRuns::Progress sum;
  for (const auto& [run, progress] : unverified) {
    sum.read += progress.read;
    sum.bytes += progress.bytes;
  }
  absl::MutexLock lock(&mutex_);
  return absl::UnavailableError(
      absl::StrCat("verifies the files of ", unverified.size(),
                   unverified.size() == 1 ? " run, " : " runs, ", sum.read, " of ", sum.bytes,
                   " bytes", verification_.ok() ? "" : ": ", verification_.message()));
}

const MembershipClient* Aggregator::Joined() const {
  absl::MutexLock lock(&mutex_);
  return membership_.get();
}

std::string Aggregator::Unfinished() const {
  const auto unverified = host_->Unverified();
  absl::MutexLock lock(&mutex_);
  if (const std::string orders = orders_.TakenText(clock_.Now()); !orders.empty()) return orders;
  return unverified.empty() ? "calls of members" : "calls of members, or the verification of files";
}

void Aggregator::Collect(Metrics& metrics) const {
  metrics.AddCounters(counters_.Snapshot());
  metrics.AddDisk(options_.data_dir);
  metrics.Gauge("cadre_disk_reserved_bytes", "Bytes that open runs may still need.",
                static_cast<double>(reserved_bytes_));
  {
    absl::MutexLock lock(&mutex_);
    metrics.Gauge("cadre_orders_delayed",
                  "Orders of the coordinator that have failed and are tried again, or take long.",
                  static_cast<double>(orders_.Delayed(clock_.Now()).size()));
  }
  metrics.Gauge("cadre_archives_incomplete",
                "Runs of which a version could not be archived, so that they cannot be replayed.",
                static_cast<double>(host_->store().archive_failures().size()));
  metrics.AddHistogram("cadre_contribution_sync_seconds",
                       "Time to make a contribution durable, before it is acknowledged.",
                       host_->store().contribution_syncs().Read());
  const MembershipClient* const joined = Joined();
  metrics.Gauge("cadre_connected", "Whether the coordinator is connected.",
                joined != nullptr && joined->connected() ? 1 : 0);
  AddCertificate(options_.server.credentials, metrics);
  daemon_->calls().Collect(metrics);
}

void Aggregator::Drain(absl::Duration grace) {
  absl::Mutex mutex;
  SteadyCondVar changed;
  bool ended = false;
  std::thread watch([&] {
    {
      absl::MutexLock lock(&mutex);
      if (changed.WaitFor(mutex, options_.drain_limit, [&] { return ended; })) return;
    }
    if (options_.cut_off) options_.cut_off(Unfinished());
  });
  const absl::Cleanup end_watch = [&] {
    {
      absl::MutexLock lock(&mutex);
      ended = true;
      changed.NotifyAll();
    }
    watch.join();
  };
  stop_.request_stop();
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    changed_.NotifyAll();
  }
  copy_client_.Cancel();
  if (verifier_.joinable()) verifier_.join();
  for (std::thread& thread : order_threads_) {
    if (thread.joinable()) thread.join();
  }
  if (daemon_ != nullptr) daemon_->Drain(grace);
  if (membership_ != nullptr) membership_->Stop("drained");
}

v1::Hello Aggregator::MakeHello() const {
  v1::Hello hello;
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name(options_.name);
  hello.set_incarnation(incarnation_);
  hello.set_address(options_.advertise.empty() ? address() : options_.advertise);
  hello.set_host(HostName());
  hello.set_version(options_.version);
  hello.set_generation(host_->HighestGeneration());
  for (const v1::ShardState& state : host_->States()) *hello.add_shards() = state;
  return hello;
}

bool Aggregator::OnMessage(const v1::CoordinatorMessage& message) {
  // The client has logged it.
  if (message.has_refused()) return true;
  if (!IsOrder(message) && !message.has_copy_shard()) {
    LOG(WARNING) << "unexpected message: " << BodyName(message);
    return true;
  }
  OnArrival(*host_, message);
  absl::MutexLock lock(&mutex_);
  changed_.NotifyAll();
  if (orders_.Add(message, clock_.Now())) return true;
  // The coordinator repeats it when this member joins again.
  counters_.Add("orders_postponed");
  LOG(ERROR) << "too many waiting orders; joining again";
  return false;
}

std::optional<v1::CoordinatorMessage> Aggregator::NextOrder() {
  absl::MutexLock lock(&mutex_);
  std::optional<v1::CoordinatorMessage> order;
  const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!draining_) order = orders_.Take(clock_.Now());
    return draining_ || order.has_value();
  };
  while (!changed_.WaitFor(mutex_, orders_.NextTime() - clock_.Now(), take)) {
  }
  return order;
}

void Aggregator::ExecuteOrders() {
  while (const std::optional<v1::CoordinatorMessage> order = NextOrder()) {
    OrderResult result = Execute(*order);
    std::optional<v1::MemberMessage> answer;
    {
      absl::MutexLock lock(&mutex_);
      answer = orders_.Finish(*order, std::move(result), clock_.Now());
    }
    if (answer.has_value()) Answer(*answer);
    absl::MutexLock lock(&mutex_);
    orders_.Release(*order);
    changed_.NotifyAll();
  }
}

OrderResult Aggregator::Execute(const v1::CoordinatorMessage& order) {
  if (order.has_copy_shard()) {
    return ExecuteCopy(*host_, order.copy_shard(),
                       [this](const v1::CopyShard& copy, const v1::CopyRequest& request,
                              const std::function<absl::Status(const v1::CopyReply&)>& on_reply) {
                         return copy_client_.Fetch(copy.address(), copy.aggregator(), request,
                                                   on_reply);
                       });
  }
  OrderResult result = ExecuteOrder(*host_, order);
  reserved_bytes_ = host_->ReservedBytes();
  return result;
}

void Aggregator::Answer(const v1::MemberMessage& message) {
  if (const absl::Status status = membership_->Send(message); !status.ok()) {
    // The coordinator repeats the order after a reconnect.
    LOG(WARNING) << "answer lost: " << status;
  }
}

}  // namespace cadre
