// A probe has two phases, each executed by worker processes (worker/probe) that this command starts
// and waits for:
//
//   machine  `workers` processes time the layers of all plans in PlansToProbe at the same time, so
//            that they compete for cores and memory bandwidth as the workers of a run do. Each runs
//            rank 0 of every plan, without the other ranks.
//   links    only with --peers: one process per host. They meet at the given addresses and measure
//            each pair of hosts; rank 0 merges the hosts' profiles and links.
//
// The first phase takes minutes and depends only on the machine, the programs and the model, so its
// result is cached; the file name is a digest of all of these. The second phase is measured every
// time, because it depends on other traffic in the network. Processes return results in files of a
// temporary folder and report progress in the last line of their logs.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/counted_noun.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/hardware.h"
#include "base/numa.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/process.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/spec_file.h"
#include "cli/table.h"
#include "cli/work_folder.h"
#include "plan/cluster_profile.h"
#include "plan/plan_collectives.h"
#include "plan/search/search.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {
namespace {

constexpr size_t kMaxHosts = 1024;
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kDefaultTimeout = absl::Minutes(30);
// Lines of a failed worker's log that the error quotes.
constexpr int kLogLines = 5;
// Must be changed when the method of measurement changes, so that old results are not used.
constexpr char kCacheVersion[] = "2";

// The number of plans done and of all plans, from the last line of a worker's log; zeros if that
// line does not state them.
std::pair<int, int> PlansDone(const std::string& log) {
  int done = 0;
  int plans = 0;
  for (const std::string& line : LastLines(log, 1)) {
    if (std::sscanf(line.c_str(), "probe: plan %d of %d", &done, &plans) != 2) return {0, 0};
  }
  return {done, plans};
}

// The user's cache folder; "" if there is none.
std::string UserCache() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return absl::StrCat(cache, "/cadre");
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home != 0 ? absl::StrCat(home, "/.cache/cadre") : "";
}

// Phases and cache are described at the top of this file.
//
// One probe: owns its deadline and the reason for which it ended early.
class Probe {
 public:
  // `programs` is the folder of the other programs. `peers` has the host:port of every host by
  // rank, including this one; empty: there are no other hosts. All hosts run the same command, each
  // with its rank; rank 0 writes the profile.
  Probe(const Invocation& in, std::string programs, std::vector<std::string> peers)
      : line_(in.line),
        programs_(std::move(programs)),
        peers_(std::move(peers)),
        numa_nodes_(UsableNumaNodes()),
        workers_(line_.Get<uint32_t>("workers").value_or(std::max<size_t>(1, numa_nodes_.size()))),
        cache_(line_.Has("cache") ? line_.Value<std::string>("cache") : UserCache()),
        progress_(in.console.err, ProgressOnErr(in.global, in.console)),
        deadline_(absl::Now() + in.global.timeout.value_or(kDefaultTimeout)) {}

  absl::StatusOr<v1::ClusterProfile> Run(const v1::RunSpec& spec) {
    CADRE_ASSIGN_OR_RETURN(v1::ClusterProfile machine, ProbeMachine(spec));
    progress_.Finish();
    if (peers_.empty()) return machine;
    return ProbeLinks(machine);
  }
  bool cached() const { return cached_; }
  std::optional<int> interrupt() const { return interrupt_; }

 private:
  // The plans cover all workers of all hosts, since a layer's part depends on their total number.
  absl::StatusOr<v1::ProbeRequest> RequestFor(const v1::RunSpec& spec) const {
    v1::ProbeRequest request;
    *request.mutable_spec() = spec;
    const int hosts = std::max<int>(1, peers_.size());
    const int workers = workers_;
    CADRE_ASSIGN_OR_RETURN(const std::vector<v1::Plan> plans, PlansToProbe(spec, hosts * workers));
    for (const v1::Plan& plan : plans) *request.add_plan() = plan;
    return request;
  }

  // Returns the machine's profile from the cache or, if it has none, measures and caches it.
  absl::StatusOr<v1::ClusterProfile> ProbeMachine(const v1::RunSpec& spec) {
    CADRE_ASSIGN_OR_RETURN(const v1::ProbeRequest request, RequestFor(spec));
    const std::string file = CacheFile(request);
    if (!file.empty() && !line_.On("fresh")) {
      absl::StatusOr<v1::ClusterProfile> cached = ReadClusterProfile(file);
      if (cached.ok()) {
        progress_.Note(absl::StrCat("using cached times of this machine (", file,
                                    "); --fresh measures again"));
        cached_ = true;
        return cached;
      }
      if (!absl::IsNotFound(cached.status())) {
        progress_.Note(absl::StrCat("ignoring the cache: ", cached.status().message()));
      }
    }
    CADRE_ASSIGN_OR_RETURN(v1::ClusterProfile machine, Measure(request));
    if (!file.empty()) {
      const absl::Status status = Cache(machine, file);
      if (!status.ok()) progress_.Note(absl::StrCat("cannot write the cache: ", status.message()));
    }
    return machine;
  }

  // Another process may cache the same measurement at the same time: the last rename wins.
  absl::Status Cache(const v1::ClusterProfile& machine, const std::string& file) const {
    CADRE_RETURN_IF_ERROR(MakeFolder(cache_));
    const std::string own = absl::StrCat(file, ".", getpid());
    CADRE_RETURN_IF_ERROR(WriteFileAtomically(own, PrintClusterProfile(machine)));
    if (rename(own.c_str(), file.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "rename to", file);
  }

  // The name contains a digest of everything that the measurement depends on.
  std::string CacheFile(const v1::ProbeRequest& request) const {
    if (cache_.empty()) return "";
    v1::RunSpec spec;
    *spec.mutable_model() = request.spec().model();
    *spec.mutable_optimizer() = request.spec().optimizer();
    spec.set_batch_per_group(request.spec().batch_per_group());
    spec.set_micro_batches(request.spec().micro_batches());
    std::string text = absl::StrCat(
        kCacheVersion, "\n", ProcessorName(), "\n", UsableCores(), "\n", UsableMemoryBytes(), "\n",
        workers_, "\n", line_.Value<uint32_t>("threads"), "\n", spec.SerializeAsString());
    for (const v1::Plan& plan : request.plan()) absl::StrAppend(&text, plan.SerializeAsString());
    return absl::StrCat(cache_, "/", DigestHex(TextDigest(text)), ".profile");
  }

  absl::StatusOr<v1::ClusterProfile> Measure(const v1::ProbeRequest& request) {
    CADRE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Make(""));
    const std::string file = folder.path() + "/request";
    CADRE_RETURN_IF_ERROR(WriteFileAtomically(file, request.SerializeAsString()));
    progress_.Note(absl::StrCat(Counted(workers_, "worker"), " timing the layers of ",
                                Counted(request.plan_size(), "plan")));
    std::vector<std::vector<std::string>> processes;
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      std::vector<std::string> flags = {absl::StrCat("--probe=", file),
                                        absl::StrCat("--probe-rank=", rank),
                                        absl::StrCat("--probe-ranks=", workers_)};
      const std::optional<int> node =
          NumaNodeOfProcess(numa_nodes_, rank, workers_, line_.Value<uint32_t>("threads"));
      if (node) flags.push_back(absl::StrCat("--numa-node=", *node));
      processes.push_back(std::move(flags));
    }
    return RunWorkers(folder.path(), std::move(processes));
  }

  absl::StatusOr<v1::ClusterProfile> ProbeLinks(const v1::ClusterProfile& machine) {
    CADRE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Make(""));
    CADRE_RETURN_IF_ERROR(
        WriteFileAtomically(folder.path() + "/own", PrintClusterProfile(machine)));
    progress_.Note(absl::StrCat("measuring the links between ", peers_.size(), " hosts"));
    // The user has listed the hosts' addresses and thereby permits traffic without TLS between
    // them.
    return RunWorkers(
        folder.path(),
        {{absl::StrCat("--probe-hosts=", absl::StrJoin(peers_, ",")),
          absl::StrCat("--probe-rank=", line_.Value<uint32_t>("rank")),
          absl::StrCat("--probe-meet-timeout=",
                       absl::ToInt64Seconds(line_.Value<absl::Duration>("meet-timeout"))),
          "--insecure"}});
  }

  // Returns the profile that the process of rank 0 writes; empty on hosts of other ranks.
  absl::StatusOr<v1::ClusterProfile> RunWorkers(const std::string& folder,
                                                std::vector<std::vector<std::string>> arguments) {
    std::vector<Process> workers;
    const auto log = [&](size_t i) { return absl::StrCat(folder, "/log-", i); };
    for (size_t i = 0; i < arguments.size(); ++i) {
      std::vector<std::string>& flags = arguments[i];
      flags.push_back(absl::StrCat("--probe-folder=", folder));
      flags.push_back(absl::StrCat("--threads=", line_.Value<uint32_t>("threads")));
      flags.push_back(
          absl::StrCat("--probe-timeout=", absl::ToInt64Seconds(deadline_ - absl::Now()) + 1));
      CADRE_ASSIGN_OR_RETURN(Process worker, Process::Start({.program = programs_ + "/cadre-worker",
                                                             .arguments = flags,
                                                             .log = log(i)}));
      workers.push_back(std::move(worker));
    }
    size_t running = workers.size();
    while (running > 0) {
      running = 0;
      for (size_t i = 0; i < workers.size(); ++i) {
        const std::optional<Ending> ending = workers[i].Poll();
        if (!ending) ++running;
        if (ending && *ending != Ending{}) return Failed(*ending, i, log(i));
      }
      CADRE_RETURN_IF_ERROR(Pause(log(0)));
    }
    const std::string result = folder + "/profile";
    if (!std::filesystem::exists(result)) return v1::ClusterProfile();
    return ReadClusterProfile(result);
  }

  static absl::Status Failed(const Ending& ending, size_t worker, const std::string& log) {
    return absl::AbortedError(absl::StrCat("worker ", worker, " of the probe failed (",
                                           ending.ToString(), "); the end of its log:\n  ",
                                           absl::StrJoin(LastLines(log, kLogLines), "\n  ")));
  }

  // Waits for kPollInterval. Errors: Cancelled on Ctrl-C; DeadlineExceeded.
  absl::Status Pause(const std::string& log) {
    const auto [done, plans] = PlansDone(log);
    if (plans > 0 && done != drawn_) {
      progress_.Draw(1.0 * done / plans, absl::StrCat(done, " of ", plans, " plans"));
      drawn_ = done;
    }
    if ((interrupt_ = TakeInterrupt(kPollInterval))) return absl::CancelledError("interrupted");
    if (absl::Now() < deadline_) return absl::OkStatus();
    return absl::DeadlineExceededError("the probe exceeded its time limit (see --timeout)");
  }

  const CommandLine& line_;
  const std::string programs_;
  const std::vector<std::string> peers_;
  // Those that this process may use.
  const std::vector<NumaNode> numa_nodes_;
  // Worker processes on this machine.
  const uint32_t workers_;
  // Folder of the cache; empty: no cache.
  const std::string cache_;
  Progress progress_;
  // Number of plans that the progress bar shows.
  int drawn_ = -1;
  const absl::Time deadline_;
  bool cached_ = false;
  std::optional<int> interrupt_;
};

// Bytes per second as text.
std::string Rate(double bytes_per_second) {
  return absl::StrCat(FormatBytes(bytes_per_second), "/s");
}

// The content of a profile that a user may want to check before planning with it: hosts, devices
// with the number of timed parts of layers, and links.
std::string SummaryText(const v1::ClusterProfile& profile) {
  Table hosts({"HOST", "WORKERS", "CORES", "MEMORY EACH", "DEVICE"});
  for (const v1::HostProfile& host : profile.host()) {
    hosts.AddRow({host.name(), absl::StrCat(std::max(1U, host.workers())),
                  absl::StrCat(host.cores()), FormatBytes(host.memory_bytes()), host.device()});
  }
  Table devices({"DEVICE", "GFLOP/S", "UPDATE ns", "COPY ns", "TIMED PARTS"});
  for (const v1::DeviceProfile& device : profile.device()) {
    int parts = 0;
    for (const v1::ModelTimes& times : device.model()) parts += times.time_size();
    devices.AddRow({device.name(), absl::StrFormat("%.1f", device.flops() * 1e-9),
                    absl::StrFormat("%.3f", device.update_seconds() * 1e9),
                    absl::StrFormat("%.3f", device.copy_seconds() * 1e9), absl::StrCat(parts)});
  }
  Table links({"LINK", "ALPHA us", "BANDWIDTH", "PROCESSOR us/MB", "KIND"});
  const auto add = [&](const std::string& name, const v1::LinkProfile& link) {
    links.AddRow({name, absl::StrFormat("%.1f", link.alpha() * 1e6), Rate(1 / link.beta()),
                  absl::StrFormat("%.0f", link.processor() * 1e12), LinkKindText(link.kind())});
  };
  for (const v1::HostProfile& host : profile.host()) {
    if (host.has_inside()) add(absl::StrCat("inside ", host.name()), host.inside());
  }
  for (const v1::HostLink& link : profile.link()) {
    add(absl::StrCat(link.from(), " - ", link.to()), link.link());
  }
  const std::string links_text = links.Text();
  return absl::StrCat(hosts.Text(), "\n", devices.Text(), links_text.empty() ? "" : "\n",
                      links_text);
}

absl::Status Show(const Invocation& in, const v1::ClusterProfile& profile, const Probe& probe) {
  std::string text = PrintClusterProfile(profile);
  Json json = {{"cached", probe.cached()}};
  if (const std::string file = in.line.Get<std::string>("output").value_or(""); !file.empty()) {
    CADRE_RETURN_IF_ERROR(WriteFileAtomically(file, text));
    text = SummaryText(profile);
    json["file"] = file;
  }
  json.update(ToJson(profile));
  Print(json, text, in.global, in.console, JsonLayout::kOneLine);
  return absl::OkStatus();
}

// Checks the list of hosts early: otherwise an error would show only after the layers are timed.
absl::StatusOr<std::vector<std::string>> PeersOf(const CommandLine& line) {
  std::vector<std::string> peers;
  const std::string text = line.Get<std::string>("peers").value_or("");
  if (!text.empty()) peers = absl::StrSplit(text, ',');
  if (peers.size() == 1) {
    return UsageError("--peers must list at least two hosts, separated by commas");
  }
  if (peers.size() > kMaxHosts) {
    return UsageError(
        absl::StrCat("--peers lists ", peers.size(), " hosts, more than ", kMaxHosts));
  }
  for (const std::string& peer : peers) {
    const size_t colon = peer.rfind(':');
    uint32_t port = 0;
    if (colon == 0 || colon == std::string::npos ||
        !absl::SimpleAtoi(peer.substr(colon + 1), &port) || port < 1 || port > 65535) {
      return UsageError(absl::StrCat("--peers: '", peer, "' is not host:port"));
    }
  }
  const auto rank = line.Value<uint32_t>("rank");
  if (rank >= std::max<size_t>(1, peers.size())) {
    return UsageError(
        absl::StrCat("--rank is ", rank, ", but --peers lists ", peers.size(), " hosts"));
  }
  return peers;
}

}  // namespace

absl::StatusOr<int> ProbeCluster(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(SpecFlags flags, SpecFlagsOf(in.line));
  // A probe reads no data.
  flags.here = false;
  CADRE_ASSIGN_OR_RETURN(std::vector<std::string> peers, PeersOf(in.line));
  if (in.line.Value<absl::Duration>("meet-timeout") < absl::Seconds(1)) {
    return UsageError("--meet-timeout must be at least 1 second");
  }
  CADRE_ASSIGN_OR_RETURN(std::string programs, ProgramsFolder());
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(in.line.argument(), flags);
  if (!loaded.ok()) return FailSpec(in.console, loaded.status());
  // From here on an interrupt must end processes and remove folders.
  BlockInterrupts();
  Probe probe(in, std::move(programs), std::move(peers));
  const absl::StatusOr<v1::ClusterProfile> profile = probe.Run(loaded->spec);
  if (probe.interrupt()) return 128 + *probe.interrupt();
  if (!profile.ok()) return Fail(in.console, profile.status());
  // On hosts of other ranks the profile is empty: rank 0 has it.
  if (profile->host_size() > 0) CADRE_RETURN_IF_ERROR(Show(in, *profile, probe));
  return kExitOk;
}

}  // namespace cadre
