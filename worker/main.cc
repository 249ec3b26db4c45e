// cadre-worker: one compute device that trains as a member of a group.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/daemon/program.h"
#include "base/file_limit.h"
#include "base/hardware.h"
#include "base/numa.h"
#include "base/peer_text.h"
#include "base/program_flags.h"
#include "base/rooted_files.h"
#include "base/rpc/address_list.h"
#include "base/rpc/daemon.h"
#include "base/rpc/notify.h"
#include "base/status.h"
#include "comm/transport/tcp_link.h"
#include "device/gpu_environment.h"
#include "kernels/cpu/openmp_settings.h"
#include "member/default_name.h"
#include "worker/compute.h"
#include "worker/probe_program.h"
#include "worker/worker.h"

DEFINE_string(
    coordinator, "127.0.0.1:7000",
    "host:port of the coordinator, which provides all other configuration; or of several, "
    "separated by commas, of which one leads");
DEFINE_string(listen, "127.0.0.1:0",
              "address at which the other ranks of a group connect; port 0 selects a free port");
DEFINE_string(
    advertise, "",
    "host:port that is sent to the other ranks; default: --listen with the selected port");
DEFINE_string(name, "",
              "display name of [a-z0-9._-], unique on its host, under which failures are recorded; "
              "default: the name in the certificate, the host name, and the port of --listen or, "
              "if that is 0, the process id");
DEFINE_int32(
    threads, 1,
    "number of threads that compute, and that code what is exchanged between groups; 0: one "
    "for each core that it may use");
DEFINE_int32(
    numa_node, -1,
    "number of the NUMA node (see 'lscpu') whose cores and memory the worker uses; -1: all "
    "cores that the process may use");
DEFINE_int32(loader_threads, 0,
             "number of threads that read and decode samples; 0: as many as the compute threads "
             "leave cores, at least 1 and at most 16");
DEFINE_string(
    device, "cpu",
    "device to compute on: cpu, cuda (the first GPU) or cuda:N; several processes can share "
    "one GPU if each has its own NCCL_HOSTID in its environment");
DEFINE_double(
    device_memory_gb, 0,
    "maximum memory of a GPU to use, in GiB; 0: all that is free at the start except for a "
    "reserve of 3 GiB or a fifth; processes that share a GPU should each have a limit");
DEFINE_string(data_root, "",
              "folder beneath which runs may read data; may be repeated; default: none, so that "
              "only runs with synthetic data succeed");
DEFINE_string(
    checkpoint_root, "",
    "folder beneath which runs may read and write checkpoints; may be repeated; default: none");
DEFINE_string(cuda_libraries, "",
              "folders, separated by colons, that are searched first for cuBLAS, cuDNN and NCCL");
DEFINE_bool(reference_kernels, false,
            "compute with plain loops instead of oneDNN (slow; for verification)");
DEFINE_bool(shared_memory, true, "connect to ranks on this host through shared memory");
DEFINE_int32(tcp_lanes, 0,
             "number of TCP connections to each rank on another host; 0: chosen by the round-trip "
             "time");
DEFINE_bool(insecure, false,
            "neither encrypt nor authenticate, instead of --tls: only where every process that "
            "reaches the ports is trusted");
DEFINE_int32(dial_timeout, 30, "seconds to wait for the coordinator at startup");
DEFINE_int32(drain_timeout, 120,
             "seconds after SIGTERM in which the group contributes and the worker ends; 0: leave "
             "immediately; default: CADRE_PREEMPTION_SECONDS of the environment, if set, or else "
             "120");
DEFINE_bool(exit_when_done, false,
            "end when the run has ended: with exit code 0 if it was completed, otherwise with 64");
DEFINE_int32(
    exchange_silence, 90,
    "seconds without progress after which an exchange with an aggregator fails; the "
    "group is then formed again. Time in which the coordinator reports that the aggregator "
    "is away does not count");
DEFINE_string(probe, "",
              "measure layers instead of training: file of a probe request with the plans to time");
DEFINE_string(probe_hosts, "",
              "measure links instead of training: host:port of every host, separated by commas");
DEFINE_string(probe_folder, "",
              "probe: folder through which its processes find one another, and for the result");
DEFINE_int32(probe_rank, 0, "probe: rank of this process, or of this host among --probe-hosts");
DEFINE_int32(probe_ranks, 1, "probe: number of processes that time layers simultaneously");
DEFINE_int32(probe_meet_timeout, 60,
             "--probe-hosts: seconds to wait until all hosts have connected");
DEFINE_int32(
    probe_timeout, 60,
    "--probe: seconds to wait for the other processes; --probe-hosts: for the whole probe");

namespace {

constexpr char kUsage[] =
    "trains as a member of any group that the coordinator assigns.\n\n"
    "  cadre-worker --coordinator=10.0.0.5:7000 --listen=0.0.0.0:7002 \\\n"
    "      --advertise=10.0.0.17:7002 --threads=8 --tls=DIR\n"
    "  cadre-worker --coordinator=10.0.0.5:7000 --device=cuda:0 --tls=DIR\n\n"
    "It needs no other configuration: model, data, plan and peers come from the coordinator.\n"
    "With --probe or --probe-hosts it measures this host, or links, instead; see 'cadre "
    "probe'.\n"
    "On SIGTERM its group finishes the period or, if that takes longer than half of\n"
    "--drain-timeout, only the current step, and contributes; then the worker leaves. In its\n"
    "environment, CADRE_PREEMPTION_SECONDS is the default of --drain-timeout, for hosts that end\n"
    "with a notice of so many seconds. SIGINT and a second SIGTERM end it immediately.\n"
    "Exit code: 143 after SIGTERM or\n"
    "'cadre drain', so that a supervisor does not count the work as complete; 0 after SIGINT, or\n"
    "with --exit-when-done. Exit codes after which a restart would fail again:\n"
    "  2: invalid flags, or a --device that this host does not have\n"
    " 64: permanently refused by the coordinator; or a driver, library or build that does not\n"
    "     support the device, at startup or when a GPU had to be opened again; or, with\n"
    "     --exit-when-done, the run has failed or was stopped\n"
    "Exit codes after which a restart, here or on another host, may succeed:\n"
    "  1: failure\n"
    "  4: the coordinator or the GPU does not respond\n"
    " 75: the GPU was lost during training, or a kernel on it failed; either way, this process\n"
    "     could no longer use it\n"
    "With CADRE_CUDA_SYNC=1 in its environment it waits for every operation of the GPU, so that "
    "an\n"
    "error names the operation that failed; slow, for debugging";

constexpr cadre::Program kProgram{
    .name = "cadre-worker", .usage = kUsage, .version = CADRE_VERSION, .source = "worker/main.cc"};

// 128 + SIGTERM.
constexpr int kExitDrained = 143;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnavailable = 4;
// Exit code if a retry cannot succeed; deploy/kubernetes/examples/jobset then fails the set.
constexpr int kExitRefused = 64;
// Exit code if this process can no longer use its GPU, because the GPU was lost or a kernel failed
// on it. A new process may be able to use it.
constexpr int kExitDeviceLost = 75;

// The coordinator refuses this worker, or the device cannot be used.
bool IsPermanent(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status);
}

int Fail(const absl::Status& status) {
  const int code = IsPermanent(status)           ? kExitRefused
                   : absl::IsUnavailable(status) ? kExitUnavailable
                                                 : kExitFailure;
  return kProgram.Fail(code, status.message());
}

int FailToStart(const absl::Status& status) {
  // A flag names something invalid or missing.
  const bool flag = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return flag ? kProgram.Fail(kExitUsage, status.message()) : Fail(status);
}

template <typename... Args>
absl::Status UsageError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

// Measures layers or links, as `cadre probe` requests, and exits.
int Probe(int host_cores) {
  if (FLAGS_device != "cpu") {
    return FailToStart(UsageError(
        "a probe measures CPUs and the links between hosts, not --device=%s; groups on GPUs "
        "measure their own layers and links while they train",
        FLAGS_device));
  }
  // A probe needs no orderly shutdown, so signals may terminate it.
  cadre::UnblockTerminationSignals();
  cadre::ProbeProgramOptions options{
      .request = FLAGS_probe,
      .meet_timeout = absl::Seconds(FLAGS_probe_meet_timeout),
      .machine = {.rank = FLAGS_probe_rank,
                  .ranks = FLAGS_probe_ranks,
                  .folder = FLAGS_probe_folder,
                  .threads = FLAGS_threads,
                  .host_cores = host_cores,
                  .shared_memory = FLAGS_shared_memory,
                  .deadline = absl::Now() + absl::Seconds(FLAGS_probe_timeout)}};
  if (!FLAGS_probe_hosts.empty()) options.hosts = absl::StrSplit(FLAGS_probe_hosts, ',');
  const int ranks = options.hosts.empty() ? FLAGS_probe_ranks : std::ssize(options.hosts);
  if (FLAGS_probe_folder.empty() || FLAGS_probe_rank < 0 || FLAGS_probe_rank >= ranks) {
    return FailToStart(
        UsageError("a probe needs --probe-folder, and --probe-rank in [0, %d)", ranks));
  }
  if (!options.hosts.empty()) {
    const std::string& own = options.hosts[FLAGS_probe_rank];
    const absl::Status allowed = cadre::CheckListenAddress(own, FLAGS_insecure);
    if (!allowed.ok()) return FailToStart(allowed);
  }
  const absl::Status status = cadre::RunProbeProgram(options);
  return status.ok() ? 0 : Fail(status);
}

// CADRE_PREEMPTION_SECONDS, which programs with a training loop of their own read, too.
absl::Status ReadPreemptionSeconds() {
  const char* const text = std::getenv("CADRE_PREEMPTION_SECONDS");
  if (text == nullptr) return absl::OkStatus();
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0 && seconds <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CADRE_PREEMPTION_SECONDS=", text, " is not a number of seconds"));
  }
  gflags::CommandLineFlagInfo info;
  if (gflags::GetCommandLineFlagInfo("drain_timeout", &info) && info.is_default) {
    FLAGS_drain_timeout = static_cast<int32_t>(seconds);
  }
  return absl::OkStatus();
}

// Binds the process as --numa-node requests, before it has threads and large memory.
absl::Status UseNumaNode() {
  if (FLAGS_numa_node >= 0) return cadre::BindToNumaNode(FLAGS_numa_node);
  const size_t nodes = cadre::UsableNumaNodes().size();
  if (nodes > 1 && FLAGS_device == "cpu") {
    LOG(INFO) << "not bound to one of " << nodes << " NUMA nodes; see --numa-node";
  }
  return absl::OkStatus();
}

// A GPU worker computes with one thread, which mostly waits.
int LoaderThreads() {
  if (FLAGS_loader_threads > 0) return FLAGS_loader_threads;
  return std::clamp(cadre::UsableCores() - FLAGS_threads, 1, 16);
}

absl::Status CheckFlags() {
  CADRE_RETURN_IF_ERROR(ReadPreemptionSeconds());
  CADRE_RETURN_IF_ERROR(cadre::CheckAddresses("--coordinator", FLAGS_coordinator));
  if (FLAGS_drain_timeout < 0) {
    return UsageError("--drain-timeout=%d must not be negative", FLAGS_drain_timeout);
  }
  // The coordinator replaces a group after 110 s without progress (coordinator/events/deadlines.h).
  if (FLAGS_exchange_silence < 1 || FLAGS_exchange_silence > 100) {
    return UsageError("--exchange-silence=%d is not between 1 and 100", FLAGS_exchange_silence);
  }
  if (FLAGS_threads < 0) return UsageError("--threads=%d must not be negative", FLAGS_threads);
  if (FLAGS_numa_node < -1) {
    return UsageError("--numa-node=%d is neither a node nor -1", FLAGS_numa_node);
  }
  if (FLAGS_loader_threads < 0 || FLAGS_loader_threads > 256) {
    return UsageError("--loader-threads=%d must be between 0 and 256", FLAGS_loader_threads);
  }
  if (!(FLAGS_device_memory_gb >= 0)) {
    return UsageError("--device-memory-gb=%g must not be negative", FLAGS_device_memory_gb);
  }
  if (FLAGS_tcp_lanes < 0 || FLAGS_tcp_lanes > cadre::kMaxConnections) {
    return UsageError("--tcp-lanes=%d must be between 0 and %d", FLAGS_tcp_lanes,
                      cadre::kMaxConnections);
  }
  return absl::OkStatus();
}

absl::StatusOr<cadre::WorkerOptions> OptionsFromFlags(int host_cores) {
  cadre::WorkerOptions options;
  CADRE_ASSIGN_OR_RETURN(options.credentials, cadre::Credentials::FromFlags(
                                                  FLAGS_tls, FLAGS_insecure, cadre::Role::kWorker));
  options.coordinator = FLAGS_coordinator;
  options.dial_timeout = absl::Seconds(FLAGS_dial_timeout);
  options.listen = FLAGS_listen;
  options.advertise = FLAGS_advertise;
  options.version = CADRE_VERSION;
  options.host_cores = host_cores;
  options.name = FLAGS_name;
  if (options.name.empty()) {
    // With a fixed port, equal for a restarted process.
    const std::string port = FLAGS_listen.substr(FLAGS_listen.rfind(':') + 1);
    options.name =
        cadre::DefaultWorkerName(options.credentials, port == "0" ? absl::StrCat(getpid()) : port);
  }
  CADRE_RETURN_IF_ERROR(cadre::CheckName("--name", options.name));
  CADRE_ASSIGN_OR_RETURN(options.data_files,
                         cadre::RootedFiles::Open("--data-root", cadre::AllValues("data_root")));
  CADRE_ASSIGN_OR_RETURN(
      options.checkpoint_files,
      cadre::RootedFiles::Open("--checkpoint-root", cadre::AllValues("checkpoint_root")));
  const cadre::ComputeOptions compute{
      .device = FLAGS_device,
      .threads = FLAGS_threads,
      .reference_kernels = FLAGS_reference_kernels,
      .memory_limit = static_cast<int64_t>(FLAGS_device_memory_gb * (1 << 30)),
      .libraries = absl::StrSplit(FLAGS_cuda_libraries, ':', absl::SkipEmpty()),
      .synchronous = cadre::SynchronousGpu()};
  options.make_compute = [compute] { return cadre::MakeCompute(compute); };
  options.ended = [] { cadre::RequestTermination(); };
  options.exit_when_done = FLAGS_exit_when_done;
  options.shared_memory = FLAGS_shared_memory;
  options.tcp_connections = FLAGS_tcp_lanes;
  options.loader_threads = LoaderThreads();
  options.coding_threads = FLAGS_threads;
  options.exchange_silence = absl::Seconds(FLAGS_exchange_silence);
  return options;
}

// Trains until a signal or the end of the worker; returns the exit code.
int TrainUntilEnd(cadre::GroupMember& worker) {
  const int signal = cadre::WaitForTermination();
  const bool has_rank = signal == SIGTERM && worker.has_rank();
  const absl::Duration within = worker.drain_time().value_or(absl::Seconds(FLAGS_drain_timeout));
  if (has_rank && worker.end().ok() && within > absl::ZeroDuration() && worker.Drain(within)) {
    LOG(INFO) << "leaving the group within " << within
              << ", after its contribution; another signal ends this worker immediately";
    cadre::WaitForTermination(within);
  }
  if (const absl::Status end = worker.end(); !end.ok()) {
    return kProgram.Fail(IsPermanent(end) ? kExitRefused : kExitDeviceLost, end.message());
  }
  if (const std::optional<bool> done = worker.run_done()) {
    LOG(INFO) << (*done ? "the run is complete" : "the run has ended without being completed");
    return *done ? 0 : kExitRefused;
  }
  LOG(INFO) << "ending on signal " << signal;
  // Also without a rank: 0 would mark the work of this process as complete.
  return signal == SIGTERM ? kExitDrained : 0;
}

}  // namespace

int main(int argc, char** argv) {
  cadre::EnsureOpenMpSettings(argv);
  cadre::SetGpuEnvironment();
  // Blocks of at least this size return to the system when they are freed. Otherwise glibc raises
  // the limit to the largest block that was freed, and the tensors of one generation after another
  // fragment the heaps.
  mallopt(M_MMAP_THRESHOLD, 512 << 10);
  if (const auto ended = kProgram.Start(&argc, &argv)) return *ended;
  if (const absl::Status flags = CheckFlags(); !flags.ok()) return FailToStart(flags);
  // Counted before this process is bound to some of them.
  const int host_cores = cadre::UsableCores();
  if (const absl::Status bound = UseNumaNode(); !bound.ok()) return FailToStart(bound);
  if (FLAGS_threads == 0) FLAGS_threads = cadre::UsableCores();
  if (!FLAGS_probe.empty() || !FLAGS_probe_hosts.empty()) return Probe(host_cores);
  const auto options = OptionsFromFlags(host_cores);
  if (!options.ok()) return FailToStart(options.status());
  cadre::RaiseDescriptorLimit();
  const auto worker = cadre::StartWorker(*options);
  if (!worker.ok()) return FailToStart(worker.status());
  const auto metrics = kProgram.StartMetrics([&] { return (*worker)->Ready(); },
                                             [&](cadre::Metrics& all) { (*worker)->Collect(all); });
  if (!metrics.ok()) return FailToStart(metrics.status());
  cadre::NotifyReady();
  return TrainUntilEnd(**worker);
}
