#include "tests/cluster/cluster.h"

#include <google/protobuf/text_format.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/rpc/certificate_folder.h"
#include "base/status.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/sqlite_store.h"
#include "gtest/gtest.h"
#include "tests/base/expect.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
constexpr absl::Duration kStartLimit = absl::Seconds(20);

// The parts of a status that an error contains.
std::string Brief(const v1::StatusReply& status) {
  std::string out;
  for (const v1::RunStatus& run : status.runs()) {
    absl::StrAppend(&out, "\n  run ", run.ShortDebugString());
  }
  for (v1::GroupStatus group : status.groups()) {
    group.clear_plan();
    for (v1::GroupMember& member : *group.mutable_members()) member.clear_held();
    absl::StrAppend(&out, "\n  group ", group.ShortDebugString());
  }
  absl::StrAppend(&out, "\n  ", status.workers_size(), " workers, ", status.aggregators_size(),
                  " aggregators");
  for (const auto& [name, value] : status.counters()) {
    absl::StrAppend(&out, "\n  ", name, " = ", value);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<SqliteStore>> OpenStore(const std::string& path) {
  SqliteStore::Options options;
  options.path = path;
  return SqliteStore::Open(options);
}

}  // namespace

// The authority is that of all programs, and `cadre` finds the credentials of an operator in the
// environment.
Cluster::Cluster(Options options) : options_(options), programs_(CADRE_PROGRAMS) {
  EXPECT_THAT(WriteAuthority(TlsOf("authority"), {}), IsOk());
  EXPECT_THAT(Issue("operator", Role::kOperator, absl::Now() + absl::Hours(1)), IsOk());
  setenv("CADRE_TLS", TlsOf("operator").c_str(), /*overwrite=*/1);
}

absl::Status Cluster::Issue(const std::string& name, Role role, absl::Time end) {
  return WriteCredentials(TlsOf("authority"),
                          {.role = role,
                           .name = name,
                           .dns = {"localhost"},
                           .ips = {"127.0.0.1"},
                           .validity = {.end = end},
                           .replace = true},
                          TlsOf(name));
}

Cluster::~Cluster() {
  if (!::testing::Test::HasFailure()) return;
  const char* const keep = getenv("CADRE_KEEP_LOGS");
  for (const auto& [name, process] : processes_) {
    if (keep != nullptr) {
      std::error_code ignored;
      std::filesystem::copy_file(LogOf(name), absl::StrCat(keep, "/", name, ".log"),
                                 std::filesystem::copy_options::overwrite_existing, ignored);
    }
    std::cerr << "--- last lines of the log of " << name << "\n"
              << absl::StrJoin(LastLines(LogOf(name), 25), "\n") << std::endl;
  }
}

absl::Status Cluster::Start(const std::string& name, const std::string& program, Role role,
                            std::vector<std::string> arguments,
                            std::vector<std::string> environment) {
  if (!std::filesystem::exists(TlsOf(name))) {
    CADRE_RETURN_IF_ERROR(Issue(name, role, absl::Now() + absl::Hours(1)));
  }
  arguments.push_back("--tls=" + TlsOf(name));
  if (role != Role::kWorker) {
    arguments.push_back(
        absl::StrCat("--connection-age=", absl::ToInt64Seconds(options_.connection_age)));
  }
  arguments.push_back("--logtostderr");
  CADRE_ASSIGN_OR_RETURN(Process process,
                         Process::Start({.program = absl::StrCat(programs_, "/", program),
                                         .arguments = arguments,
                                         .environment = std::move(environment),
                                         .log = LogOf(name)}));
  processes_.erase(name);
  processes_.emplace(name, std::move(process));
  return absl::OkStatus();
}

absl::Status Cluster::StartCoordinator() {
  const std::string listen = coordinator_.empty() ? "127.0.0.1:0" : coordinator_;
  CADRE_ASSIGN_OR_RETURN(coordinator_, StartCoordinatorAt("coordinator", listen, store()));
  return MakeClient();
}

absl::Status Cluster::StartCoordinator(const std::string& name, const std::string& store) {
  std::string& address = addresses_[name];
  const std::string listen = address.empty() ? "127.0.0.1:0" : address;
  CADRE_ASSIGN_OR_RETURN(address, StartCoordinatorAt(name, listen, store));
  std::vector<std::string> all;
  for (const auto& [other, its_address] : addresses_) all.push_back(its_address);
  coordinator_ = absl::StrJoin(all, ",");
  return MakeClient();
}

absl::Status Cluster::MakeClient() {
  CoordinatorClient::Options client;
  client.coordinator = coordinator_;
  CADRE_ASSIGN_OR_RETURN(client.credentials, Credentials::FromFolder(TlsOf("operator")));
  client.dial_timeout = absl::Seconds(1);
  client_ = std::make_unique<CoordinatorClient>(client);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Cluster::StartCoordinatorAt(const std::string& name,
                                                        const std::string& listen,
                                                        const std::string& store) {
  const std::string port_file = folder_ / "port";
  std::filesystem::remove(port_file);
  std::vector<std::string> arguments = {
      absl::StrCat("--listen=", listen), absl::StrCat("--store=", store),
      absl::StrCat("--port-file=", port_file), "--keep-commits=1000000",
      absl::StrCat("--lease-ms=", absl::ToInt64Milliseconds(options_.lease))};
  // Earlier builds do not have the flag.
  if (options_.aggregator_patience != Options().aggregator_patience) {
    arguments.push_back(
        absl::StrCat("--aggregator-patience=", absl::FormatDuration(options_.aggregator_patience)));
  }
  CADRE_RETURN_IF_ERROR(Start(name, "cadre-coordinator", Role::kCoordinator, std::move(arguments)));
  const absl::Time deadline = absl::Now() + kStartLimit;
  while (absl::Now() < deadline) {
    if (const absl::StatusOr<std::string> port = ReadFile(port_file); port.ok()) {
      return absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(*port));
    }
    if (const auto ending = process(name).Poll()) {
      return absl::InternalError(absl::StrCat("the coordinator ended: ", ending->ToString(), ": ",
                                              absl::StrJoin(LastLines(LogOf(name), 3), "\n")));
    }
    absl::SleepFor(kPollInterval);
  }
  return absl::DeadlineExceededError("the coordinator does not listen in time");
}

absl::Status Cluster::StartAggregator(const std::string& name,
                                      std::vector<std::string> environment) {
  const std::string data = folder_ / name;
  CADRE_RETURN_IF_ERROR(MakeFolder(data));
  return Start(name, "cadre-aggregator", Role::kAggregator,
               {"--listen=127.0.0.1:0", absl::StrCat("--coordinator=", coordinator_),
                absl::StrCat("--data-dir=", data), absl::StrCat("--name=", name),
                absl::StrCat("--port-file=", data, "/port"), "--checkpoint-root=/",
                options_.archive ? "--archive" : "--noarchive"},
               std::move(environment));
}

absl::Status Cluster::StartWorker(const std::string& name) {
  return Start(
      name, "cadre-worker", Role::kWorker,
      {"--listen=127.0.0.1:0", absl::StrCat("--coordinator=", coordinator_),
       absl::StrCat("--name=", name),
       absl::StrCat("--exchange-silence=", absl::ToInt64Seconds(options_.exchange_silence)),
       "--threads=1", "--data-root=/", "--checkpoint-root=/"});
}

absl::Status Cluster::StartAll(int aggregators, int workers) {
  CADRE_RETURN_IF_ERROR(StartCoordinator());
  for (int i = 0; i < aggregators; ++i) {
    CADRE_RETURN_IF_ERROR(StartAggregator(absl::StrCat("aggregator-", i)));
  }
  for (int i = 0; i < workers; ++i) {
    CADRE_RETURN_IF_ERROR(StartWorker(absl::StrCat("worker-", i)));
  }
  return Await(
             [&](const v1::StatusReply& status) {
               return status.aggregators_size() == aggregators && status.workers_size() == workers;
             },
             kStartLimit, "all members have joined")
      .status();
}

absl::StatusOr<std::string> Cluster::StartRun(const v1::RunSpec& spec) {
  const v1::Cluster& members = spec.cluster();
  CADRE_RETURN_IF_ERROR(
      StartAll(members.aggregators(), members.groups() * members.ranks_per_group()));
  return client_->Submit(spec);
}

void Cluster::Kill(const std::string& name) { process(name).Kill(); }

void Cluster::Signal(const std::string& name, int number) { process(name).Signal(number); }

absl::StatusOr<v1::StatusReply> Cluster::Await(const Predicate& predicate, absl::Duration limit,
                                               const std::string& what) {
  const absl::Time deadline = absl::Now() + limit;
  absl::StatusOr<v1::StatusReply> status = absl::UnavailableError("no status yet");
  while (true) {
    status = client_->Status();
    if (status.ok() && predicate(*status)) return status;
    if (absl::Now() >= deadline) break;
    absl::SleepFor(kPollInterval);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "not within ", absl::FormatDuration(limit), ": ", what,
      "; newest status: ", status.ok() ? Brief(*status) : std::string(status.status().message())));
}

absl::StatusOr<v1::StatusReply> Cluster::AwaitEnd(const std::string& run, absl::Duration limit) {
  const auto ended = [&run](const v1::StatusReply& status) {
    const v1::RunStatus* found = FindRun(status, run);
    return found != nullptr &&
           (found->state() == v1::RUN_STATE_DONE || found->state() == v1::RUN_STATE_FAILED ||
            found->state() == v1::RUN_STATE_STOPPED || found->state() == v1::RUN_STATE_PARKED);
  };
  return Await(ended, limit, absl::StrCat("run ", run, " has ended"));
}

absl::StatusOr<v1::StatusReply> Cluster::AwaitDone(const std::string& run, absl::Duration limit) {
  CADRE_ASSIGN_OR_RETURN(v1::StatusReply status, AwaitEnd(run, limit));
  if (FindRun(status, run)->state() == v1::RUN_STATE_DONE) return status;
  return absl::AbortedError(absl::StrCat("the run is not done:", Brief(status)));
}

absl::StatusOr<std::map<uint32_t, v1::CommitRecord>> Cluster::Commits(
    const std::string& run) const {
  CADRE_ASSIGN_OR_RETURN(const auto store, OpenStore(this->store()));
  CADRE_ASSIGN_OR_RETURN(const auto records, store->Scan(CommitsPrefix(run)));
  std::map<uint32_t, v1::CommitRecord> commits;
  for (const auto& [key, bytes] : records) {
    v1::CommitRecord commit;
    if (!commit.ParseFromString(bytes)) return absl::DataLossError(key);
    commits[commit.round()] = commit;
  }
  return commits;
}

absl::StatusOr<v1::MetaRecord> Cluster::Meta() const {
  CADRE_ASSIGN_OR_RETURN(const auto store, OpenStore(this->store()));
  CADRE_ASSIGN_OR_RETURN(const auto bytes, store->Get(kMetaKey));
  v1::MetaRecord meta;
  if (!bytes.has_value() || !meta.ParseFromString(*bytes)) return absl::DataLossError("no meta");
  return meta;
}

std::string ProgramPath(const std::string& name) { return absl::StrCat(CADRE_PROGRAMS, "/", name); }

absl::StatusOr<Finished> RunProgram(const std::string& name, std::vector<std::string> arguments,
                                    absl::Duration limit) {
  const TemporaryFolder folder;
  const std::string log = folder / "out";
  CADRE_ASSIGN_OR_RETURN(
      Process process,
      Process::Start({.program = ProgramPath(name), .arguments = arguments, .log = log}));
  const auto ending = process.WaitUntil(absl::Now() + limit);
  Finished finished;
  finished.lines = LastLines(log, 1000);
  if (!ending.has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat(name, " does not end: ", absl::StrJoin(finished.lines, "\n")));
  }
  finished.exit_code = ending->signalled ? 128 + ending->code : ending->code;
  return finished;
}

std::string RunCadre(const std::vector<std::string>& arguments, int exit_code) {
  const absl::StatusOr<Finished> finished = RunProgram("cadre", arguments, absl::Seconds(240));
  EXPECT_TRUE(finished.ok()) << finished.status();
  if (!finished.ok()) return "";
  const std::string lines = absl::StrJoin(finished->lines, "\n");
  EXPECT_EQ(finished->exit_code, exit_code) << lines;
  return lines;
}

const v1::RunStatus* FindRun(const v1::StatusReply& status, const std::string& run) {
  for (const v1::RunStatus& found : status.runs()) {
    if (found.run() == run) return &found;
  }
  return nullptr;
}

const v1::GroupStatus* FindGroup(const v1::StatusReply& status, const std::string& run,
                                 uint32_t group) {
  for (const v1::GroupStatus& found : status.groups()) {
    if (found.run() == run && found.group() == group) return &found;
  }
  return nullptr;
}

uint64_t Counter(const v1::StatusReply& status, const std::string& name) {
  const auto found = status.counters().find(name);
  return found == status.counters().end() ? 0 : found->second;
}

v1::RunSpec SmallSpec(const SmallRun& run) {
  v1::RunSpec spec = Parse<v1::RunSpec>(R"(
    name: "small"
    model {
      input { channels: 1 height: 8 width: 8 }
      layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 } }
      layer { name: "relu1" relu {} }
      layer { name: "pool1" max_pool { kernel: 2 } }
      layer { name: "fc1" fully_connected {} }
      layer { name: "relu2" relu {} }
      layer { name: "fc2" fully_connected { out_features: 4 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    data { synthetic { train_samples: 2048 test_samples: 512 classes: 4 noise: 1.5 } }
    batch_per_group: 32
    optimizer { sgd { momentum: 0.9 } }
    schedule { base_rate: 0.02 }
    seed: 7)");
  spec.mutable_model()->mutable_layer(3)->mutable_fully_connected()->set_out_features(run.hidden);
  spec.mutable_averaging()->set_every_steps(run.every_steps);
  v1::Cluster* cluster = spec.mutable_cluster();
  cluster->set_groups(run.groups);
  cluster->set_ranks_per_group(run.ranks);
  cluster->set_min_ranks_per_group(run.min_ranks);
  cluster->set_rejoin_wait_ms(run.rejoin_wait_ms);
  cluster->set_aggregators(run.aggregators);
  spec.mutable_stop()->set_epochs(run.epochs);
  spec.mutable_stop()->set_steps(run.steps);
  // Runs with many steps have fewer evaluations, which would otherwise follow within milliseconds.
  spec.mutable_evaluation()->set_every_epochs(run.epochs > 0 ? 1 : 50);
  return spec;
}

uint64_t SmallParameters(const SmallRun& run) {
  const uint64_t convolution = 4 * 9 + 4;
  const uint64_t features = 4 * 4 * 4;
  return convolution + features * run.hidden + run.hidden + uint64_t{4} * run.hidden + 4;
}

std::string SpecText(const v1::RunSpec& spec) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(spec, &text);
  return text;
}

}  // namespace cadre::testing
