// cadre-worker: one compute device that trains as a member of a group.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/identity.h"
#include "base/program_flags.h"
#include "base/rpc/daemon.h"
#include "worker/probe_program.h"
#include "worker/transport/tcp_link.h"
#include "worker/worker.h"

DEFINE_string(coordinator, "127.0.0.1:7000",
              "host:port of the coordinator, which provides all other configuration");
DEFINE_string(listen, "127.0.0.1:0",
              "where the other ranks of a group connect; port 0 takes a free one");
DEFINE_string(advertise, "",
              "host:port that the other ranks are told; default: --listen with the port taken");
DEFINE_string(name, "", "name for people, unique on its host; default: host name and process id");
DEFINE_int32(threads, 1, "compute threads");
DEFINE_string(
    device, "cpu",
    "what to compute on: cpu, cuda (the first GPU) or cuda:N; several processes may share "
    "one GPU if each has its own NCCL_HOSTID in its environment");
DEFINE_double(device_memory_gb, 0,
              "most memory of a GPU that is taken, in GiB; 0: all that is free at the start but a "
              "reserve of 3 or a fifth; processes that share a GPU should each be given a part");
DEFINE_string(cuda_libraries, "",
              "folders, with colons between them, that are looked into first for cuBLAS, cuDNN and "
              "NCCL");
DEFINE_bool(reference_kernels, false,
            "compute with plain loops instead of oneDNN (slow; to check)");
DEFINE_bool(shared_memory, true, "reach ranks of this host through shared memory");
DEFINE_int32(tcp_lanes, 0,
             "TCP connections to each rank elsewhere; 0: as many as the round trip asks for");
DEFINE_bool(insecure, false, "listen beyond loopback although nothing is encrypted");
DEFINE_int32(dial_timeout, 30, "seconds to look for the coordinator at start");
DEFINE_string(probe, "", "measure instead: file of a probe request, whose plans' layers are timed");
DEFINE_string(probe_hosts, "",
              "measure instead: host:port of every host, whose links are measured");
DEFINE_string(probe_folder, "",
              "probe: folder where its processes find one another, for the result");
DEFINE_int32(probe_rank, 0, "probe: this process among them, or this host among the hosts");
DEFINE_int32(probe_ranks, 1, "probe: processes that time layers at the same time");
DEFINE_int32(probe_meet_timeout, 60, "probe_hosts: seconds to wait until all hosts have come");
DEFINE_int32(probe_timeout, 60, "probe: seconds to wait for the others; for hosts, for everything");

namespace {

constexpr char kUsage[] =
    "trains as a member of whatever group the coordinator assigns.\n\n"
    "  cadre-worker --coordinator=10.0.0.5:7000 --listen=0.0.0.0:7002 \\\n"
    "      --advertise=10.0.0.17:7002 --threads=8 --insecure\n"
    "  cadre-worker --coordinator=10.0.0.5:7000 --device=cuda:0\n\n"
    "It needs no other configuration: model, data, plan and peers come from the coordinator.\n"
    "With --probe or --probe_hosts it measures this machine, or links, instead; see 'cadre "
    "probe'.\n"
    "Ends on SIGTERM or SIGINT (0). Exit codes that say that trying again is useless:\n"
    "  2: wrong flags, or a --device that this machine has not\n"
    " 64: refused by the coordinator for good; or a driver, a library or a build that will not\n"
    "     do, at the start or when a GPU had to be opened anew\n"
    "and those that say that another try, here or on another machine, may do:\n"
    "  1: failure\n"
    "  4: the coordinator does not answer, or the GPU does not\n"
    " 75: the GPU was lost while it trained, or a kernel on it was at fault; either way this\n"
    "     process could not use it any more";

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnavailable = 4;
// Trying again cannot help; deploy/kubernetes/worker/worker.yaml fails the Job on it.
constexpr int kExitRefused = 64;
// A context on a GPU that was lost, or on which a kernel was at fault, cannot be had again in the
// same process: another one may do.
constexpr int kExitDeviceLost = 75;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "cadre-worker: %s\n", std::string(status.message()).c_str());
  if (absl::IsFailedPrecondition(status)) return kExitRefused;
  return absl::IsUnavailable(status) ? kExitUnavailable : kExitFailure;
}

int FailToStart(const absl::Status& status) {
  const int code = Fail(status);
  // What flags name is not there, or not what it should be.
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kExitUsage : code;
}

int Probe() {
  if (FLAGS_device != "cpu") {
    std::fprintf(
        stderr,
        "cadre-worker: a probe measures CPUs and the links between hosts, not --device=%s; "
        "groups on GPUs measure their own layers and links as they train\n",
        FLAGS_device.c_str());
    return kExitUsage;
  }
  // There is nothing to put in order: the usual end is good enough.
  cadre::UnblockTerminationSignals();
  cadre::ProbeProgramOptions options{.request = FLAGS_probe,
                                     .folder = FLAGS_probe_folder,
                                     .rank = FLAGS_probe_rank,
                                     .ranks = FLAGS_probe_ranks,
                                     .threads = FLAGS_threads,
                                     .shared_memory = FLAGS_shared_memory,
                                     .patience = absl::Seconds(FLAGS_probe_timeout),
                                     .meeting = absl::Seconds(FLAGS_probe_meet_timeout)};
  if (!FLAGS_probe_hosts.empty()) options.hosts = absl::StrSplit(FLAGS_probe_hosts, ',');
  const int ranks =
      options.hosts.empty() ? FLAGS_probe_ranks : static_cast<int>(options.hosts.size());
  if (FLAGS_probe_folder.empty() || FLAGS_probe_rank < 0 || FLAGS_probe_rank >= ranks) {
    std::fprintf(
        stderr, "cadre-worker: a probe needs --probe_folder, and --probe_rank in [0, %d)\n", ranks);
    return kExitUsage;
  }
  if (!options.hosts.empty()) {
    const std::string& own = options.hosts[FLAGS_probe_rank];
    const absl::Status allowed = cadre::CheckListenAddress(own, FLAGS_insecure);
    if (!allowed.ok()) return FailToStart(allowed);
  }
  const absl::Status status = cadre::RunProbeProgram(options);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace

int main(int argc, char** argv) {
  cadre::BlockTerminationSignals();
  if (const auto ended =
          cadre::ParseProgramFlags(kUsage, CADRE_VERSION, "worker/main.cc", &argc, &argv)) {
    return *ended;
  }
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  if (FLAGS_threads < 1) {
    std::fprintf(stderr, "cadre-worker: --threads=%d must be at least 1\n", FLAGS_threads);
    return kExitUsage;
  }
  if (!(FLAGS_device_memory_gb >= 0)) {
    std::fprintf(stderr, "cadre-worker: --device_memory_gb=%g must not be negative\n",
                 FLAGS_device_memory_gb);
    return kExitUsage;
  }
  if (FLAGS_tcp_lanes < 0 || FLAGS_tcp_lanes > cadre::kMaxConnections) {
    std::fprintf(stderr, "cadre-worker: --tcp_lanes=%d must be 0 to %d\n", FLAGS_tcp_lanes,
                 cadre::kMaxConnections);
    return kExitUsage;
  }
  if (!FLAGS_probe.empty() || !FLAGS_probe_hosts.empty()) return Probe();
  const absl::Status allowed = cadre::CheckListenAddress(FLAGS_listen, FLAGS_insecure);
  if (!allowed.ok()) return FailToStart(allowed);
  cadre::WorkerOptions options;
  options.coordinator = FLAGS_coordinator;
  options.dial_timeout = absl::Seconds(FLAGS_dial_timeout);
  options.listen = FLAGS_listen;
  options.advertise = FLAGS_advertise;
  options.version = CADRE_VERSION;
  options.name = FLAGS_name.empty() ? absl::StrCat(cadre::HostName(), "-", getpid()) : FLAGS_name;
  options.compute = {.device = FLAGS_device,
                     .threads = FLAGS_threads,
                     .reference_kernels = FLAGS_reference_kernels,
                     .memory_limit = static_cast<int64_t>(FLAGS_device_memory_gb * (1 << 30)),
                     .libraries = absl::StrSplit(FLAGS_cuda_libraries, ':', absl::SkipEmpty())};
  options.ended = [] { cadre::RequestTermination(); };
  options.shared_memory = FLAGS_shared_memory;
  options.tcp_lanes = FLAGS_tcp_lanes;

  auto worker = cadre::Worker::Start(options);
  if (!worker.ok()) return FailToStart(worker.status());
  const int signal = cadre::WaitForTermination();
  if (const absl::Status end = (*worker)->end(); !end.ok()) {
    Fail(end);
    // What no other device could be had for will not go away either.
    return absl::IsFailedPrecondition(end) ? kExitRefused : kExitDeviceLost;
  }
  LOG(INFO) << "ending on signal " << signal;
  return 0;
}
