// Floods a coordinator and an aggregator with calls, or burns processor time (bench/flood.py).
//
//   bench_flood --coordinator=HOST:PORT --aggregator=HOST:PORT --seconds=30
//   bench_flood --burn_cores=0.8 --seconds=30
//
// Every connection has a thread that does one of these things until the time is over: asks for the
// status, lists runs, submits runs that are refused, joins with messages that make no sense, stages
// and pulls without a key, opens streams and stays silent, or watches runs without reading. Prints
// one JSON line with the calls and the processor time.
#include <gflags/gflags.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/protocol.h"
#include "bench/harness.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "proto/cadre/v1/membership.grpc.pb.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"

DEFINE_string(coordinator, "", "Address of the coordinator.");
DEFINE_string(aggregator, "", "Address of an aggregator.");
DEFINE_int32(connections, 64, "Connections, each with a thread.");
DEFINE_double(seconds, 30, "Time.");
DEFINE_double(burn_cores, 0, "If positive: only use so many cores of processor time.");

namespace cadre {
namespace {

// Silent or slow streams of one connection.
constexpr int kStreams = 50;

class Flood {
 public:
  Flood(int number, absl::Time end, std::atomic<uint64_t>& calls)
      : number_(number),
        end_(end),
        calls_(calls),
        coordinator_(Connect(FLAGS_coordinator)),
        aggregator_(Connect(FLAGS_aggregator)),
        runs_(v1::Runs::NewStub(coordinator_)),
        status_(v1::Status::NewStub(coordinator_)),
        membership_(v1::Membership::NewStub(coordinator_)),
        rounds_(v1::Rounds::NewStub(aggregator_)) {}

  void Run() {
    const auto kind = number_ % 8;
    if (kind == 5) return StaySilent();
    if (kind == 6) return WatchWithoutReading();
    while (absl::Now() < end_) {
      if (kind == 0) GetStatus();
      if (kind == 1) ListRuns();
      if (kind == 2) Submit();
      if (kind == 3) Join();
      if (kind == 4) Stage();
      if (kind == 7) Pull();
      ++calls_;
    }
  }

 private:
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
    grpc::ChannelArguments arguments;
    // A connection of its own.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxSendMessageSize(-1);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  std::unique_ptr<grpc::ClientContext> Context() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(absl::ToChronoTime(end_));
    return context;
  }

  void GetStatus() {
    v1::StatusRequest request;
    request.set_details(true);
    v1::StatusReply reply;
    status_->Get(Context().get(), request, &reply);
  }

  void ListRuns() {
    v1::ListReply reply;
    runs_->List(Context().get(), v1::ListRequest(), &reply);
  }

  void Submit() {
    v1::SubmitRequest request;
    request.set_protocol(kProtocol);
    v1::RunSpec& spec = *request.mutable_spec();
    spec.set_name("flood");
    spec.mutable_data()->mutable_tar_shards()->set_train(
        absl::StrCat(std::string(500, 'a'), "{000000..999999}.tar"));
    // Every eighth one is larger than a run file may be.
    if (++submitted_ % 8 == 0) spec.mutable_checkpoint()->set_directory(std::string(2 << 20, 'a'));
    v1::SubmitReply reply;
    runs_->Submit(Context().get(), request, &reply);
  }

  void Join() {
    const auto context = Context();
    const auto stream = membership_->Join(context.get());
    v1::MemberMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_protocol(kProtocol);
    hello.set_role(v1::ROLE_WORKER);
    hello.set_name(absl::StrCat("flood-", number_));
    hello.set_incarnation(absl::StrCat(number_, "-", ++joined_));
    hello.set_address("127.0.0.1:1");
    stream->Write(message);
    v1::CoordinatorMessage answer;
    stream->Read(&answer);
    message.mutable_contributed()->mutable_place()->set_run("run-1-small");
    message.mutable_contributed()->set_round(1'000'000);
    for (int i = 0; i < 100 && stream->Write(message); ++i) ++calls_;
    message.mutable_goodbye();
    stream->Write(message);
    stream->WritesDone();
    while (stream->Read(&answer)) {
    }
    stream->Finish();
  }

  void Stage() {
    const auto context = Context();
    const auto stream = rounds_->Stage(context.get());
    v1::StageRequest request;
    request.mutable_header()->set_run("run-1-small");
    request.mutable_header()->set_generation(0xffffffffU);
    request.mutable_header()->set_protocol(kProtocol);
    stream->Write(request);
    v1::StageReply reply;
    stream->Read(&reply);
    stream->Finish();
  }

  void Pull() {
    v1::PullRequest request;
    request.set_run("run-1-small");
    request.set_version(1);
    request.set_protocol(kProtocol);
    const auto context = Context();
    const auto stream = rounds_->Pull(context.get(), request);
    v1::PullReply reply;
    while (stream->Read(&reply)) {
    }
    stream->Finish();
  }

  void StaySilent() {
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::StageRequest, v1::StageReply>>> stages;
    std::vector<
        std::unique_ptr<grpc::ClientReaderWriter<v1::MemberMessage, v1::CoordinatorMessage>>>
        joins;
    for (int i = 0; i < kStreams; ++i) {
      contexts.push_back(Context());
      stages.push_back(rounds_->Stage(contexts.back().get()));
      contexts.push_back(Context());
      joins.push_back(membership_->Join(contexts.back().get()));
      calls_ += 2;
    }
    absl::SleepFor(end_ - absl::Now());
    for (const auto& context : contexts) context->TryCancel();
    for (const auto& stream : stages) stream->Finish();
    for (const auto& stream : joins) stream->Finish();
  }

  void WatchWithoutReading() {
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchUpdate>>> watches;
    for (int i = 0; i < kStreams; ++i) {
      contexts.push_back(Context());
      watches.push_back(status_->Watch(contexts.back().get(), v1::WatchRequest()));
      ++calls_;
    }
    absl::SleepFor(end_ - absl::Now());
    for (const auto& context : contexts) context->TryCancel();
    for (const auto& stream : watches) stream->Finish();
  }

  const int number_;
  const absl::Time end_;
  std::atomic<uint64_t>& calls_;
  const std::shared_ptr<grpc::Channel> coordinator_;
  const std::shared_ptr<grpc::Channel> aggregator_;
  const std::unique_ptr<v1::Runs::Stub> runs_;
  const std::unique_ptr<v1::Status::Stub> status_;
  const std::unique_ptr<v1::Membership::Stub> membership_;
  const std::unique_ptr<v1::Rounds::Stub> rounds_;
  uint64_t submitted_ = 0;
  uint64_t joined_ = 0;
};

// Uses `share` of one core on average, also when other threads compete for the cores.
void Burn(double share, absl::Time end) {
  const absl::Time begin = absl::Now();
  while (absl::Now() < end) {
    if (absl::Seconds(ThreadSeconds()) > share * (absl::Now() - begin))
      absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::Status RunAll() {
  const absl::Time end = absl::Now() + absl::Seconds(FLAGS_seconds);
  std::atomic<uint64_t> calls = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < FLAGS_connections; ++i) {
    threads.emplace_back([i, end, &calls] {
      if (FLAGS_burn_cores > 0) return Burn(FLAGS_burn_cores / FLAGS_connections, end);
      Flood(i, end, calls).Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  nlohmann::ordered_json line = BenchLine("flood");
  line.update({{"calls", calls.load()}, {"cpu_seconds", Rounded(ProcessorSeconds(), 2)}});
  PrintLine(line);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, __FILE__, "bench_flood [flags]", cadre::RunAll);
}
