// Speed of one aggregator: groups stage their contributions, the aggregator applies the round, and
// a rank pulls the version. A shard host behind a real gRPC server on loopback, in this process.
//
//   bench_aggregator --data-dir=/var/tmp --groups=8 --megabytes=256
//
// Prints one JSON line for each measurement: first what the machine can do at most, then, for every
// kind of round, how fast contributions are received, applied and pulled. Values count as fp32
// whatever their code; `bytes` are those that were sent. Speeds are those of the median round.
//
//   limits    a copy of memory; gRPC, with the same messages to a server that drops them; the disk,
//             written and synced in the same folder
//   receive   until all groups have the acknowledgement; `share_of_limit` compares the bytes with
//             the slower one of gRPC and disk
//   apply     from the order to its answer, when the version is durable; `per_core` divides by the
//             processor time of this process, `best_per_core` by that of the round with the least,
//             which hardly depends on what else the machine computes. Every second round is not
//             screened (run.proto, Screen); `screen_ratio` is the least processor time of a round
//             that is over that of one that is not
//   pull      one rank, the whole version
//   start     of another process on the folder, with one version of each of --groups runs: until it
//             could listen, when it has read the heads of the files, and until all are verified
#include <gflags/gflags.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/counters.h"
#include "base/file_system.h"
#include "base/hardware.h"
#include "base/median.h"
#include "base/rpc/daemon.h"
#include "base/secret_key.h"
#include "base/status.h"
#include "bench/harness.h"
#include "model/coding.h"
#include "model/frame.h"
#include "model/parameter_index.h"
#include "server/client/rounds_client.h"
#include "server/service.h"
#include "server/shard_host.h"

DEFINE_string(data_dir, "", "Folder for the files; a new one inside it is removed at the end.");
DEFINE_int32(groups, 8, "Groups of a round.");
DEFINE_int32(megabytes, 256, "Values of a contribution, in MiB of fp32.");
DEFINE_int32(streams, 2, "Groups that stage at the same time.");
DEFINE_int32(threads, 0, "Threads that compute a version; 0: one for each core.");
DEFINE_int32(rounds, 3, "Rounds of each kind, with and without a screen.");

namespace cadre {
namespace {

constexpr double kGiga = 1e9;
constexpr int kModelInputs = 8192;
constexpr int64_t kDiskWrite = 1 << 20;

struct Kind {
  const char* name;
  bool outer = false;
  v1::Codec codec = v1::CODEC_FP32;
};

constexpr Kind kKinds[] = {{"mean"},
                           {"outer", true},
                           {"int8", false, v1::CODEC_INT8},
                           {"e3m0+outer", true, v1::CODEC_E3M0}};

int Threads() { return FLAGS_threads > 0 ? FLAGS_threads : UsableCores(); }

// The statuses and the seconds of a piece of work.
absl::StatusOr<double> Time(const std::function<absl::Status()>& work) {
  absl::Status status;
  const double seconds = SecondsOf([&] { status = work(); });
  CADRE_RETURN_IF_ERROR(status);
  return seconds;
}

// Accepts contributions as an aggregator does, and drops them.
class DroppingRounds final : public v1::Rounds::Service {
 public:
  grpc::Status Stage(grpc::ServerContext*,
                     grpc::ServerReaderWriter<v1::StageReply, v1::StageRequest>* stream) override {
    v1::StageRequest request;
    v1::StageReply reply;
    stream->Read(&request);
    reply.mutable_resume();
    stream->Write(reply);
    uint64_t elements = 0;
    while (stream->Read(&request)) elements += request.chunk().data().size() / sizeof(float);
    reply.mutable_staged()->set_elements(elements);
    stream->Write(reply);
    return grpc::Status::OK;
  }
};

v1::RunSpec SpecOf(const Kind& kind) {
  v1::RunSpec spec;
  spec.set_seed(1);
  spec.mutable_cluster()->set_groups(FLAGS_groups);
  spec.mutable_cluster()->set_ranks_per_group(1);
  v1::Model& model = *spec.mutable_model();
  model.mutable_input()->set_channels(kModelInputs);
  model.mutable_input()->set_height(1);
  model.mutable_input()->set_width(1);
  v1::Layer& layer = *model.add_layer();
  layer.set_name("fc");
  layer.mutable_fully_connected()->set_out_features(
      std::max<int64_t>(1, (int64_t{FLAGS_megabytes} << 18) / (kModelInputs + 1)));
  v1::Layer& loss = *model.add_layer();
  loss.set_name("loss");
  loss.mutable_softmax_cross_entropy();
  if (kind.codec != v1::CODEC_FP32) {
    spec.mutable_averaging()->mutable_up()->set_codec(kind.codec);
    spec.mutable_averaging()->mutable_down()->set_codec(kind.codec);
  }
  return spec;
}

// What the groups contribute to every round: values, or frames, of different noise.
class Contributions {
 public:
  explicit Contributions(const ParameterIndex& index) : size_(index.size()), units_(index) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    // A group has the values from another one on.
    noise_.resize(size_ + FLAGS_groups * kShift);
    for (int64_t i = 0; i < std::min(kNoise, std::ssize(noise_)); ++i) noise_[i] = normal(random);
    for (int64_t i = kNoise; i < std::ssize(noise_); ++i) noise_[i] = noise_[i - kNoise];
  }

  int64_t size() const { return size_; }
  // Encodes them if the kind has a codec.
  absl::Status Prepare(const Kind& kind) {
    frames_.clear();
    if (kind.codec == v1::CODEC_FP32) return absl::OkStatus();
    v1::Coding coding;
    coding.set_codec(kind.codec);
    for (int group = 0; group < FLAGS_groups; ++group) {
      std::string frame;
      CADRE_RETURN_IF_ERROR(EncodeFrame(units_.all(), CodecOf(coding), Values(group), &frame));
      std::vector<float>& elements = frames_.emplace_back(frame.size() / sizeof(float));
      std::memcpy(elements.data(), frame.data(), frame.size());
    }
    return absl::OkStatus();
  }
  std::span<const float> Elements(int group) const {
    return frames_.empty() ? Values(group) : std::span<const float>(frames_[group]);
  }
  int64_t Bytes() const {
    int64_t elements = 0;
    for (int group = 0; group < FLAGS_groups; ++group) elements += std::ssize(Elements(group));
    return elements * int64_t{sizeof(float)};
  }

 private:
  static constexpr int64_t kShift = 4099;
  static constexpr int64_t kNoise = 1 << 22;

  std::span<const float> Values(int group) const {
    return std::span(noise_).subspan(group * kShift, size_);
  }

  const int64_t size_;
  const ExchangeUnits units_;
  std::vector<float> noise_;
  std::vector<std::vector<float>> frames_;
};

class Rig {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> Start(const std::string& folder) {
    std::unique_ptr<Rig> rig(new Rig(folder));
    CADRE_ASSIGN_OR_RETURN(rig->host_, ShardHost::Open(rig->HostOptions()));
    rig->service_ =
        std::make_unique<RoundsService>(RoundsServiceOptions(), *rig->host_, rig->counters_);
    CADRE_ASSIGN_OR_RETURN(rig->daemon_, Daemon::Start({}, {rig->service_.get()}));
    CADRE_ASSIGN_OR_RETURN(rig->dropping_daemon_, Daemon::Start({}, {&rig->dropping_}));
    return rig;
  }
  ~Rig() {
    if (daemon_ != nullptr) daemon_->Drain(absl::ZeroDuration());
    if (dropping_daemon_ != nullptr) dropping_daemon_->Drain(absl::ZeroDuration());
  }

  // Measures and prints all kinds of rounds.
  absl::Status Run() {
    const v1::RunSpec spec = SpecOf(kKinds[0]);
    CADRE_ASSIGN_OR_RETURN(const ParameterIndex index, ParameterIndex::FromModel(spec.model()));
    Contributions contributions(index);
    CADRE_RETURN_IF_ERROR(MeasureLimits(contributions));
    for (const Kind& kind : kKinds) {
      CADRE_RETURN_IF_ERROR(contributions.Prepare(kind));
      CADRE_RETURN_IF_ERROR(MeasureRounds(kind, contributions));
    }
    return MeasureStart();
  }

 private:
  explicit Rig(const std::string& folder) : folder_(folder) {}

  static void Print(const char* measurement, const nlohmann::ordered_json& fields) {
    nlohmann::ordered_json line = BenchLine("aggregator");
    line["measurement"] = measurement;
    line.update(fields);
    PrintLine(line);
  }

  absl::Status MeasureLimits(const Contributions& contributions) {
    const double bytes = static_cast<double>(contributions.size()) * sizeof(float);
    const std::span<const float> values = contributions.Elements(0);
    std::vector<float> copy(values.size());
    const Timing copied = Measure([&] { std::ranges::copy(values, copy.begin()); });
    std::vector<double> grpc;
    std::vector<double> disk;
    for (int round = 0; round < FLAGS_rounds; ++round) {
      CADRE_ASSIGN_OR_RETURN(const double sent,
                             Time([&] { return StageAll(*dropping_daemon_, {}, contributions); }));
      grpc.push_back(static_cast<double>(contributions.Bytes()) / sent / kGiga);
      CADRE_ASSIGN_OR_RETURN(const double written, Time([&] { return WriteFile(values); }));
      disk.push_back(bytes / written / kGiga);
    }
    const double grpc_speed = Median(std::move(grpc));
    const double disk_speed = Median(std::move(disk));
    limit_ = std::min(grpc_speed, disk_speed);
    Print("limits", {{"megabytes", FLAGS_megabytes},
                     {"streams", FLAGS_streams},
                     {"copy_gb_per_second", Rounded(bytes / copied.seconds / kGiga, 2)},
                     {"grpc_gb_per_second", Rounded(grpc_speed, 3)},
                     {"disk_gb_per_second", Rounded(disk_speed, 3)}});
    return absl::OkStatus();
  }

  ShardHost::Options HostOptions() {
    return {.data_dir = absl::StrCat(folder_, "/shards"),
            .name = "bench",
            .counters = &counters_,
            .threads = Threads(),
            .verify = false};
  }

  absl::Status MeasureStart() {
    for (int i = 0; i < FLAGS_groups; ++i) {
      v1::OpenRun open;
      open.set_run(absl::StrCat("start-", i));
      open.set_lineage("bench");
      open.set_shards(1);
      *open.mutable_spec() = SpecOf(kKinds[0]);
      CADRE_ASSIGN_OR_RETURN(const v1::RunOpened opened, host_->OpenRun(open));
      if (!opened.error().empty()) return absl::InternalError(opened.error());
    }
    daemon_->Drain(absl::ZeroDuration());
    daemon_.reset();
    service_.reset();
    host_.reset();
    uint64_t bytes = 0;
    CADRE_ASSIGN_OR_RETURN(const double found, Time([&]() -> absl::Status {
                             CADRE_ASSIGN_OR_RETURN(host_, ShardHost::Open(HostOptions()));
                             return absl::OkStatus();
                           }));
    CADRE_ASSIGN_OR_RETURN(const double verified, Time([&]() -> absl::Status {
                             for (const auto& [run, progress] : host_->Unverified()) {
                               bytes += progress.bytes;
                               CADRE_RETURN_IF_ERROR(host_->Verify(run));
                             }
                             return absl::OkStatus();
                           }));
    Print("start", {{"bytes", bytes},
                    {"listens_seconds", Rounded(found, 4)},
                    {"verified_seconds", Rounded(found + verified, 4)}});
    return absl::OkStatus();
  }

  absl::Status WriteFile(std::span<const float> values) {
    const std::string path = absl::StrCat(folder_, "/disk");
    CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Create(path));
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                  values.size_bytes());
    for (int64_t at = 0; at < std::ssize(bytes); at += kDiskWrite) {
      CADRE_RETURN_IF_ERROR(file->WriteAt(at, bytes.substr(at, kDiskWrite), ""));
    }
    CADRE_RETURN_IF_ERROR(file->Sync());
    return PosixFileSystem().RemoveFile(path);
  }

  // The groups stage their contributions; `header`: without what differs between groups.
  absl::Status StageAll(const Daemon& daemon, const v1::ContributionHeader& header,
                        const Contributions& contributions) {
    std::vector<absl::Status> ended(FLAGS_streams);
    std::vector<std::thread> threads;
    for (int stream = 0; stream < FLAGS_streams; ++stream) {
      threads.emplace_back([&, stream] {
        RoundsClient client([&] { return daemon.address(); });
        Traffic traffic;
        for (int group = stream; group < FLAGS_groups; group += FLAGS_streams) {
          const std::span<const float> elements = contributions.Elements(group);
          v1::ContributionHeader own = header;
          own.set_group(group);
          if (own.ranges().empty()) AddRange(0, contributions.size(), *own.mutable_ranges());
          ended[stream].Update(client.Stage(own, elements, &traffic));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : ended) CADRE_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  static void AddRange(uint32_t tensor, int64_t size,
                       google::protobuf::RepeatedPtrField<v1::Range>& ranges) {
    v1::Range& range = *ranges.Add();
    range.set_tensor(tensor);
    range.set_end(size);
  }

  absl::Status MeasureRounds(const Kind& kind, const Contributions& contributions) {
    v1::OpenRun open;
    open.set_run(absl::StrCat("bench-", &kind - kKinds));
    open.set_lineage("bench");
    open.set_shards(1);
    *open.mutable_spec() = SpecOf(kind);
    for (int group = 0; group < FLAGS_groups; ++group) {
      (*open.mutable_generations())[group] = 1;
      (*open.mutable_keys())[group] = KeyBytes({});
    }
    CADRE_ASSIGN_OR_RETURN(const v1::RunOpened opened, host_->OpenRun(open));
    if (!opened.error().empty()) return absl::InternalError(opened.error());

    const int64_t weights = contributions.size() - contributions.size() / (kModelInputs + 1);
    v1::PullRequest pull;
    pull.set_run(open.run());
    pull.set_lineage(open.lineage());
    pull.set_generation(1);
    AddRange(0, weights, *pull.mutable_ranges());
    AddRange(1, contributions.size() - weights, *pull.mutable_ranges());
    v1::ContributionHeader header;
    header.set_run(open.run());
    header.set_lineage(open.lineage());
    header.set_generation(1);
    header.set_samples(1);
    header.set_codec(kind.codec);
    *header.mutable_ranges() = pull.ranges();

    std::vector<double> received;
    std::vector<double> applied;
    std::vector<double> processor;
    std::vector<double> unscreened;
    std::vector<double> pulled;
    std::vector<float> version(contributions.size());
    for (int round = 1; round <= 2 * FLAGS_rounds; ++round) {
      const bool screened = round % 2 == 1;
      header.set_round(round);
      header.set_base_version(round - 1);
      CADRE_ASSIGN_OR_RETURN(received.emplace_back(),
                             Time([&] { return StageAll(*daemon_, header, contributions); }));
      const double before = ProcessorSeconds();
      CADRE_ASSIGN_OR_RETURN(const double seconds,
                             Time([&] { return Apply(open, kind, round, screened); }));
      if (screened) applied.push_back(seconds);
      (screened ? processor : unscreened).push_back(ProcessorSeconds() - before);
      pull.set_version(round);
      CADRE_ASSIGN_OR_RETURN(pulled.emplace_back(), Time([&] {
                               RoundsClient client([&] { return daemon_->address(); });
                               Traffic traffic;
                               return client.Pull(pull, version, &traffic);
                             }));
    }
    PrintRounds(kind, contributions, Median(received), Median(applied), processor, unscreened,
                Median(pulled));
    v1::DeleteRun remove;
    remove.set_run(open.run());
    remove.set_lineage(open.lineage());
    return host_->DeleteRun(remove);
  }

  absl::Status Apply(const v1::OpenRun& open, const Kind& kind, int round, bool screened) {
    v1::Apply order;
    order.set_attempt(screened ? 1 : 0);
    order.set_run(open.run());
    order.set_round(round);
    for (int group = 0; group < FLAGS_groups; ++group) {
      v1::Participant& participant = *order.add_participants();
      participant.set_group(group);
      participant.set_generation(1);
      participant.set_ranks(1);
      participant.set_samples(1);
    }
    if (kind.outer) {
      v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
      nesterov.set_learning_rate(0.7F);
      nesterov.set_momentum(0.9F);
      nesterov.set_every_rounds(1);
    }
    if (const auto coding = CodingOf(open.spec().averaging().up())) {
      *order.mutable_up() = *coding;
      *order.mutable_down() = *coding;
    }
    CADRE_ASSIGN_OR_RETURN(const v1::Applied answer, host_->Apply(order));
    if (!answer.error().empty()) return absl::InternalError(answer.error());
    // Removes the contributions, as an order that is not screened does.
    v1::Publish publish;
    publish.set_run(open.run());
    publish.set_round(round);
    host_->Publish(publish);
    return answer.missing().empty() ? absl::OkStatus()
                                    : absl::InternalError("contributions are missing");
  }

  void PrintRounds(const Kind& kind, const Contributions& contributions, double received,
                   double applied, const std::vector<double>& processor,
                   const std::vector<double>& unscreened, double pulled) const {
    const auto bytes = static_cast<double>(contributions.Bytes());
    const double version = static_cast<double>(contributions.size()) * sizeof(float);
    const double values = version * FLAGS_groups;
    Print("receive", {{"round", kind.name},
                      {"groups", FLAGS_groups},
                      {"megabytes", FLAGS_megabytes},
                      {"streams", FLAGS_streams},
                      {"bytes", contributions.Bytes()},
                      {"seconds", Rounded(received, 4)},
                      {"gb_per_second", Rounded(bytes / received / kGiga, 3)},
                      {"share_of_limit", Rounded(bytes / received / kGiga / limit_, 3)}});
    const double best = *std::ranges::min_element(processor);
    Print("apply", {{"round", kind.name},
                    {"groups", FLAGS_groups},
                    {"megabytes", FLAGS_megabytes},
                    {"threads", Threads()},
                    {"seconds", Rounded(applied, 4)},
                    {"processor_seconds", Rounded(Median(processor), 4)},
                    {"gb_per_second", Rounded(values / applied / kGiga, 3)},
                    {"per_core_gb_per_second", Rounded(values / Median(processor) / kGiga, 3)},
                    {"best_per_core_gb_per_second", Rounded(values / best / kGiga, 3)},
                    {"screen_ratio", Rounded(best / *std::ranges::min_element(unscreened), 3)}});
    Print("pull", {{"round", kind.name},
                   {"megabytes", FLAGS_megabytes},
                   {"seconds", Rounded(pulled, 4)},
                   {"gb_per_second", Rounded(version / pulled / kGiga, 3)}});
  }

  const std::string folder_;
  Counters counters_;
  DroppingRounds dropping_;
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<RoundsService> service_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Daemon> dropping_daemon_;
  // Bytes per second that limit receiving.
  double limit_ = 0;
};

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--groups", FLAGS_groups},
                                         {"--megabytes", FLAGS_megabytes},
                                         {"--streams", FLAGS_streams},
                                         {"--rounds", FLAGS_rounds}}));
  if (FLAGS_data_dir.empty()) return absl::InvalidArgumentError("--data-dir is required");
  const std::string folder = absl::StrCat(FLAGS_data_dir, "/bench_aggregator.", getpid());
  CADRE_RETURN_IF_ERROR(PosixFileSystem().MakeFolder(folder));
  const absl::Cleanup remove = [&] { PosixFileSystem().RemoveFolder(folder).IgnoreError(); };
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Rig> rig, Rig::Start(folder));
  return rig->Run();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, __FILE__, "bench_aggregator --data-dir=DIR [flags]",
                          cadre::Run);
}
