// How long a heartbeat takes until it is handled
//
// The coordinator does not answer heartbeats. Every fourth heartbeat of a stream is therefore
// followed by a probe: a GroupFailed for a run that does not exist. The coordinator answers it by
// Release without a change of its state or of its store. The messages of a stream are handled in
// order, so the answer proves that the heartbeat has been handled. The time from the request to
// write the heartbeat until the answer has been read is an upper bound: it includes the handling of
// the probe, the way back, and the load that this program puts on the same cores.
//
// Threads: one thread sends the heartbeats of all members, evenly over the heartbeat interval that
// Welcome names. gRPC's threads read answers and write what waits (callback API). The calling
// thread sets the load up and requests the status, page after page. If the sending thread is late,
// the load is not what it claims to be; its largest delay is part of the output.
//
// Processor time and memory of the coordinator are those of the whole child process, over its whole
// life, as the kernel reports them when it has ended.
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/file_limit.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/status.h"
#include "bench/coordinator/fake_member.h"
#include "bench/coordinator/load.h"
#include "bench/harness.h"
#include "cli/command_options.h"
#include "cli/local_cluster.h"
#include "cli/work_folder.h"
#include "coordinator/client/coordinator_client.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "proto/cadre/v1/membership.grpc.pb.h"

namespace cadre {
namespace {

constexpr int kHeartbeatsPerProbe = 4;
// Streams that have not received Welcome yet; below the backlog of a listening socket.
constexpr int kMaxJoining = 100;
// Open files of each of the two processes, besides the connections.
constexpr uint64_t kOtherFiles = 256;
// Run of the probes; no run has this id.
constexpr char kProbeRun[] = "probe";
constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr absl::Duration kCallTimeout = absl::Seconds(30);

v1::MemberMessage Probe() {
  v1::MemberMessage message;
  v1::GroupFailed& failed = *message.mutable_group_failed();
  failed.mutable_place()->set_run(kProbeRun);
  failed.set_reason("probe of the benchmark");
  failed.set_cause(v1::FAILURE_CAUSE_PEER);
  return message;
}

// One member and its stream. Thread-safe.
class MemberStream final
    : public grpc::ClientBidiReactor<v1::MemberMessage, v1::CoordinatorMessage> {
 public:
  MemberStream(FakeMember member, const std::string& coordinator)
      : member_(std::move(member)),
        stub_(v1::Membership::NewStub(MakeChannel(coordinator, Plane::kControl))) {}

  void Open() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    stub_->async()->Join(&context_, this);
    AddHold();
    held_ = true;
    Queue(member_.Hello());
    StartRead(&incoming_);
    StartCall();
  }

  // Sends what a member sends at every heartbeat interval: Heartbeat and, as the lead of a group,
  // Progress, or Contributed after `round` seconds. The latency of a probe is recorded if
  // `measured`.
  void Beat(bool probe, bool measured, double round) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (member_.heartbeat_ms() == 0 || broken_) return;
    const double now = MonotonicSeconds();
    probe = probe && !probed_at_.has_value();
    if (probe) {
      probed_at_ = now;
      measured_ = measured;
    }
    Queue(member_.Heartbeat());
    if (probe) Queue(Probe());
    if (!member_.leads()) return;
    Queue(member_.Progress());
    if (!leads_since_.has_value()) leads_since_ = now;
    if (now < *leads_since_ + round) return;
    leads_since_.reset();
    Queue(member_.Contributed());
  }

  // Ends the stream; `ended` is decremented once gRPC does not use this object any more.
  void Close(absl::BlockingCounter* ended) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) {
      ended->DecrementCount();
      return;
    }
    ended_ = ended;
    context_.TryCancel();
    Break();
  }

  // Interval of heartbeats in milliseconds; 0 before Welcome.
  uint32_t heartbeat_ms() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return member_.heartbeat_ms();
  }
  bool has_led() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return leads_since_.has_value() || member_.included() > 0;
  }
  bool broken() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return broken_;
  }
  // Why a broken stream has ended. Blocks until it has.
  absl::Status end() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](const std::optional<absl::Status>* end) { return end->has_value(); }, &end_));
    return *end_;
  }
  uint64_t heartbeats() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return member_.heartbeats();
  }
  Latencies latencies() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return latencies_;
  }

 private:
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!ok) return Break();
    if (incoming_.has_release() && incoming_.release().place().run() == kProbeRun) {
      if (measured_) latencies_.Add(MonotonicSeconds() - *probed_at_);
      probed_at_.reset();
    } else {
      for (v1::MemberMessage& answer : member_.Handle(incoming_)) Queue(std::move(answer));
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) Break();
    WriteNext();
  }

  // After the counter is decremented this object may be destroyed.
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::BlockingCounter* ended = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      end_ = FromGrpc(status);
      ended = ended_;
    }
    if (ended != nullptr) ended->DecrementCount();
  }

  // Nothing more is sent. gRPC may end the call, because nothing is started outside its reactions.
  void Break() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    broken_ = true;
    if (std::exchange(held_, false)) RemoveHold();
  }

  void Queue(v1::MemberMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    outgoing_.push_back(std::move(message));
    WriteNext();
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || broken_ || outgoing_.empty()) return;
    writing_ = true;
    StartWrite(&outgoing_.front());
  }

  mutable absl::Mutex mutex_;
  FakeMember member_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<v1::Membership::Stub> stub_;
  grpc::ClientContext context_;
  // Written by gRPC between StartRead and OnReadDone.
  v1::CoordinatorMessage incoming_;
  // The first message is being written while writing_ is set.
  std::deque<v1::MemberMessage> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether gRPC waits for operations that are started outside its reactions.
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  // Time of the heartbeat before the unanswered probe, and whether its latency counts.
  std::optional<double> probed_at_ ABSL_GUARDED_BY(mutex_);
  bool measured_ ABSL_GUARDED_BY(mutex_) = false;
  // Since when the member leads a group that trains.
  std::optional<double> leads_since_ ABSL_GUARDED_BY(mutex_);
  Latencies latencies_ ABSL_GUARDED_BY(mutex_);
  absl::BlockingCounter* ended_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// Sends the heartbeats of the streams on a thread of its own until it is destroyed.
class Pacer {
 public:
  // `streams` is borrowed. `interval_ms`: time between two heartbeats of one stream.
  Pacer(std::vector<std::unique_ptr<MemberStream>>& streams, uint32_t interval_ms, double round)
      : streams_(streams), interval_(interval_ms * 1e-3), round_(round) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Pacer() {
    stopping_ = true;
    thread_.join();
  }

  void set_measured(bool measured) { measured_ = measured; }
  // Largest delay of a measured heartbeat behind its schedule.
  double max_delay() const { return max_delay_; }

 private:
  void Run() {
    const auto count = static_cast<int64_t>(streams_.size());
    const double begin = MonotonicSeconds();
    for (int64_t beat = 0; !stopping_; ++beat) {
      const double due = begin + interval_ * static_cast<double>(beat) / static_cast<double>(count);
      const double early = due - MonotonicSeconds();
      if (early > 0) absl::SleepFor(absl::Seconds(early));
      const bool measured = measured_;
      if (measured) max_delay_ = std::max(max_delay_.load(), -early);
      const int64_t stream = beat % count;
      // Aggregators do not send GroupFailed.
      const bool probe =
          stream >= kLoadAggregators && (beat / count + stream) % kHeartbeatsPerProbe == 0;
      streams_[stream]->Beat(probe, measured, round_);
    }
  }

  std::vector<std::unique_ptr<MemberStream>>& streams_;
  const double interval_;
  const double round_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> measured_ = false;
  std::atomic<double> max_delay_ = 0;
  std::thread thread_;
};

class StreamLoad {
 public:
  StreamLoad(const LoadOptions& options, std::string coordinator)
      : options_(options),
        coordinator_(std::move(coordinator)),
        client_({.coordinator = coordinator_}),
        status_(v1::Status::NewStub(MakeChannel(coordinator_, Plane::kControl))) {}
  ~StreamLoad() { CloseStreams(); }

  absl::StatusOr<nlohmann::ordered_json> Run() {
    const double begin = MonotonicSeconds();
    CADRE_RETURN_IF_ERROR(SubmitRuns());
    MakeStreams();
    const absl::Time deadline = absl::Now() + absl::Seconds(options_.setup_seconds);
    // The pacer needs the interval that the first Welcome names.
    CADRE_RETURN_IF_ERROR(OpenStreams(1, deadline));
    auto pacer =
        std::make_unique<Pacer>(streams_, streams_[0]->heartbeat_ms(), options_.round_seconds);
    CADRE_RETURN_IF_ERROR(OpenStreams(std::ssize(streams_), deadline));
    setup_seconds_ = MonotonicSeconds() - begin;
    CADRE_RETURN_IF_ERROR(AwaitGroups(deadline));
    pacer->set_measured(true);
    CADRE_RETURN_IF_ERROR(ReadStatus());
    max_delay_ = pacer->max_delay();
    pacer.reset();
    return Result();
  }

 private:
  // ---- Setup

  absl::Status SubmitRuns() {
    CADRE_ASSIGN_OR_RETURN(const std::vector<v1::RunSpec> specs, options_.Specs());
    for (const v1::RunSpec& spec : specs) {
      CADRE_RETURN_IF_ERROR(client_.Submit(spec).status());
    }
    return absl::OkStatus();
  }

  void MakeStreams() {
    for (int i = 0; i < kLoadAggregators; ++i) AddStream(v1::ROLE_AGGREGATOR, i);
    for (int i = 0; i < options_.workers; ++i) AddStream(v1::ROLE_WORKER, i);
  }
  void AddStream(v1::Role role, int number) {
    streams_.push_back(std::make_unique<MemberStream>(
        FakeMember(role, number, options_.HostOf(number)), coordinator_));
  }

  // Opens streams until `count` are open; returns once all of them have received Welcome.
  absl::Status OpenStreams(int64_t count, absl::Time deadline) {
    while (joined_ < count) {
      while (opened_ < count && opened_ < joined_ + kMaxJoining) streams_[opened_++]->Open();
      while (joined_ < opened_ && streams_[joined_]->heartbeat_ms() > 0) ++joined_;
      if (joined_ < opened_ && streams_[joined_]->broken()) {
        return absl::InternalError(
            absl::StrCat("the stream of member ", joined_,
                         " ended before Welcome: ", streams_[joined_]->end().ToString()));
      }
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("only ", joined_, " of ", streams_.size(), " members have joined in ",
                         options_.setup_seconds, " s", "; see --setup-seconds"));
      }
      if (joined_ < count) absl::SleepFor(kPoll);
    }
    return absl::OkStatus();
  }

  absl::Status AwaitGroups(absl::Time deadline) {
    while (true) {
      const auto training =
          std::ranges::count_if(streams_, [](const auto& stream) { return stream->has_led(); });
      if (training >= options_.groups()) return absl::OkStatus();
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("only ", training, " of ", options_.groups(), " groups train after ",
                         options_.setup_seconds, " s", "; see --setup-seconds"));
      }
      absl::SleepFor(10 * kPoll);
    }
  }

  // ---- Measuring

  // Requests pages of the status for the measured time. Each request continues after the page
  // before.
  absl::Status ReadStatus() {
    const double begin = MonotonicSeconds();
    std::string token;
    for (int i = 0; MonotonicSeconds() < begin + options_.seconds; ++i) {
      const double requested = MonotonicSeconds();
      CADRE_ASSIGN_OR_RETURN(const v1::StatusReply page, GetPage(token, /*details=*/false));
      status_times_.Add(MonotonicSeconds() - requested);
      page_bytes_ = std::max(page_bytes_, page.ByteSizeLong());
      token = page.next_page_token();
      const double rest = options_.status_interval - (MonotonicSeconds() - requested);
      if (rest > 0) absl::SleepFor(absl::Seconds(rest));
    }
    measured_seconds_ = MonotonicSeconds() - begin;
    return absl::OkStatus();
  }

  absl::StatusOr<v1::StatusReply> GetPage(const std::string& token, bool details) {
    v1::StatusRequest request;
    request.set_page_token(token);
    request.set_details(details);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
    v1::StatusReply reply;
    const grpc::Status status = status_->Get(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }

  // ---- Results

  // Reads all pages. Returns the heartbeats that the coordinator has handled.
  absl::StatusOr<uint64_t> AllHandledHeartbeats() {
    uint64_t handled = 0;
    std::string token;
    do {
      CADRE_ASSIGN_OR_RETURN(const v1::StatusReply page, GetPage(token, /*details=*/true));
      if (token.empty()) counters_ = page;
      handled += HandledHeartbeats(page);
      token = page.next_page_token();
    } while (!token.empty());
    return handled;
  }

  uint64_t Counter(const std::string& name) const {
    const auto found = counters_.counters().find(name);
    return found == counters_.counters().end() ? 0 : found->second;
  }

  // Requires: no more heartbeats are sent.
  absl::StatusOr<nlohmann::ordered_json> Result() {
    uint64_t sent = 0;
    for (const auto& stream : streams_) sent += stream->heartbeats();
    const absl::Time deadline = absl::Now() + options_.lease / 2;
    CADRE_ASSIGN_OR_RETURN(uint64_t handled, AllHandledHeartbeats());
    while (handled < sent && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(50));
      CADRE_ASSIGN_OR_RETURN(handled, AllHandledHeartbeats());
    }
    const auto broken =
        std::ranges::count_if(streams_, [](const auto& stream) { return stream->broken(); });
    if (broken == 0 && handled != sent) {
      return absl::InternalError(
          absl::StrCat(sent, " heartbeats sent, but the status shows ", handled));
    }
    Latencies latencies;
    for (const auto& stream : streams_) latencies.Add(stream->latencies());
    return nlohmann::ordered_json{{"streams", options_.workers},
                                  {"runs", options_.runs()},
                                  {"groups", options_.groups()},
                                  {"ranks_per_group", options_.ranks_per_group},
                                  {"heartbeat_ms", streams_[0]->heartbeat_ms()},
                                  {"setup_seconds", Rounded(setup_seconds_, 2)},
                                  {"seconds", Rounded(measured_seconds_, 2)},
                                  {"heartbeats_sent", sent},
                                  {"heartbeats_handled", handled},
                                  {"heartbeat_handled", latencies.ToJson()},
                                  {"status", status_times_.ToJson()},
                                  {"status_page_bytes", page_bytes_},
                                  {"rounds_committed", Counter("rounds_committed")},
                                  {"leases_lost", Counter("leases_lost")},
                                  {"streams_broken", broken},
                                  {"sender_delay_max_ms", Rounded(max_delay_ * 1e3, 1)}};
  }

  void CloseStreams() {
    absl::BlockingCounter ended(static_cast<int>(opened_));
    for (int64_t i = 0; i < opened_; ++i) streams_[i]->Close(&ended);
    ended.Wait();
  }

  const LoadOptions options_;
  const std::string coordinator_;
  const CoordinatorClient client_;
  const std::unique_ptr<v1::Status::Stub> status_;
  // The aggregators, then the workers.
  std::vector<std::unique_ptr<MemberStream>> streams_;
  int64_t opened_ = 0;
  // The first streams of streams_ that have received Welcome.
  int64_t joined_ = 0;

  Latencies status_times_;
  size_t page_bytes_ = 0;
  double setup_seconds_ = 0;
  double measured_seconds_ = 0;
  double max_delay_ = 0;
  v1::StatusReply counters_;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureStreams(const LoadOptions& options) {
  // Child processes inherit the limit.
  CADRE_RETURN_IF_ERROR(CheckDescriptors(options.workers + kOtherFiles));
  CADRE_ASSIGN_OR_RETURN(const std::string own_folder, ProgramsFolder());
  CADRE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Make(""));
  CADRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalCluster> cluster,
      LocalCluster::Start({.programs = options.programs.empty() ? own_folder : options.programs,
                           .folder = folder.path(),
                           .workers = 0,
                           .aggregators = 0,
                           .insecure = true,
                           .lease = options.lease,
                           .restart = false}));
  CADRE_ASSIGN_OR_RETURN(nlohmann::ordered_json result,
                         StreamLoad(options, cluster->coordinator()).Run());
  cluster->Shutdown();
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  result["coordinator_cpu_seconds"] = Rounded(seconds(used.ru_utime) + seconds(used.ru_stime), 2);
  result["coordinator_max_rss_bytes"] = int64_t{used.ru_maxrss} * 1024;
  return result;
}

}  // namespace cadre
